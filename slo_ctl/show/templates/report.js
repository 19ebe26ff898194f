// Draws the curves of a report. The data of each is beside it, as JSON.
"use strict";

const TEXTS = { count, decimal, latency, percent, plain };

function curvesOf(data) {
  const { since, axis, curves, shaded, levels, marks } = data;
  const moved = (at) => since + at;
  const spec = {
    ...data,
    utc: true,
    text: TEXTS[data.text],
    x: axis && { ...axis, text: TEXTS[axis.text] },
    shaded: shaded.map((span) => span.map(moved)),
    levels: levels.map((level) => ({ ...level, span: level.span?.map(moved) })),
    marks: marks.map((each) => ({ ...each, at: moved(each.at) })),
  };
  return [spec, [data.x.map(moved), ...curves.map(({ values }) => values)]];
}

document.getElementById("without-scripts").remove();
for (const script of document.querySelectorAll("figure script")) {
  addChart(script.previousElementSibling, ...curvesOf(JSON.parse(script.textContent)));
}
