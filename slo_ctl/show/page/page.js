// Requests the status of the daemon every epoch, and the history of the selected VM every 10 seconds.
"use strict";

const HISTORY_MS = 10000;
const STALE_EPOCHS = 5;
const MAX_CHANGES = 50;
const MAX_EVENTS = 20;

const byId = (id) => document.getElementById(id);

// Texts.

const counted = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;

function size(bytes) {
  if (!known(bytes)) return UNKNOWN;
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let step = 0;
  while (bytes >= 1024 && step < units.length - 1) {
    bytes /= 1024;
    step += 1;
  }
  return `${Number(bytes.toPrecision(3))} ${units[step]}`;
}

function ops(vm) {
  const part = known(vm.ops_share) ? `, ${percent(vm.ops_share)} of its size` : "";
  if (known(vm.ops_bytes)) return `${size(vm.ops_bytes)}${part}`;
  return known(vm.ops_blocks) ? `${count(vm.ops_blocks)} blocks` : UNKNOWN;
}

function limits(vm) {
  const { min_iops, max_iops, max_bandwidth_bytes_s, p99_latency_us } = vm.slo;
  const texts = [];
  if (known(min_iops)) texts.push(`at least ${count(min_iops)} IOPS`);
  if (known(max_iops)) texts.push(`at most ${count(max_iops)} IOPS`);
  if (known(max_bandwidth_bytes_s)) texts.push(`at most ${size(max_bandwidth_bytes_s)}/s`);
  if (known(p99_latency_us)) texts.push(`p99 ${latency(p99_latency_us)}`);
  if (vm.throttle_wait_us > 0) texts.push(`throttled ${latency(vm.throttle_wait_us)} a request`);
  return texts.join(", ") || UNKNOWN;
}

// Give `parent` one child for each item, in order; children with the same key are kept.
function updateChildren(parent, items, keyOf, create, update) {
  const old = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let next = parent.firstElementChild;
  items.forEach((item, index) => {
    const key = keyOf(item, index);
    let child = old.get(key);
    old.delete(key);
    if (!child) {
      child = create(item, index);
      child.dataset.key = key;
    }
    if (child === next) next = next.nextElementSibling;
    else parent.insertBefore(child, next);
    update(child, item, index);
  });
  old.forEach((child) => child.remove());
}

const lines = (parent, texts) => updateChildren(parent, texts, (text, index) => String(index), () => make("li"), write);

const keyOfVm = (vm) => JSON.stringify([vm.vm, vm.device]);
const nameOf = (vm) => (vm.device ? `${vm.vm} on ${vm.device}` : vm.vm);

// VMs.

let selected = null;
const verdicts = new Map();

const COLUMNS = [
  ["Drive", "", (vm) => vm.device || UNKNOWN],
  ["Verdict", "verdict", (vm) => vm.verdict],
  ["Weight", "number", (vm) => String(vm.slo.weight)],
  ["Limits", "", limits],
  ["Share", "", null],
  ["IOPS", "number", (vm) => count(vm.iops)],
  ["p99 read / write", "number", (vm) => `${latency(vm.p99_read_us)} / ${latency(vm.p99_write_us)}`],
  ["WAF", "number", (vm) => decimal(vm.waf)],
  ["OPS", "number", ops],
  ["Reason", "", (vm) => vm.reason],
];

function makeVm(vm) {
  const button = make("button", { type: "button" });
  button.addEventListener("click", () => select(vm));
  const row = make("tr", { role: "row" }, make("th", { role: "rowheader", scope: "row", "data-label": "VM" }, button));
  for (const [label, kind] of COLUMNS) {
    row.append(make("td", { role: "cell", class: kind, "data-label": label }, make("div")));
  }
  const bar = make("div", { class: "share", "aria-hidden": "true" }, make("i"), make("b"));
  row.cells[5].firstChild.append(make("span"), bar);
  return row;
}

function showVm(row, vm) {
  const button = row.querySelector("button");
  write(button, vm.vm);
  mark(button, "aria-pressed", String(selected !== null && keyOfVm(selected) === keyOfVm(vm)));
  COLUMNS.forEach(([, , text], index) => {
    if (text) write(row.cells[index + 1].firstChild, text(vm));
  });
  mark(row.cells[2].firstChild, "data-verdict", vm.verdict);
  const share = row.cells[5];
  write(share.querySelector("span"), known(vm.share) || known(vm.target_share) ? `${percent(vm.share)} of ${percent(vm.target_share)}` : UNKNOWN);
  share.querySelector(".share").hidden = !known(vm.share) && !known(vm.target_share);
  share.querySelector("i").style.width = `${100 * Math.min(1, vm.share || 0)}%`;
  const target = share.querySelector("b");
  target.hidden = !known(vm.target_share);
  target.style.left = `${100 * Math.min(1, vm.target_share || 0)}%`;
}

function groupText(group) {
  const bounds = [
    known(group.min_iops) ? `at least ${count(group.min_iops)} IOPS` : "",
    known(group.max_iops) ? `at most ${count(group.max_iops)} IOPS` : "",
    known(group.max_bandwidth_bytes_s) ? `${size(group.bandwidth_bytes_s)}/s of at most ${size(group.max_bandwidth_bytes_s)}/s` : "",
  ];
  const vms = group.vms.length ? group.vms.join(", ") : "no VM";
  return [`Group ${group.name} (${vms}): ${count(group.iops)} IOPS`, ...bounds.filter(Boolean), `${group.verdict}: ${group.reason}`].join(", ");
}

function logChanges(status) {
  const first = verdicts.size === 0;
  for (const vm of status.vms) {
    if (vm.first_reading) continue; // whether it has requests is not known yet
    const key = keyOfVm(vm);
    const before = verdicts.get(key);
    verdicts.set(key, vm.verdict);
    if (first || before === vm.verdict) continue;
    const change = before ? `${before} to ${vm.verdict}` : vm.verdict;
    const text = make("span", {}, ` ${nameOf(vm)}: ${change}: ${vm.reason}`);
    byId("changes").prepend(make("li", {}, make("time", {}, clock(status.at)), text));
  }
  while (byId("changes").children.length > MAX_CHANGES) byId("changes").lastElementChild.remove();
}

// Drives.

function makeDrive() {
  const bar = make("div", { class: "ops", role: "img" });
  return make(
    "section", {}, make("h3"), make("p", { class: "line" }), make("p", { class: "wrong", "data-verdict": "insufficient" }),
    bar, make("ul", { class: "legend" }), make("ul", { class: "moves" }),
    make("p", { class: "help recent" }, "Recent decisions, the latest at the end:"), make("ul", { class: "reasons" }),
  );
}

function driveLine(device) {
  const parts = [device.kind === "emulated" ? `EMULATED ${device.backend.replace(/^emulated /i, "")}` : `block device, ${device.backend}`];
  if (device.policy) parts.push(`policy ${device.policy}`);
  const capacity = known(device.capacity_iops) ? device.capacity_iops : device.estimated_iops;
  const source = known(device.capacity_iops) ? "measured" : "estimated";
  parts.push(`${count(device.iops)} IOPS` + (known(capacity) ? ` of ${count(capacity)} ${source} at most` : ""));
  if (device.sum_min_iops) parts.push(`minimums ${count(device.sum_min_iops)} IOPS`);
  if (device.waf && known(device.waf.waf)) {
    const label = device.waf.emulated && !device.waf.source.startsWith("emulated") ? " (EMULATED)" : "";
    parts.push(`WAF ${decimal(device.waf.waf)} by ${device.waf.source}${label}`);
  }
  if (known(device.move_budget)) parts.push(`moves may take ${percent(device.move_budget)} of its time`);
  return parts.join(", ");
}

function moveText(move) {
  const remaining = move.waiting ? `, ${move.waiting}` : known(move.left_s) ? `, about ${number(move.left_s)} s left` : "";
  return ` ${count(move.blocks_left)} blocks from ${move.source || "the spare blocks"} to ${move.target || "the spare blocks"}: ` +
    `${number(100 * move.share_done)}% done${remaining}`;
}

function showDrive(node, device, status) {
  const find = (selector) => node.querySelector(selector);
  write(find("h3"), device.name);
  write(find(".line"), driveLine(device));
  const problems = [device.problem, device.overcommitted ? "overcommitted: the minimums exceed what it can do" : ""];
  write(find(".wrong"), problems.filter(Boolean).join("; "));
  const owners = status.vms.filter((vm) => vm.device === device.name && vm.ops_blocks > 0);
  const total = owners.reduce((sum, vm) => sum + vm.ops_blocks, 0);
  const texts = owners.map((vm) => `${vm.vm} ${size(vm.ops_bytes)} (${percent(vm.ops_blocks / total)} of all OPS)`);
  find(".ops").hidden = owners.length === 0;
  mark(find(".ops"), "aria-label", `OPS by VM: ${texts.join(", ")}`);
  const colour = (index) => `k${index % COLOURS}`;
  updateChildren(find(".ops"), owners, keyOfVm, () => make("i"), (part, vm, index) => {
    mark(part, "class", colour(index));
    part.style.flexGrow = vm.ops_blocks;
  });
  updateChildren(find(".legend"), owners, keyOfVm, () => make("li", {}, make("i"), make("span")), (item, vm, index) => {
    mark(item.firstChild, "class", colour(index));
    write(item.lastChild, texts[index]);
  });
  const makeMove = () => make("li", {}, make("progress", { max: "1", "aria-label": "Move of OPS" }), make("span"));
  updateChildren(find(".moves"), device.moves, (move) => JSON.stringify([move.source, move.target]), makeMove, (item, move) => {
    item.firstChild.value = move.share_done;
    write(item.lastChild, moveText(move));
  });
  find(".recent").hidden = device.reasons.length === 0;
  lines(find(".reasons"), device.reasons);
}

// The history of the selected VM.

const MAX_GAP_STEPS = 2.5; // points further apart are not joined

const CHARTS = [
  { title: "Share", fields: { got: "share", entitled: "target_share" }, text: percent },
  { title: "IOPS", fields: { got: "iops", target: "target_iops" }, text: count },
  { title: "p99", fields: { read: "p99_read_us", write: "p99_write_us" }, text: latency },
  { title: "WAF", fields: { WAF: "waf" }, text: decimal },
].map(({ title, fields, text }) => ({
  title,
  text,
  group: "history",
  fields: Object.values(fields),
  curves: Object.keys(fields).map((name, index) => ({ name, colour: index, dash: index })),
}));

// The usual distance of points: with long epochs more than a bucket.
function stepOf(history, points) {
  const distances = points.slice(1).map((point, index) => point.at - points[index].at).sort((one, other) => one - other);
  return Math.max(history.bucket_s, distances[distances.length >> 1] || 0);
}

// Times and values of some fields, with a gap where nothing was measured.
function columnsOf(history, points, fields) {
  const step = stepOf(history, points);
  const columns = [[], ...fields.map(() => [])];
  let last = null;
  for (const point of points) {
    if (last !== null && point.at - last > MAX_GAP_STEPS * step) {
      columns.forEach((column, index) => column.push(index ? null : last + step));
    }
    columns[0].push(point.at);
    fields.forEach((field, index) => columns[index + 1].push(known(point[field]) ? point[field] : null));
    last = point.at;
  }
  return columns;
}

const settingText = (value) => (typeof value === "number" ? number(value, Number.isInteger(value) ? 0 : 2) : value);
const outcomeText = ({ knob, value, state, reason }) =>
  `${knob} ${known(value) ? settingText(value) : "unset"}: ${state}${reason ? `, ${reason}` : ""}`;

// Latest first. Applied settings are shown with their last values instead, as weights change all the time.
function events(history, device) {
  const isOnDevice = (each) => each.device === device;
  const rows = [
    ...history.verdicts.filter(isOnDevice).map((each) => [each.at, `${each.verdict}: ${each.reason}`]),
    ...history.decisions.filter(isOnDevice).map((each) => [each.at, each.reason]),
    ...history.outcomes.filter((each) => each.state === "unapplied").map((each) => [each.at, outcomeText(each)]),
  ];
  return rows.sort((one, other) => other[0] - one[0]).slice(0, MAX_EVENTS);
}

function settings(history) {
  const latest = new Map(history.outcomes.map((each) => [each.knob, each]));
  return [...latest.values()].map((each) => [each.at, outcomeText(each)]);
}

async function showHistory() {
  const vm = selected;
  if (vm === null || document.hidden) return;
  const minutes = byId("minutes").value;
  const answer = await fetchJson(`history.json?minutes=${minutes}&vm=${encodeURIComponent(vm.vm.toWellFormed())}`);
  if (vm !== selected || minutes !== byId("minutes").value) return;
  write(byId("history-heading"), `History of ${nameOf(vm)}`);
  if (answer.error) {
    clearCharts(byId("charts"), make("p", { class: "help" }, `${answer.error.message}; ${answer.error.hint}`));
    lines(byId("events"), []);
    lines(byId("settings"), []);
    return;
  }
  const points = answer.points.filter((point) => point.device === vm.device);
  const columns = CHARTS.map(({ fields }) => columnsOf(answer, points, fields));
  drawCharts(byId("charts"), JSON.stringify([keyOfVm(vm), minutes]), CHARTS, columns);
  const timed = ([at, text]) => `${clock(at)} ${text}`;
  lines(byId("events"), events(answer, vm.device).map(timed));
  lines(byId("settings"), settings(answer).map(timed));
}

function select(vm) {
  selected = vm;
  for (const row of byId("vms").rows) {
    mark(row.querySelector("button"), "aria-pressed", String(row.dataset.key === keyOfVm(vm)));
  }
  showHistory();
}

// Requests.

let last = { at: 0, received: performance.now() };

async function fetchJson(target) {
  try {
    const reply = await fetch(target, { cache: "no-store", signal: AbortSignal.timeout(10000) });
    return await reply.json();
  } catch (error) {
    return { error: { message: "the daemon does not answer", hint: "see journalctl -u slo-ctld" } };
  }
}

function showProblem(text) {
  byId("problem").hidden = text === "";
  write(byId("problem"), text);
}

function show(status) {
  const now = performance.now();
  if (status.at !== last.at) last = { at: status.at, received: now };
  const stale = now - last.received > Math.max(2000, 1000 * STALE_EPOCHS * status.epoch_s);
  const config = status.config_problem ? `the configuration on disk is not in use: ${status.config_problem}` : "";
  showProblem([stale ? `no new status since ${clock(status.at)}` : "", config].filter(Boolean).join("; "));
  const names = new Set(status.vms.map((vm) => vm.vm));
  write(byId("host"), location.host);
  write(byId("summary"), `${counted(names.size, "VM")}, ${counted(status.devices.length, "drive")}, as of ${clock(status.at)}; means over ${count(status.window_s)} s`);
  logChanges(status);
  updateChildren(byId("vms"), status.vms, keyOfVm, makeVm, showVm);
  lines(byId("groups"), status.groups.map(groupText));
  updateChildren(byId("drives"), status.devices, (device) => device.name, makeDrive, (node, device) => showDrive(node, device, status));
  lines(byId("notes"), status.notes);
  byId("notes-section").hidden = status.notes.length === 0;
  if (selected === null && status.vms.length > 0) select(status.vms.find((vm) => known(vm.iops)) || status.vms[0]);
}

async function poll() {
  let wait = 1000;
  try {
    if (document.hidden) return;
    const status = await fetchJson("status.json");
    if (status.error) {
      showProblem(`${status.error.message}; ${status.error.hint}`);
    } else {
      wait = Math.max(wait, 1000 * status.epoch_s);
      show(status);
    }
  } finally {
    setTimeout(poll, wait);
  }
}

document.addEventListener("visibilitychange", showHistory);
byId("minutes").addEventListener("change", showHistory);
setInterval(showHistory, HISTORY_MS);
poll();
