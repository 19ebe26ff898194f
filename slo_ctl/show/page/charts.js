// Curves drawn by uPlot, on the daemon's page and in reports. Charts of one group share a cursor, which follows the mouse or
// the arrow keys; below each chart are the values at the cursor. Dragging zooms in, a double click or Escape zooms out.
"use strict";

const AXIS_WIDTH = 62;
const AXIS_HEIGHT = 32;
const LABEL_HEIGHT = 18;
const MARK_HEIGHT = 14;
const MAX_MARK_ROWS = 3;
const SECONDS_BELOW_S = 600; // a shorter interval has seconds at its axis
const DAY_S = 86400;
const LONE_POINT_S = 60; // interval around a single point
const DASHES = [undefined, [6, 4], [2, 3], [8, 3, 2, 3]];
const FONT = "12px system-ui, sans-serif";

let drawn = []; // { plot, spec, picture, reading }
let drawnKey = "";

const themeColour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const colourOf = ({ colour }) => themeColour(known(colour) ? `--c${colour % COLOURS}` : "--quiet");

// x is a time unless there is `spec.x`. A report has local times of its host as if they were UTC.
function timeText(at, span, { withSeconds, utc } = {}) {
  const parts = span > DAY_S ? { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit" } : { hour: "2-digit", minute: "2-digit" };
  if (withSeconds || span < SECONDS_BELOW_S) parts.second = "2-digit";
  return new Date(1000 * at).toLocaleString([], { ...parts, hourCycle: "h23", timeZone: utc ? "UTC" : undefined });
}

const spanOf = (plot) => plot.scales.x.max - plot.scales.x.min;

function positionText(spec, plot, at) {
  const times = plot.data[0];
  return spec.x ? `${spec.x.label} ${spec.x.text(at)}` : timeText(at, times.at(-1) - times[0], { withSeconds: true, utc: spec.utc });
}

function summaryOf({ title, curves, text, label }, columns) {
  if (label) return label;
  const values = columns[1].filter(known);
  if (values.length === 0) return `${title}: ${curves[1] ? `only ${curves[1].name} is known` : "no values"}`;
  const [lowest, highest] = [Math.min(...values), Math.max(...values)];
  return `${title}: ${text(values[values.length - 1])} at last, from ${text(lowest)} to ${text(highest)}`;
}

// The legend, with the values at the cursor, or the last ones.
function makeReading({ curves, levels = [], text }) {
  const item = ({ name, colour, dash }, value) => {
    const key = `key ${known(colour) ? `s${colour % COLOURS}` : ""} ${dash ? "dashed" : ""}`;
    return make("li", {}, make("i", { class: key, "aria-hidden": "true" }), `${name} `, make("b", {}, value), " ");
  };
  const named = levels.filter(({ name }) => name);
  const reading = make("ul", { class: "reading", "aria-live": "polite", "aria-atomic": "true" }, make("li"));
  reading.append(...curves.map((curve) => item(curve, "")), ...named.map((level) => item({ ...level, dash: 1 }, text(level.value))));
  return reading;
}

// Index of the point at the cursor, or of the last one with a value.
function indexOf({ cursor, data: [xs, ...columns] }) {
  if (known(cursor.idx)) return cursor.idx;
  const last = xs.findLastIndex((_, index) => columns.some((values) => known(values[index])));
  return last < 0 ? xs.length - 1 : last;
}

function showReading({ plot, spec, reading }) {
  const index = indexOf(plot);
  const [position, ...items] = reading.children;
  write(position, `${positionText(spec, plot, plot.data[0][index])} `);
  spec.curves.forEach((_, each) => write(items[each].querySelector("b"), spec.text(plot.data[each + 1][index])));
}

// Shaded parts below the curves, dashed levels and marks above them.

function within(plot, from, to) {
  const { left, width } = plot.bbox;
  return [from, to].map((at) => Math.min(left + width, Math.max(left, plot.valToPos(at, "x", true))));
}

function drawShades(plot, { shaded = [] }) {
  plot.ctx.fillStyle = themeColour("--track");
  for (const [from, to] of shaded) {
    const [left, right] = within(plot, from, to);
    plot.ctx.fillRect(left, plot.bbox.top, right - left, plot.bbox.height);
  }
}

function drawLine({ ctx }, colour, dash, [x, y], [toX, toY]) {
  ctx.strokeStyle = colour;
  ctx.lineWidth = 1.2 * devicePixelRatio;
  ctx.setLineDash(dash.map((length) => length * devicePixelRatio));
  ctx.beginPath();
  ctx.moveTo(x, y);
  ctx.lineTo(toX, toY);
  ctx.stroke();
}

function drawLevels(plot, { levels = [] }) {
  for (const level of levels) {
    const y = plot.valToPos(level.value, "y", true);
    const [left, right] = within(plot, ...(level.span || [plot.scales.x.min, plot.scales.x.max]));
    if (right > left) drawLine(plot, colourOf(level), DASHES[level.name ? 1 : 2], [left, y], [right, y]);
  }
}

// Each text is above the plot, in the first row in which it does not overlap another one.
function drawMarks(plot, { marks = [] }) {
  const { ctx, bbox } = plot;
  const [quiet, row] = [themeColour("--quiet"), MARK_HEIGHT * devicePixelRatio];
  const [gap, starts] = [row / 3, []];
  ctx.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
  ctx.textBaseline = "bottom";
  ctx.textAlign = "left";
  ctx.fillStyle = quiet;
  for (const { at, text } of [...marks].reverse()) {
    if (at < plot.scales.x.min || at > plot.scales.x.max) continue;
    const x = plot.valToPos(at, "x", true);
    const width = ctx.measureText(text).width;
    const left = x + gap + width < ctx.canvas.width ? x + gap : x - gap - width;
    const free = starts.findIndex((start) => left + width < start);
    const line = free < 0 ? starts.length : free;
    const above = bbox.top - line * row;
    drawLine(plot, quiet, [3, 2], [x, Math.max(0, above - row)], [x, bbox.top + bbox.height]);
    ctx.fillText(text, left, above);
    starts[line] = Math.min(left, x) - gap;
  }
}

function drawOver(plot, spec) {
  plot.ctx.save();
  drawLevels(plot, spec);
  drawMarks(plot, spec);
  plot.ctx.restore();
}

// Round values on a logarithmic axis: powers of ten with 2 and 5 between them, or equal steps on a short axis.
function logTicks(plot, axis, least, most) {
  const ticks = [];
  if (most > 5 * least) {
    const digits = most > 1000 * least ? [1] : [1, 2, 5];
    for (let power = 10 ** Math.floor(Math.log10(least)); power <= most; power *= 10) ticks.push(...digits.map((digit) => digit * power));
  } else {
    const minStep = Math.max(most - least, least / 1000) / 4;
    const power = 10 ** Math.floor(Math.log10(minStep));
    const step = power * [1, 2, 5, 10].find((digit) => digit * power >= minStep);
    for (let at = step * Math.ceil(least / step); at <= most; at += step) ticks.push(at);
  }
  return ticks.filter((at) => least <= at && at <= most);
}

function optionsOf(spec, size, show) {
  const line = { stroke: () => themeColour("--line"), width: 1 };
  const axis = { stroke: () => themeColour("--quiet"), grid: line, ticks: line, font: FONT };
  const timeTexts = (plot, times) => times.map((at) => timeText(at, spanOf(plot), { utc: spec.utc }));
  const x = spec.x
    ? { label: spec.x.label, labelSize: LABEL_HEIGHT, labelFont: FONT, values: (plot, values) => values.map(spec.x.text), ...(spec.x.log && { splits: logTicks, filter: (plot, values) => values }) }
    : { values: timeTexts };
  const highest = Math.max(0, ...(spec.levels || []).map(({ value }) => value));
  return {
    ...size,
    padding: [Math.max(8, MARK_HEIGHT * Math.min(MAX_MARK_ROWS, (spec.marks || []).length)), null, null, null],
    legend: { show: false },
    cursor: { sync: { key: spec.group }, y: false, points: { size: 7 }, drag: { x: true, y: false } },
    tzDate: spec.utc ? (at) => uPlot.tzDate(new Date(1000 * at), "Etc/UTC") : undefined,
    scales: {
      x: {
        time: !spec.x,
        distr: spec.x?.log ? 3 : 1,
        range: (plot, first, last) => (plot.data[0].length > 1 ? [first, last] : [first - LONE_POINT_S, first + LONE_POINT_S]),
      },
      y: { range: (plot, least, most) => [0, spec.top || 1.05 * Math.max(most, highest) || 1] },
    },
    axes: [
      { ...axis, size: AXIS_HEIGHT, space: 60, ...x },
      { ...axis, size: AXIS_WIDTH, space: 32, values: (plot, values) => values.map(spec.text) },
    ],
    series: [
      {},
      ...spec.curves.map((curve) => ({
        stroke: () => colourOf(curve),
        width: spec.dots ? 0 : 1.6,
        dash: DASHES[curve.dash || 0],
        points: { show: Boolean(spec.dots), size: 4, fill: () => colourOf(curve) },
      })),
    ],
    hooks: {
      drawClear: [(plot) => drawShades(plot, spec)],
      draw: [(plot) => drawOver(plot, spec)],
      setCursor: [show],
    },
  };
}

// Arrow keys move the cursor by a point, + zooms in around it, - or Escape zooms out.
function onKey(event, { plot, spec }) {
  const xs = plot.data[0];
  const [first, last] = plot.series[0].idxs;
  const now = indexOf(plot);
  const target = { ArrowLeft: now - 1, ArrowRight: now + 1, Home: first, End: last }[event.key];
  if (known(target)) {
    const at = xs[Math.min(last, Math.max(first, target))];
    plot.setCursor({ left: plot.valToPos(at, "x"), top: plot.height / 2 });
  } else if (event.key === "+") {
    const edge = (index) => plot.posToVal(plot.valToPos(xs[now], "x") + (index * plot.bbox.width) / devicePixelRatio / 4, "x");
    showPart(spec.group, edge(-1), edge(1));
  } else if (event.key === "-" || event.key === "Escape") {
    showPart(spec.group);
  } else {
    return;
  }
  event.preventDefault();
}

function showPart(group, min, max) {
  for (const { plot, spec } of drawn) {
    const xs = plot.data[0];
    if (spec.group === group) plot.setScale("x", { min: known(min) ? min : xs[0], max: known(max) ? max : xs.at(-1) });
  }
}

const sizeOf = (picture) => ({ width: picture.clientWidth, height: picture.clientHeight });
const printed = matchMedia("print");
const resizing = new ResizeObserver((entries) => {
  if (printed.matches) return; // the browser scales the picture to the paper
  const resized = new Set(entries.map(({ target }) => target));
  drawn.filter(({ picture }) => resized.has(picture)).forEach(({ plot, picture }) => plot.setSize(sizeOf(picture)));
});

// A chart at the end of `parent`: `columns` are the values of x and of each curve.
function addChart(parent, spec, columns) {
  const picture = make("div", { class: "chart", role: "group", tabindex: "0", "aria-describedby": "charts-help" });
  const reading = makeReading(spec);
  if (columns[0].length === 0) {
    parent.append(make("p", { class: "reading" }, "no values"));
    return;
  }
  parent.append(picture, reading);
  const chart = { spec, picture, reading };
  chart.plot = new uPlot(optionsOf(spec, sizeOf(picture), (plot) => showReading({ ...chart, plot })), columns, picture);
  picture.addEventListener("keydown", (event) => onKey(event, chart));
  drawn.push(chart);
  updateLabels(chart);
  resizing.observe(picture);
}

function updateLabels(chart) {
  mark(chart.picture, "aria-label", summaryOf(chart.spec, chart.plot.data));
  showReading(chart);
}

// Draw `columns` of each of `specs` in `parent`. With the same `key` as before, the zoom stays.
function drawCharts(parent, key, specs, columns) {
  if (key !== drawnKey || drawn.length !== specs.length || columns.some(([xs]) => xs.length === 0)) {
    clearCharts(parent);
    drawnKey = key;
    specs.forEach((spec, index) => {
      const figure = make("figure", {}, make("figcaption", {}, make("strong", {}, spec.title)));
      parent.append(figure);
      addChart(figure, spec, columns[index]);
    });
    return;
  }
  const { min, max } = drawn[0].plot.scales.x;
  const xs = drawn[0].plot.data[0];
  const isWhole = xs.length < 2 || (min === xs[0] && max === xs.at(-1));
  drawn.forEach((chart, index) => {
    chart.plot.setData(columns[index], isWhole);
    if (!isWhole) {
      // uPlot draws again by itself only if it resets the scales.
      chart.plot.redraw();
      chart.plot.setCursor(chart.plot.cursor);
    }
    updateLabels(chart);
  });
}

function clearCharts(parent, ...instead) {
  drawn.forEach(({ plot, picture }) => {
    plot.destroy();
    resizing.unobserve(picture);
  });
  [drawn, drawnKey] = [[], ""];
  parent.replaceChildren(...instead);
}

for (const media of [matchMedia("(prefers-color-scheme: dark)"), printed]) {
  media.addEventListener("change", () => drawn.forEach(({ plot }) => plot.redraw()));
}
