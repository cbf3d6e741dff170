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
    drawInTurn(box, drawDistribution(box, detail));
  } catch (error) {
    box.replaceChildren(make("p", { class: "notice is_bad" }, String(error.message)));
  }
}

/** One chart a frame, while the panel is there: the reader scrolls on in the meantime. */
function drawInTurn(box, draws) {
  if (!draws.length) return;
  requestAnimationFrame(() => setTimeout(() => {
    if (!box.isConnected) return;
    draws[0]();
    drawInTurn(box, draws.slice(1));
  }, 0));
}

/** The places of the charts; what is returned draws into them. */
function drawDistribution(box, detail) {
  const draws = [];
  if (detail.histogram) draws.push(...drawHistograms(box, detail.histogram));
  if (detail.heat) draws.push(...drawHeatMaps(box, detail.heat));
  if (!detail.histogram && !detail.heat) box.append(note(detail.reason ?? word("distribution.nothing")));
  return draws;
}

function drawHistograms(box, histogram) {
  const draws = [];
  const sides = ["reference", "candidate"].filter((side) => histogram[side]?.length);
  if (sides.length && histogram.edges?.length) {
    const looks = { reference: { colour: "blue", line: "solid" }, candidate: { colour: "orange", line: "dashed" } };
    const counted = sides.map((side) => ({ name: store.isRun ? "" : word(`side.${side}`), counts: histogram[side], look: looks[side] }));
    draws.push(drawHistogram(box, word("distribution.values"), histogram.edges, counted));
  }
  const lost = (histogram.not_finite ?? []).reduce((sum, count) => sum + count, 0);
  if (lost) box.append(note(word("distribution.not_finite", { count: formatCount(lost) })));
  if (histogram.sampled) box.append(note(word("distribution.sampled", { text: histogram.sampled })));
  if (histogram.difference?.length) {
    const look = { colour: "red", line: "solid" };
    draws.push(drawHistogram(box, word("distribution.difference"), histogram.difference_edges, [{ name: "", counts: histogram.difference, look }]));
  }
  return draws;
}

/** The outlines of histograms; two of them can be told apart by the line, not by the colour alone. */
function drawHistogram(box, title, edges, counted) {
  const chart = addChart(box, title);
  const x = edges.map(Number);
  const most = Math.max(1, ...counted.flatMap(({ counts }) => counts.map(Number)));
  const series = counted.map(({ name, counts, look }) => ({ name, x, y: [...counts.map(Number), Number(counts.at(-1))], look: { ...look, isStepped: true } }));
  return () => new Chart(chart).draw({
    label: title,
    series,
    x: { range: [x[0], x.at(-1)], ticks: roundTicks([x[0], x.at(-1)], 5) },
    y: { range: [0, most * 1.05], ticks: roundTicks([0, most], 5, true), title: word("distribution.elements") },
    margin: { left: 66, right: 24, top: 6, bottom: 24 },
    describe: (one, index) => [one.name, `${formatNumber(x[index])} … ${formatNumber(x[Math.min(index + 1, x.length - 1)])}`, word("distribution.count", { count: formatCount(one.y[index]) })].filter(Boolean),
  });
}

function addChart(box, title, name = "chart is_short") {
  const chart = make("div", { class: name });
  box.append(make("figure", {}, make("figcaption", {}, title), chart));
  return chart;
}
