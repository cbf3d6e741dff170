"use strict";
// The values themselves: a histogram of both sides and of their difference, and a heat map of the worst slice.

const service = JSON.parse(document.getElementById("service")?.textContent ?? "null");

/** Ask the server that shows this page; a file on disk has none. */
async function askService(path) {
  const answer = await fetch(`${path}&token=${encodeURIComponent(service.token)}`);
  if (!answer.ok) throw new Error(word("failure.service", { status: answer.status }));
  return answer.json();
}

async function fillDistribution(box, row) {
  const known = store.details[row];
  if (!known && !service) {
    box.append(note(word("distribution.not_here")));
    return;
  }
  try {
    if (!known) box.append(note(word("distribution.asking")));
    const detail = known ?? (await askService(`api/pair?row=${row}`));
    store.details[row] = detail;
    if (!box.isConnected && known === undefined) return;
    box.replaceChildren();
    setTimeout(() => drawDistribution(box, detail), 0);
  } catch (error) {
    box.replaceChildren(make("p", { class: "notice is_bad" }, String(error.message)));
  }
}

function drawDistribution(box, detail) {
  if (detail.histogram) drawHistograms(box, detail.histogram);
  if (detail.heat) drawHeatMaps(box, detail.heat);
  if (!detail.histogram && !detail.heat) box.append(note(detail.reason ?? word("distribution.nothing")));
}

function drawHistograms(box, histogram) {
  const sides = ["reference", "candidate"].filter((side) => histogram[side]?.length);
  if (sides.length && histogram.edges?.length) {
    const chart = addChart(box, word(store.isRun ? "distribution.values_run" : "distribution.values"));
    const looks = { reference: { color: colour("blue"), dash: "solid" }, candidate: { color: colour("orange"), dash: "dash" } };
    const traces = sides.map((side) => makeSteps(histogram.edges, histogram[side], store.isRun ? "" : word(`side.${side}`), looks[side]));
    drawChart(chart, word("distribution.values"), traces, histogramLayout(sides.length > 1));
  }
  const lost = (histogram.not_finite ?? []).reduce((sum, count) => sum + count, 0);
  if (lost) box.append(note(word("distribution.not_finite", { count: formatCount(lost) })));
  if (histogram.sampled) box.append(note(word("distribution.sampled", { text: histogram.sampled })));
  if (histogram.difference?.length) {
    const chart = addChart(box, word("distribution.difference"));
    drawChart(chart, word("distribution.difference"), [makeSteps(histogram.difference_edges, histogram.difference, "", { color: colour("red"), dash: "solid" })], histogramLayout(false));
  }
}

/** The outline of a histogram; two of them can be told apart by the line, not by the colour alone. */
function makeSteps(edges, counts, name, line) {
  const x = edges.map(Number);
  const y = [...counts.map(Number), Number(counts.at(-1))];
  return { type: "scatter", mode: "lines", x, y, name, line: { ...line, shape: "hv", width: 1.5 }, fill: "tozeroy", fillcolor: `${line.color}22`, hovertemplate: "%{x:.3g}: %{y:,}<extra></extra>" };
}

function histogramLayout(hasLegend) {
  return { showlegend: hasLegend, legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 }, margin: { l: 52, r: 10, t: hasLegend ? 28 : 8, b: 30 },
    yaxis: { rangemode: "tozero", title: { text: word("distribution.elements") } }, xaxis: { nticks: 6, exponentformat: "e" } };
}

function addChart(box, title, name = "chart is_short") {
  const chart = make("div", { class: name });
  box.append(make("figure", {}, make("figcaption", {}, title), chart));
  return chart;
}

function drawHeatMaps(box, heat) {
  const found = ["reference", "candidate", "difference"].filter((name) => heat[name]?.length);
  const frame = make("div", { class: "heat_maps" });
  box.append(make("h4", {}, word("distribution.slice", { title: heat.title ?? "" })), frame);
  const range = sharedRange(found.filter((name) => name !== "difference").map((name) => heat[name]));
  for (const name of found) {
    const isDifference = name === "difference";
    const chart = addChart(frame, isDifference ? word("detail.difference") : word(`side.${name}`), "chart is_square");
    drawHeatMap(chart, heat[name], isDifference ? null : range, isDifference);
  }
}

function sharedRange(tables) {
  const values = tables.flat(2).map(numberOf).filter((value) => value !== null && Number.isFinite(value));
  return values.length ? values.reduce(([least, most], value) => [Math.min(least, value), Math.max(most, value)], [Infinity, -Infinity]) : null;
}

function drawHeatMap(chart, table, range, isDifference) {
  const z = table.map((line) => line.map(numberOf));
  const size = Math.max(0, ...z.flat().filter(Number.isFinite).map(Math.abs)) || 1;
  const trace = {
    type: "heatmap",
    z,
    colorscale: isDifference ? [[0, "#0072b2"], [0.5, colour("surface")], [1, "#d55e00"]] : "Cividis",
    zmin: isDifference ? -size : range?.[0],
    zmax: isDifference ? size : range?.[1],
    colorbar: { thickness: 8, len: 1, tickfont: { size: 10 }, nticks: 4, exponentformat: "e" },
    hovertemplate: "[%{y}, %{x}]: %{z:.4g}<extra></extra>",
    hoverongaps: false,
  };
  const words = { name: word(isDifference ? "detail.difference" : "distribution.values"), size: formatNumber(size) };
  drawChart(chart, word("distribution.heat_label", words), [trace], { margin: { l: 30, r: 4, t: 4, b: 24 }, yaxis: { autorange: "reversed", nticks: 5 }, xaxis: { nticks: 5 } });
}
