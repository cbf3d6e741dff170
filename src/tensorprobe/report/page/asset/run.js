"use strict";
// One run by itself: the first NaN or Inf and what fed it, gradient norms, values near overflow, lost digits.

function drawRunVerdict() {
  const run = store.data.run ?? {};
  const found = run.nonfinite;
  const truth = run.truth;
  const tone = found || (truth && !truth.is_right) ? "bad" : "good";
  return make("section", { id: "view_verdict", class: `view verdict is_${tone}`, "aria-labelledby": "heading_verdict" },
    make("h2", { id: "heading_verdict", class: "verdict_kind", tabindex: -1 }, make("span", { class: "verdict_symbol", "aria-hidden": "true" }, TONE_SYMBOLS[tone]), word(found ? "run.nonfinite" : "run.finite"), makeViewLink("verdict", word("view.verdict"))),
    truth && make("p", { class: "headline" }, truth.headline),
    truth?.evidence?.length && make("ul", { class: "evidence" }, truth.evidence.map((line) => make("li", {}, line))),
    make("p", { class: truth ? null : "headline" }, found ? found.headline : word("run.finite_headline", { count: formatCount(store.rowCount) })),
    found && drawNonFinite(found),
    drawStatements(run.statements));
}

function drawNonFinite(found) {
  const parts = [];
  if (found.call !== null && found.call !== undefined) {
    const location = store.ofCall("location", found.call);
    parts.push(make("div", { class: "side_calls" }, makeName(store.callName(found.call)), make("button", { type: "button", onclick: () => chooseCall(found.call) }, word("run.open"))));
    if (location) parts.push(make("p", { class: "location" }, make("code", {}, location)));
  }
  if (found.fed_by?.length) parts.push(make("h3", {}, word("run.fed_by")), makeRowTable(word("run.fed_by"), found.fed_by));
  if (found.others?.length) parts.push(...drawOtherPlaces(found.others));
  return make("div", { class: "nonfinite" }, parts);
}

/** Where else NaN or Inf arises or comes in: a sentence each, which opens its call. */
function drawOtherPlaces(others) {
  const lines = others.map((one) => make("li", {}, make("button", { type: "button", class: "link", onclick: () => chooseCall(one.call) }, one.headline)));
  const title = make("h3", {}, word("run.others", { count: formatCount(others.length) }));
  return [title, ...makeShortList(make("ul", { class: "evidence" }), lines, MAX_OTHERS)];
}

/** A few tensors of the run as a table. */
function makeRowTable(caption, rows) {
  const names = ["dtype", "shape", "max", "min", "mean", "norm", "nan_count", "inf_count"].filter((name) => store.has("rows", name));
  const lines = rows.filter(isRow).map((row) => make("tr", {}, make("td", {}, makeRowButton(row)), names.map((name) => make("td", { class: store.isText(name) ? null : "is_number" }, showFact(store.isText(name) ? store.ofRow(name, row) : formatNumber(store.ofRow(name, row)))))));
  return makeTable(caption, [word("detail.tensor"), ...names.map((name) => wordOf("column", name))], lines);
}

function makeRowButton(row) {
  return make("button", { type: "button", class: "link", onclick: () => choosePair(row) }, make("code", {}, breakable(store.rowName(row))));
}

function drawGradients() {
  const gradients = store.data.run?.gradients ?? [];
  if (!gradients.length) return null;
  const norms = gradients.map((one) => numberOf(one.norm));
  const nameOf = (one) => (store.hasSeveralPlaces() ? `${one.parameter} · ${store.placeName(one.place)}` : one.parameter);
  const lines = makeBarLines(gradients, norms, nameOf, (one) => one.call);
  return makeBarView("gradients", word("run.gradients_hint"), wordOf("column", "parameter"), wordOf("column", "norm"), lines);
}

function drawLostDigits() {
  const lost = store.data.run?.lost_digits;
  if (!lost?.length) return null;
  const worst = [...lost].sort((one, other) => numberOf(other.digits) - numberOf(one.digits) || one.call - other.call);
  const digits = worst.map((one) => numberOf(one.digits));
  const lines = makeBarLines(worst, digits, (one) => store.callName(one.call), (one) => one.call, true);
  return makeBarView("lost_digits", word("run.lost_digits_hint"), wordOf("column", "call"), wordOf("column", "digits"), lines);
}

function makeBarView(name, hint, subject, measure, lines) {
  const table = makeTable(word(`view.${name}`), [subject, measure], []);
  table.classList.add("bar_table");
  return makeView(name, word(`view.${name}`), note(hint), table, makeShortList(table.querySelector("tbody"), lines, MAX_LISTED).slice(1));
}

/** Lines of a table with a bar each; norms on a log scale, digits on a plain one. */
function makeBarLines(items, values, nameOf, callOf, isLinear = false) {
  const scale = new LogScale(values);
  const [bottom, top] = isLinear ? [0, Math.max(1, ...values.filter(Number.isFinite))] : scale.axis().range;
  return items.map((item, index) => {
    const value = values[index];
    const place = isLinear ? Math.min(value ?? 0, top) : scale.place(value);
    const width = value === null || Number.isNaN(value) ? 100 : Math.max(1, (100 * (place - bottom)) / (top - bottom));
    const isBad = value === null || !Number.isFinite(value) || value === 0;
    const call = callOf(item);
    const name = make("code", {}, breakable(nameOf(item)));
    const link = call === null || call === undefined ? name : make("button", { type: "button", class: "link", onclick: () => chooseCall(call) }, name);
    return make("tr", {}, make("td", {}, link), make("td", {}, make("span", { class: "bar_cell" }, make("span", { class: "bar_track", "aria-hidden": "true" }, make("span", { class: `bar_value ${isBad && !isLinear ? "is_source" : ""}`, style: `width:${width}%` })), make("span", { class: "tree_number" }, formatNumber(value)))));
  });
}

function drawOverflow() {
  const found = store.data.run?.overflow ?? [];
  const hint = note(word(found.length ? "run.overflow_hint" : "run.overflow_none"));
  if (!found.length) return makeView("overflow", word("view.overflow"), hint);
  const lines = found.map((one) => make("tr", {}, make("td", {}, makeRowButton(one.row)), make("td", {}, one.dtype), make("td", { class: "is_number" }, formatNumber(one.max_abs)),
    make("td", {}, make("span", { class: "bar_cell" }, make("span", { class: "bar_track", "aria-hidden": "true" }, make("span", { class: "bar_value is_drift", style: `width:${Math.max(0, Math.min(1, Number(one.share))) * 100}%` })), make("span", { class: "tree_number" }, formatShare(one.share))))));
  const table = makeTable(word("view.overflow"), [word("detail.tensor"), ...["dtype", "max_abs", "share"].map((name) => wordOf("column", name))], []);
  return makeView("overflow", word("view.overflow"), hint, table, makeShortList(table.querySelector("tbody"), lines, MAX_LISTED).slice(1));
}

function drawSettings() {
  const settings = store.data.run?.settings;
  if (!settings || !Object.keys(settings).length) return null;
  const lines = Object.entries(settings).map(([name, value]) => makeLine(make("code", {}, name), showValue(value)));
  return makeView("settings", word("view.settings"), makeTable(word("view.settings"), null, lines), drawProblems());
}
