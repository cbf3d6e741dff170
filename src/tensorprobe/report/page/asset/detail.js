"use strict";
// A call and its values beside the page, and one of the values in detail.

const STATISTICS = ["max", "min", "mean", "norm"];
const NOT_METRICS = new Set(["call", "place", "status", "reason", "row", "basis", "name", "slot", "module_path"]);

let opener = null;

/** Open what is chosen, or close the panel. */
function drawDetail() {
  const panel = document.getElementById("detail");
  const row = selection.pair === "" ? null : Number(selection.pair);
  const call = row !== null && isRow(row) ? store.callOf(row) : selection.call === "" ? -1 : Number(selection.call);
  if (!(row !== null && isRow(row)) && !(call >= 0 && call < store.callCount)) {
    closePanel(panel);
    return;
  }
  if (panel.hidden) opener = document.activeElement;
  const isNew = panel.hidden;
  panel.hidden = false;
  document.body.classList.add("has_detail");
  panel.replaceChildren(drawDetailHead(call, row), make("div", { class: "detail_body" }, call >= 0 && drawValues(call, row), row !== null && isRow(row) && drawPair(row), call >= 0 && drawCall(call, row)));
  panel.scrollTop = 0;
  if (isNew && opener && opener !== document.body && !opener.closest(".pair_box, .chart")) panel.querySelector("h2")?.focus({ preventScroll: true });
}

function isRow(row) {
  return Number.isInteger(row) && row >= 0 && row < store.rowCount;
}

function closePanel(panel) {
  panel.replaceChildren();
  panel.hidden = true;
  document.body.classList.remove("has_detail");
  if (opener?.isConnected) opener.focus({ preventScroll: true });
  opener = null;
}

function closeDetail() {
  choose({ pair: "", call: "" }, { isStep: true });
}

function drawDetailHead(call, row) {
  const name = row !== null && isRow(row) ? store.rowName(row) : store.callName(call);
  const title = word(row !== null && isRow(row) ? (store.isRun ? "detail.tensor" : "detail.pair") : "detail.call");
  const link = makeCopyButton(() => location.href, word("detail.copy_link"));
  const close = make("button", { type: "button", class: "close", "aria-label": word("detail.close"), title: word("detail.close"), onclick: closeDetail }, "✕");
  return make("header", { class: "detail_head" },
    make("div", { class: "detail_title" }, make("h2", { tabindex: -1 }, title), link, close),
    makeName(name));
}

/** All values of the call, to go from one to the next. */
function drawValues(call, row) {
  const rows = store.rowsOfCall(call);
  return rows.length > 0 && make("section", { class: "detail_part" }, make("h4", {}, word("detail.values", { count: rows.length })),
    make("ul", { class: "value_list" }, rows.map((one) => drawValueLine(one, row))));
}

function drawCall(call, row) {
  return make("section", { class: "detail_part" },
    make("h3", {}, word("detail.call")),
    drawCallFacts(call),
    drawSidesOfCall(call),
    drawHow(call, row));
}

function drawCallFacts(call) {
  const lines = [];
  for (const side of ["reference", "candidate"]) {
    const name = store.isRun ? null : store.ofCall(side, call);
    if (name) lines.push(makeLine(word(`side.${side}`), makeName(name)));
  }
  const module = store.ofCall("module", call);
  if (module) lines.push(makeLine(wordOf("column", "module"), makeModuleLink(module)));
  if (store.ofCall("role", call)) lines.push(makeLine(wordOf("column", "role"), [makePill("role", store.ofCall("role", call)), " ", store.ofCall("because", call)]));
  if (store.data.places?.length > 1) lines.push(makeLine(wordOf("column", "place"), store.ofCall("place", call)));
  for (const name of ["error", "input_error", "tolerance", "truth_reference", "truth_candidate", "max_abs", "norm", "mean"]) {
    const value = store.ofCall(name, call);
    if (value !== null && value !== "") lines.push(makeLine(columnTitle(name), formatNumber(value)));
  }
  return makeTable(word("detail.call"), null, lines);
}

function drawValueLine(one, row) {
  const status = store.ofRow("status", one);
  const name = store.rowName(one);
  const call = store.callName(store.callOf(one));
  const slot = name.startsWith(`${call}.`) ? name.slice(call.length + 1) : name;
  const value = store.isRun ? store.ofRow("max", one) : store.ofRow("error", one);
  return make("li", {}, make("button", { type: "button", class: "value_line", "aria-current": one === row ? "true" : null, onclick: () => choosePair(one) },
    make("code", {}, slot), status ? makePill("status", status) : null, make("span", { class: "is_number" }, formatNumber(value))));
}

/** Both sides' lines: the verdict has them; a server gives those of any other call. */
function drawSidesOfCall(call) {
  const { verdict } = store.data;
  const box = make("div", { class: "detail_sides" });
  if (verdict?.call === call && verdict.sides) box.append(drawSides(verdict.sides) ?? "");
  else {
    const names = store.isRun ? ["location"] : ["location_reference", "location_candidate"];
    for (const name of names) {
      const text = store.ofCall(name, call);
      if (text) box.append(make("p", { class: "location" }, make("small", {}, columnTitle(name)), make("code", {}, text)));
      box.append(drawStack(store.stackOf(name.replace("location_", ""), call)) ?? "");
    }
    if (service && !store.isRun) askService(`api/source?call=${call}`).then((sides) => sides && box.replaceChildren(drawSides(sides.sides ?? sides) ?? ""))
      .catch((error) => box.append(note(error.message)));
  }
  return box;
}

function drawHow(call, row) {
  if (store.isRun) return null;
  const lines = [["rule", store.ofCall("rule", call)], ["basis", row === null ? null : store.ofRow("basis", row)], ["is_framework_made", store.ofCall("is_framework_made", call) || null]];
  const known = lines.filter(([, value]) => value !== null && value !== "");
  return known.length > 0 && make("div", {}, make("h4", {}, word("detail.how")), makeTable(word("detail.how"), null, known.map(([name, value]) => makeLine(columnTitle(name), typeof value === "boolean" ? formatNumber(value) : value))));
}

function drawPair(row) {
  const status = store.ofRow("status", row);
  const reason = store.ofRow("reason", row);
  const distribution = make("div", { class: "distribution" });
  fillDistribution(distribution, row);
  return make("section", { class: "detail_part" },
    make("h3", {}, word(store.isRun ? "detail.tensor" : "detail.pair"), " ", status ? makePill("status", status) : null),
    reason && make("p", {}, reason),
    store.isRun ? null : drawStatistics(row),
    drawMetrics(row),
    distribution);
}

function drawStatistics(row) {
  const cell = (name) => store.ofRow(name, row);
  const facts = ["dtype", "shape", "requires_grad", "value", "checksum"].map((name) => [name, cell(`reference_${name}`), cell(`candidate_${name}`)]);
  const lines = facts.filter(([, ...both]) => both.some((value) => value !== null && value !== "")).map(([name, reference, candidate]) => makeLine(wordOf("column", name), showFact(reference), showFact(candidate), "", ""));
  for (const name of STATISTICS) {
    const [reference, candidate] = [cell(`reference_${name}`), cell(`candidate_${name}`)];
    if (reference === null && candidate === null) continue;
    lines.push(makeLine(wordOf("column", name), ...[reference, candidate, cell(`${name}_difference`), cell(`${name}_relative_difference`)].map(formatNumber)));
  }
  if (!lines.length) return null;
  const head = ["", word("side.reference"), word("side.candidate"), word("detail.difference"), word("detail.relative")];
  return make("div", { class: "statistics" }, make("h4", {}, word("detail.statistics")), makeTable(word("detail.statistics"), head, lines));
}

function showFact(value) {
  if (Array.isArray(value)) return value.join(" × ");
  return typeof value === "boolean" ? formatNumber(value) : value;
}

/** Every number that the row has and that is not shown above. */
function drawMetrics(row) {
  const isStatistic = (name) => /^(reference|candidate)_/.test(name) || /^(max|min|mean|norm)_(relative_)?difference$/.test(name);
  const names = Object.keys(store.rows).map(withoutSuffix).filter((name) => !NOT_METRICS.has(name) && (store.isRun || !isStatistic(name)));
  const found = names.map((name) => [name, store.ofRow(name, row)]).filter(([, value]) => value !== null && value !== "");
  const more = Object.entries(store.details[row]?.metrics ?? {}).filter(([name, value]) => !names.includes(name) && value !== null);
  const items = [...found, ...more].map(([name, value]) => make("div", { class: "metric" }, make("dt", {}, columnTitle(name)), make("dd", {}, store.isTextCached(name) || Array.isArray(value) ? showFact(value) : formatNumber(value))));
  return items.length > 0 && make("div", {}, make("h4", {}, word("detail.metrics")), make("dl", { class: "metrics" }, items));
}
