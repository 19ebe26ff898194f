// Formats of numbers, and elements: for the daemon's page and for reports.
// Names of VMs may contain markup: texts are set by textContent only.
"use strict";

const COLOURS = 8;
const UNKNOWN = "\u2013";

const known = (value) => value !== null && value !== undefined;
const number = (value, digits = 0) =>
  known(value) ? value.toLocaleString("en", { maximumFractionDigits: digits, minimumFractionDigits: digits }) : UNKNOWN;
const count = (value) => number(value, known(value) && Math.abs(value) < 10 && !Number.isInteger(value) ? 1 : 0);
const decimal = (value) => number(value, 2);
const plain = (value) => (known(value) ? value.toLocaleString("en", { maximumSignificantDigits: 4 }) : UNKNOWN);
const percent = (share) => (known(share) ? `${number(100 * share, 1)}%` : UNKNOWN);

// The time, with the date unless it is today's: a history may be of a week.
function clock(seconds) {
  const at = new Date(1000 * seconds);
  const date = at.toDateString() === new Date().toDateString() ? {} : { month: "short", day: "numeric" };
  return at.toLocaleString([], { ...date, hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
}

function latency(us) {
  if (!known(us)) return UNKNOWN;
  if (us < 1e3) return `${us.toFixed(0)} µs`;
  return us < 1e6 ? `${Number((us / 1e3).toPrecision(3))} ms` : `${Number((us / 1e6).toPrecision(3))} s`;
}

// The page is changed only where something differs, so that focus and reading position stay.

function write(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function mark(node, name, value) {
  if (node.getAttribute(name) !== value) node.setAttribute(name, value);
}

function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}
