"use strict";
// Along the run: every call in the order of execution, its error on a log axis. A jump, a slow drift and noise look different.

const MAX_POINTS = 400; // of one series; more are reduced to the largest and the smallest of each stretch
const RUN_STATISTICS = ["max_abs", "norm", "mean", "max", "min"];
const SETTLED = ["clean", "not compared"];
const SOURCES = ["source", "entered"];

let courseStatistic = "max_abs";
let courseRange = null;
let courseBox = null;
let courseChart = null;

function drawCourse() {
  courseBox = make("div", { id: "course", class: "chart is_tall" });
  courseChart = new Chart(courseBox, { pick: chooseCall, zoom: zoomCourse });
  courseBox.addEventListener("keydown", stepAlongCourse);
  courseRange = null;
  const choice = store.isRun && drawStatisticChoice();
  const hint = word(store.isRun ? "course.hint_run" : "course.hint");
  const whole = make("button", { type: "button", id: "course_whole", class: "quiet", hidden: true, onclick: () => zoomCourse(null) }, word("course.whole"));
  const state = make("div", { class: "course_foot" }, make("p", { id: "course_state", class: "note" }), whole);
  setTimeout(drawCourseChart, 0); // after the verdict and the table
  return makeView("course", word("view.course"), note(hint), choice, courseBox, state);
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

function drawCourseChart() {
  const shown = findShownCalls();
  const calls = [];
  for (let call = 0; call < store.callCount; call += 1) if (shown[call]) calls.push(call);
  const series = (store.isRun ? runSeries(calls) : comparisonSeries(calls)).filter((one) => one.calls.length);
  const scale = new LogScale(series.flatMap((one) => one.values));
  const range = courseRange ?? [-0.5, Math.max(store.callCount, 2) - 0.5];
  const isNarrow = courseBox.clientWidth < 600;
  courseChart.draw({
    label: word("course.label", { count: formatCount(calls.length) }),
    series: series.map(({ name, calls: x, values, look }) => ({ name, x, y: values.map((value) => scale.place(value)), names: x, values, look })),
    x: { range, ticks: roundTicks(range, isNarrow ? 4 : 10, true), title: word("course.axis") },
    y: { ...scale.axis(), title: store.isRun ? wordOf("column", courseStatistic) : word("course.error") },
    marks: courseMarks(),
    margin: { left: 64, right: 12, top: 10, bottom: 44 },
    describe: (one, index) => describePoint(one.names[index], one.name, one.values[index]),
  });
  document.getElementById("course_whole").hidden = courseRange === null;
  performance.mark("plot");
  describeCourse(calls.length, series.some((one) => one.isReduced));
}

/** A stretch of calls, or all of them; what is narrower than two calls shows nothing. */
function zoomCourse(range) {
  const ends = range && [Math.max(-0.5, range[0]), Math.min(store.callCount - 0.5, range[1])];
  const isWhole = !ends || (ends[0] === -0.5 && ends[1] === store.callCount - 0.5);
  if (!isWhole && ends[1] - ends[0] < 2) return;
  courseRange = isWhole ? null : ends;
  drawCourseChart();
}

function comparisonSeries(calls) {
  const column = (name) => (call) => numberOf(store.calls[name]?.[call]);
  const error = column("error");
  const [settled, source, backward] = [SETTLED, SOURCES, ["backward"]].map((wanted) => flagStrings(wanted));
  const { role_s: roles = [], direction_s: directions = [] } = store.calls;
  const isSource = (call) => source[roles[call]];
  const kinds = [[], [], [], []];
  for (const call of calls) if (!isSource(call)) kinds[2 * (backward[directions[call]] ?? 0) + (settled[roles[call]] || !(roles[call] >= 0) ? 0 : 1)].push(call);
  return [
    makeSeries("course.tolerance", calls, column("tolerance"), { colour: "text_faint", line: "dotted" }),
    makeSeries("course.truth_reference", calls, column("truth_reference"), { colour: "green", line: "solid", symbol: "square", size: 4 }),
    makeSeries("course.truth_candidate", calls, column("truth_candidate"), { colour: "purple", line: "dashed", symbol: "cross", size: 5 }),
    makeSeries("course.forward", kinds[0], error, { colour: "blue", symbol: "circle", size: 6 }),
    makeSeries("course.forward_bad", kinds[1], error, { colour: "orange", symbol: "circle", size: 7, isFilled: true }),
    makeSeries("course.backward", kinds[2], error, { colour: "blue", symbol: "triangle", size: 7 }),
    makeSeries("course.backward_bad", kinds[3], error, { colour: "orange", symbol: "triangle", size: 8, isFilled: true }),
    makeSeries("course.source", calls.filter(isSource), error, { colour: "red", symbol: "star", size: 17, isFilled: true, isKept: true }),
  ];
}

function runSeries(calls) {
  const value = (call) => numberOf(store.calls[courseStatistic]?.[call]);
  const isNonFinite = (call) => (store.calls.nan_count?.[call] ?? 0) > 0 || (store.calls.inf_count?.[call] ?? 0) > 0;
  const isBackward = (call) => store.ofCall("direction", call) === "backward";
  return [
    makeSeries("course.forward_run", calls.filter((call) => !isBackward(call) && !isNonFinite(call)), value, { colour: "blue", symbol: "circle", size: 6 }),
    makeSeries("course.backward_run", calls.filter((call) => isBackward(call) && !isNonFinite(call)), value, { colour: "purple", symbol: "triangle", size: 7 }),
    makeSeries("course.nonfinite", calls.filter(isNonFinite), (call) => {
      const found = value(call);
      return found === null || Number.isNaN(found) ? Infinity : found;
    }, { colour: "red", symbol: "cross", size: 8 }),
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

function describePoint(call, name, value) {
  const module = store.ofCall("module", call);
  const role = store.ofCall("role", call);
  return [shorten(store.callName(call), 90), `${name}: ${formatNumber(value)}`, module && shorten(module, 90), role && wordOf("role", role)].filter(Boolean);
}

/** Where a step or a rank begins, and the chosen call. */
function courseMarks() {
  const starts = placeStarts();
  const marks = starts.map(([call, place]) => ({ x: call - 0.5, name: "is_place", text: starts.length > 12 ? "" : shorten(store.placeName(place), 24) }));
  return selection.call === "" ? marks : [...marks, { x: Number(selection.call), name: "is_chosen" }];
}

function placeStarts() {
  if (!store.hasSeveralPlaces()) return [];
  const starts = [];
  store.calls.place?.forEach((place, call) => {
    if (call === 0 || store.calls.place[call - 1] !== place) starts.push([call, place]);
  });
  return starts;
}

function markCourse() {
  if (courseChart?.content) courseChart.mark(courseMarks()); // otherwise it will be drawn
}

/** Left and right go from call to call, plus and minus zoom, for who has no mouse. */
function stepAlongCourse(event) {
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  const factor = { "+": 0.5, "-": 2 }[event.key];
  if (event.ctrlKey || event.altKey || event.metaKey || !(step || factor)) return;
  event.preventDefault();
  if (factor) {
    zoomAround(factor);
    return;
  }
  const shown = findShownCalls();
  let call = selection.call === "" ? (step > 0 ? -1 : store.callCount) : Number(selection.call);
  do call += step;
  while (call >= 0 && call < store.callCount && !shown[call]);
  if (call >= 0 && call < store.callCount) choose({ call: String(call), pair: "" });
}

/** Around the chosen call, or the middle. */
function zoomAround(factor) {
  const { range } = courseChart.content.x;
  const middle = selection.call === "" ? (range[0] + range[1]) / 2 : Number(selection.call);
  const width = (range[1] - range[0]) * factor;
  zoomCourse([middle - width / 2, middle + width / 2]);
}
