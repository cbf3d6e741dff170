"use strict";
// Along the run: every call in the order of execution, its error on a log axis. A jump, a slow drift and noise look different.

const MAX_POINTS = 200; // of one series; more are reduced to the largest and the smallest of each stretch
const RUN_STATISTICS = ["max_abs", "norm", "mean", "max", "min"];
const SETTLED = new Set(["clean", "not compared", ""]);

let courseStatistic = "max_abs";
let courseRange = null;
let courseBox = null;

function drawCourse() {
  courseBox = make("div", { id: "course", class: "chart is_tall", tabindex: 0 });
  courseBox.addEventListener("keydown", stepAlongCourse);
  courseRange = null;
  const choice = store.isRun && drawStatisticChoice();
  const hint = word(store.isRun ? "course.hint_run" : "course.hint");
  const view = makeView("course", word("view.course"), note(hint), choice, courseBox, make("p", { id: "course_state", class: "note" }));
  afterPaint(drawCourseChart); // the page can be read before the library is unpacked
  return view;
}

function drawStatisticChoice() {
  const known = RUN_STATISTICS.filter((name) => store.has("calls", name));
  if (!known.includes(courseStatistic)) courseStatistic = known[0] ?? "max_abs";
  const select = make("select", { id: "course_statistic" }, known.map((name) => make("option", { value: name, selected: name === courseStatistic }, wordOf("column", name))));
  select.addEventListener("change", () => {
    courseStatistic = select.value;
    drawCourseChart();
  });
  return make("label", { class: "field" }, word("course.statistic"), " ", select);
}

let courseWatch = null;

/** The chart is drawn when it comes into sight: a filter of the table beneath it does not wait for it. */
function refreshCourse() {
  courseWatch?.disconnect();
  courseWatch = new IntersectionObserver((entries) => {
    if (!entries.some((entry) => entry.isIntersecting)) return;
    courseWatch.disconnect();
    setTimeout(drawCourseChart, 0);
  }, { rootMargin: "200px" });
  courseWatch.observe(courseBox);
  afterPaint(() => describeCourse(findShownCalls().reduce((sum, one) => sum + one, 0), false));
}

function describeCourse(count, isReduced) {
  document.getElementById("course_state").textContent = [
    word("course.count", { count: formatCount(count), all: formatCount(store.callCount) }),
    isReduced ? word("course.reduced") : "",
  ].filter(Boolean).join(" · ");
}

async function drawCourseChart() {
  const shown = findShownCalls();
  const calls = [];
  for (let call = 0; call < store.callCount; call += 1) if (shown[call]) calls.push(call);
  const series = store.isRun ? runSeries(calls) : comparisonSeries(calls);
  const values = series.flatMap((one) => one.values);
  const scale = new LogScale(values);
  const traces = series.map((one) => makeTrace(one, scale)).filter(Boolean);
  const isNarrow = courseBox.clientWidth < 600;
  const layout = {
    xaxis: { title: { text: word("course.axis") }, automargin: false, range: courseRange ?? [-0.5, Math.max(store.callCount, 2) - 0.5], tickformat: ",d", nticks: isNarrow ? 4 : 12 },
    yaxis: { ...scale.axis(), automargin: false, title: { text: store.isRun ? wordOf("column", courseStatistic) : word("course.error") } },
    showlegend: true,
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, font: { size: 11 } },
    margin: { l: 60, r: 12, t: isNarrow ? 110 : 56, b: 44 },
    shapes: [...placeShapes(), ...selectedShape()],
    annotations: placeAnnotations(),
    dragmode: "zoom",
    uirevision: `${selection.module} ${selection.place}`,
  };
  const label = word("course.label", { count: formatCount(calls.length) });
  const plotly = await drawChart(courseBox, label, traces, layout);
  if (plotly) listenToCourse();
  performance.mark("plot");
  describeCourse(calls.length, series.some((one) => one.isReduced));
}

function comparisonSeries(calls) {
  const error = (call) => numberOf(store.calls.error?.[call]);
  const isBad = (call) => !SETTLED.has(store.ofCall("role", call));
  const isBackward = (call) => store.ofCall("direction", call) === "backward";
  const isSource = (call) => ["source", "entered"].includes(store.ofCall("role", call));
  const truth = (side) => (call) => numberOf(store.calls[`truth_${side}`]?.[call]);
  const tolerance = (call) => numberOf(store.calls.tolerance?.[call]);
  const points = (isWanted) => calls.filter((call) => !isSource(call) && isWanted(call));
  return [
    makeSeries("course.tolerance", calls, tolerance, { line: { color: colour("text_faint"), width: 1, dash: "dot" }, isLine: true }),
    makeSeries("course.truth_reference", calls, truth("reference"), { line: { color: colour("green"), width: 1 }, marker: { color: colour("green"), size: 4, symbol: "square-open" }, isLine: true }),
    makeSeries("course.truth_candidate", calls, truth("candidate"), { line: { color: colour("purple"), width: 1 }, marker: { color: colour("purple"), size: 5, symbol: "x-thin-open" }, isLine: true }),
    makeSeries("course.forward", points((call) => !isBackward(call) && !isBad(call)), error, { marker: { color: colour("blue"), size: 6, symbol: "circle-open" } }),
    makeSeries("course.forward_bad", points((call) => !isBackward(call) && isBad(call)), error, { marker: { color: colour("orange"), size: 7, symbol: "circle" } }),
    makeSeries("course.backward", points((call) => isBackward(call) && !isBad(call)), error, { marker: { color: colour("blue"), size: 7, symbol: "triangle-down-open" } }),
    makeSeries("course.backward_bad", points((call) => isBackward(call) && isBad(call)), error, { marker: { color: colour("orange"), size: 8, symbol: "triangle-down" } }),
    makeSeries("course.source", calls.filter(isSource), error, { marker: { color: colour("red"), size: 14, symbol: "star", line: { color: colour("surface"), width: 1 } }, isKept: true }),
  ];
}

function runSeries(calls) {
  const value = (call) => numberOf(store.calls[courseStatistic]?.[call]);
  const isNonFinite = (call) => (store.calls.nan_count?.[call] ?? 0) > 0 || (store.calls.inf_count?.[call] ?? 0) > 0;
  const isBackward = (call) => store.ofCall("direction", call) === "backward";
  return [
    makeSeries("course.forward_run", calls.filter((call) => !isBackward(call) && !isNonFinite(call)), value, { marker: { color: colour("blue"), size: 6, symbol: "circle-open" } }),
    makeSeries("course.backward_run", calls.filter((call) => isBackward(call) && !isNonFinite(call)), value, { marker: { color: colour("purple"), size: 7, symbol: "triangle-down-open" } }),
    makeSeries("course.nonfinite", calls.filter(isNonFinite), (call) => {
      const found = value(call);
      return found === null || Number.isNaN(found) ? Infinity : found;
    }, { marker: { color: colour("red"), size: 9, symbol: "x" } }),
  ];
}

/** One kind of point: calls and values, reduced to what the chosen stretch can show. */
function makeSeries(key, calls, value, look) {
  const [first, last] = courseRange ?? [-Infinity, Infinity];
  const known = calls.filter((call) => call >= first && call <= last && value(call) !== null);
  const kept = look.isKept ? known : reduceCalls(known, value);
  return { name: word(key), calls: kept, values: kept.map(value), look, isReduced: kept.length < known.length };
}

/** The largest and the smallest of each stretch stay: a jump is never lost. */
function reduceCalls(calls, value) {
  if (calls.length <= MAX_POINTS) return calls;
  const kept = [];
  const size = calls.length / (MAX_POINTS / 2);
  for (let start = 0; start < calls.length; start += size) {
    const stretch = calls.slice(Math.floor(start), Math.floor(start + size));
    let least = stretch[0];
    let most = stretch[0];
    for (const call of stretch) {
      if (badness(value(call)) < badness(value(least))) least = call;
      if (badness(value(call)) > badness(value(most))) most = call;
    }
    kept.push(...[...new Set([least, most])].sort((one, other) => one - other));
  }
  return kept;
}

function makeTrace({ name, calls, values, look }, scale) {
  if (!calls.length) return null;
  return {
    type: "scatter",
    mode: look.isLine ? (look.marker && calls.length < MAX_POINTS / 2 ? "lines+markers" : "lines") : "markers",
    name,
    x: calls,
    y: values.map((value) => scale.place(value)),
    customdata: calls,
    text: calls.map((call, index) => describePoint(call, name, values[index])),
    hovertemplate: "%{text}<extra></extra>",
    ...(look.marker && { marker: look.marker }),
    ...(look.line && { line: look.line }),
  };
}

function describePoint(call, name, value) {
  const lines = [plain(shorten(store.callName(call), 90)), `${plain(name)}: <b>${formatNumber(value)}</b>`];
  const module = store.ofCall("module", call);
  const role = store.ofCall("role", call);
  if (module) lines.push(plain(shorten(module, 90)));
  if (role) lines.push(plain(wordOf("role", role)));
  return lines.join("<br>");
}

function placeStarts() {
  if ((store.data.places?.length ?? 0) < 2) return [];
  const starts = [];
  store.calls.place?.forEach((place, call) => {
    if (call === 0 || store.calls.place[call - 1] !== place) starts.push([call, place]);
  });
  return starts;
}

function placeShapes() {
  return placeStarts().slice(1).map(([call]) => ({ type: "line", x0: call - 0.5, x1: call - 0.5, yref: "paper", y0: 0, y1: 1, line: { color: colour("line_strong"), width: 1, dash: "dash" } }));
}

function placeAnnotations() {
  const starts = placeStarts();
  if (starts.length > 12) return [];
  return starts.map(([call, place]) => ({ x: call, xanchor: "left", yref: "paper", y: 1, yanchor: "top", showarrow: false, text: plain(shorten(store.placeName(place), 24)), font: { size: 10, color: colour("text_faint") } }));
}

function selectedShape() {
  if (selection.call === "") return [];
  const call = Number(selection.call);
  return [{ type: "line", x0: call, x1: call, yref: "paper", y0: 0, y1: 1, line: { color: colour("accent"), width: 1.5 } }];
}

function listenToCourse() {
  if (courseBox.dataset.isListening) return;
  courseBox.dataset.isListening = "yes";
  courseBox.on("plotly_click", ({ points }) => chooseCall(points[0].customdata));
  courseBox.on("plotly_relayout", (change) => {
    if ("xaxis.range[0]" in change) courseRange = [change["xaxis.range[0]"], change["xaxis.range[1]"]];
    else if ("xaxis.range" in change && Array.isArray(change["xaxis.range"])) courseRange = [...change["xaxis.range"]];
    else if (change["xaxis.autorange"]) courseRange = null;
    else return;
    if (store.callCount > MAX_POINTS) drawCourseChart();
  });
}

async function markCourse() {
  const plotly = await loadPlotly();
  if (!courseBox?.dataset.isListening) return; // it was drawn anew in the meantime
  await plotly.relayout(courseBox, { shapes: [...placeShapes(), ...selectedShape()] });
}

/** Left and right go from call to call, for who has no mouse. */
function stepAlongCourse(event) {
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!step) return;
  event.preventDefault();
  const shown = findShownCalls();
  let call = selection.call === "" ? (step > 0 ? -1 : store.callCount) : Number(selection.call);
  do call += step;
  while (call >= 0 && call < store.callCount && !shown[call]);
  if (call >= 0 && call < store.callCount) choose({ call: String(call), pair: "" });
}
