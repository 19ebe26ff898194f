// Curves of the chosen VM, drawn by uPlot. One cursor for all of them: it follows the mouse or the arrow keys, and what
// it is on stands below each curve. Dragging shows a part, a double click or Escape all of it.
"use strict";

const CHART_HEIGHT = 150;
const AXIS_WIDTH = 62;
const MOST_APART = 2.5; // of buckets; points further apart are not joined
const SECONDS_BELOW_S = 600; // a shorter interval has seconds at its axis
const DAY_S = 86400;
const LONE_POINT_S = 60; // shown around the only point

let drawn = []; // { plot, spec, reading }
let drawnFor = "";

const themeColour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// Times and values of some fields, with a gap where nothing was measured.
function columnsOf(history, points, fields) {
  const columns = [[], ...fields.map(() => [])];
  let last = null;
  for (const point of points) {
    if (last !== null && point.at - last > MOST_APART * history.bucket_s) {
      columns.forEach((column, index) => column.push(index ? null : last + history.bucket_s));
    }
    columns[0].push(point.at);
    fields.forEach((field, index) => columns[index + 1].push(known(point[field]) ? point[field] : null));
    last = point.at;
  }
  return columns;
}

function timeTexts(plot, times) {
  const span = plot.scales.x.max - plot.scales.x.min;
  const parts = span > DAY_S ? { month: "short", day: "numeric", hour: "2-digit" } : { hour: "2-digit", minute: "2-digit" };
  if (span < SECONDS_BELOW_S) parts.second = "2-digit";
  return times.map((at) => new Date(1000 * at).toLocaleString([], { ...parts, hour12: false }));
}

function summaryOf({ title, fields, names, text }, columns) {
  const values = columns[1].filter(known);
  if (values.length === 0) return `${title}: ${fields[1] ? `only ${names[1]} is known` : "nothing is known"}`;
  const [least, most] = [Math.min(...values), Math.max(...values)];
  return `${title}: ${text(values[values.length - 1])} at last, from ${text(least)} to ${text(most)}`;
}

// What the cursor is on, else the last values.
function readingOf({ names, text }, columns, index) {
  const at = known(index) ? index : columns[0].length - 1;
  const values = names.map((name, each) => `${name} ${text(columns[each + 1][at])}`);
  return at < 0 ? "" : `${clock(columns[0][at])}: ${values.join(", ")}`;
}

function optionsOf(spec, width, reading) {
  const [grid, quiet] = [themeColour("--line"), themeColour("--quiet")];
  const axis = { stroke: quiet, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid, width: 1 }, font: "12px system-ui, sans-serif" };
  const colours = [themeColour("--c0"), themeColour("--c1")];
  return {
    width,
    height: CHART_HEIGHT,
    legend: { show: false },
    cursor: { sync: { key: "history" }, y: false, points: { size: 7 }, drag: { x: true, y: false } },
    scales: {
      x: { range: (plot, first, last) => (plot.data[0].length > 1 ? [first, last] : [first - LONE_POINT_S, first + LONE_POINT_S]) },
      y: { range: (plot, least, most) => [0, most > 0 ? 1.05 * most : 1] },
    },
    axes: [
      { ...axis, size: 32, space: 60, values: timeTexts },
      { ...axis, size: AXIS_WIDTH, space: 32, values: (plot, values) => values.map(spec.text) },
    ],
    series: [
      {},
      ...spec.fields.map((field, index) => ({ stroke: colours[index], width: 1.6, dash: index ? [6, 4] : undefined, points: { show: false } })),
    ],
    hooks: { setCursor: [(plot) => write(reading, readingOf(spec, plot.data, plot.cursor.idx))] },
  };
}

// Arrow keys move the cursor by a point, + shows half of the interval around it, - or Escape all of it.
function onKey(event, plot) {
  const times = plot.data[0];
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  const now = known(plot.cursor.idx) ? plot.cursor.idx : times.length - 1;
  if (step) {
    const index = Math.min(times.length - 1, Math.max(0, now + step));
    plot.setCursor({ left: plot.valToPos(times[index], "x"), top: CHART_HEIGHT / 2 });
  } else if (event.key === "+") {
    const quarter = (plot.scales.x.max - plot.scales.x.min) / 4;
    showPart(times[now] - quarter, times[now] + quarter);
  } else if (event.key === "-" || event.key === "Escape") {
    showPart(times[0], times[times.length - 1]);
  } else {
    return;
  }
  event.preventDefault();
}

function showPart(min, max) {
  drawn.forEach(({ plot }) => plot.setScale("x", { min, max }));
}

function makeChart(parent, spec, columns) {
  const { title, fields, names } = spec;
  const caption = make("figcaption", {}, make("strong", {}, title), " ", make("span", { class: "key" }, names[0]));
  if (fields[1]) caption.append(", ", make("span", { class: "key second" }, `${names[1]} (dashed)`));
  const picture = make("div", { class: "chart", role: "group", tabindex: "0", "aria-describedby": "charts-help" });
  const reading = make("p", { class: "reading", "aria-live": "polite" });
  const figure = make("figure", {}, caption, picture, reading);
  parent.append(figure);
  if (columns[0].length === 0) {
    write(reading, "nothing known");
    return;
  }
  const plot = new uPlot(optionsOf(spec, picture.clientWidth, reading), columns, picture);
  picture.addEventListener("keydown", (event) => onKey(event, plot));
  drawn.push({ plot, spec, picture, reading });
}

// Draw `points` in `parent`. `key` is of the VM and the interval: while it is the same, the part shown stays.
function drawCharts(parent, key, history, points, specs) {
  const data = specs.map(({ fields }) => columnsOf(history, points, fields));
  if (key !== drawnFor || drawn.length !== specs.length) {
    drawn.forEach(({ plot }) => plot.destroy());
    [drawn, drawnFor] = [[], key];
    parent.replaceChildren();
    specs.forEach((spec, index) => makeChart(parent, spec, data[index]));
  } else {
    const { min, max } = drawn[0].plot.scales.x;
    const times = drawn[0].plot.data[0];
    const isWhole = times.length < 2 || (min === times[0] && max === times.at(-1));
    drawn.forEach(({ plot }, index) => plot.setData(data[index], isWhole));
  }
  drawn.forEach(({ plot, spec, picture, reading }) => {
    mark(picture, "aria-label", summaryOf(spec, plot.data));
    write(reading, readingOf(spec, plot.data, plot.cursor.idx));
  });
}

function clearCharts(parent, text) {
  drawn.forEach(({ plot }) => plot.destroy());
  [drawn, drawnFor] = [[], ""];
  parent.replaceChildren(make("p", { class: "help" }, text));
}

new ResizeObserver(() => {
  drawn.forEach(({ plot, picture }) => plot.setSize({ width: picture.clientWidth, height: CHART_HEIGHT }));
}).observe(document.getElementById("charts"));
