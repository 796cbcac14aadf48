// Limits the rows of a followed log, and reloads the page after its session has ended: htmx does neither.
"use strict";
const RECORDS_MAX = 500;

document.addEventListener("htmx:sse:after:message", () => {
  const records = document.getElementById("records");
  while (records && records.childElementCount > RECORDS_MAX) records.lastElementChild.remove();
});
document.addEventListener("signed-out", () => location.reload());

// Charts: new samples arrive as elements of #samples; this code moves them into the charts.
const SAMPLES_MAX = 450;
const charts = [];
const columns = [[]];

function takeSamples() {
  const samples = document.getElementById("samples");
  if (!samples || !window.uPlot) return;
  for (const each of [...samples.children]) {
    const [time, ...values] = JSON.parse(each.value);
    if (time > (columns[0].at(-1) ?? 0)) {
      columns[0].push(time);
      values.forEach((value, index) => (columns[index + 1] ??= []).push(value));
    }
    each.remove();
  }
  while (columns[0].length > SAMPLES_MAX) columns.forEach((column) => column.shift());
  document.querySelectorAll(".chart").forEach((place, index) => {
    const data = [columns[0], columns[index + 1] ?? []];
    if (charts[index]) charts[index].setData(data);
    else charts[index] = drawn(place, data);
  });
}

function drawn(place, data) {
  const style = getComputedStyle(place);
  const axis = { stroke: style.color, grid: { stroke: "#8883", width: 1 }, ticks: { stroke: "#8883", width: 1 } };
  const values = (_, ticks) => ticks.map((tick) => Intl.NumberFormat("en", { notation: "compact" }).format(tick));
  return new uPlot(
    {
      width: place.clientWidth,
      height: 140,
      legend: { show: false },
      cursor: { show: false },
      scales: { y: { range: (_, low, high) => [0, Math.max(high ?? 0, 1)] } },
      axes: [axis, { ...axis, values, size: 48 }],
      series: [{}, { stroke: style.getPropertyValue("--good"), width: 2, spanGaps: false }],
    },
    data,
    place,
  );
}

document.addEventListener("htmx:sse:after:message", takeSamples);
addEventListener("resize", () => {
  document.querySelectorAll(".chart").forEach((place, index) => {
    charts[index]?.setSize({ width: place.clientWidth, height: 140 });
  });
});
takeSamples();
