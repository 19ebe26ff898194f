// Draws the curves of a report from the JSON beside each of them.
"use strict";

const FORMATS = { count, decimal, latency, percent, plain };

function curvesOf(data) {
  const { since, axis, curves, shaded, levels, marks } = data;
  const timeOf = (at) => since + at;
  const spec = {
    ...data,
    utc: true,
    text: FORMATS[data.text],
    x: axis && { ...axis, text: FORMATS[axis.text] },
    shaded: shaded.map((span) => span.map(timeOf)),
    levels: levels.map((level) => ({ ...level, span: level.span?.map(timeOf) })),
    marks: marks.map((each) => ({ ...each, at: timeOf(each.at) })),
  };
  return [spec, [data.x.map(timeOf), ...curves.map(({ values }) => values)]];
}

document.getElementById("without-scripts").remove();
for (const script of document.querySelectorAll("figure script")) {
  addChart(script.previousElementSibling, ...curvesOf(JSON.parse(script.textContent)));
}
