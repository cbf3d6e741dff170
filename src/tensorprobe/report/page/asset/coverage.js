"use strict";
// Steps by ranks, and what the verdict does not cover: calls without a partner, what could not be compared.

const MAX_LISTED = 20;

function drawMatrix() {
  const { matrix } = store.data;
  if (!matrix?.steps?.length || !matrix.ranks?.length) return null;
  const head = [word("matrix.step"), ...matrix.ranks.map((rank) => rank)];
  const lines = matrix.steps.map((step, index) => make("tr", {}, make("th", { scope: "row" }, step === null ? "–" : String(step)), matrix.ranks.map((rank, column) => drawPlace(step, rank, matrix.kinds?.[index]?.[column]))));
  return makeView("matrix", word("view.matrix"), note(word("matrix.hint")), make("div", { class: "matrix" }, makeTable(word("view.matrix"), head, lines)));
}

const KIND_TONES = { agree: "good", source: "bad", entered: "bad" };
const TONE_SYMBOLS = { good: "✓", bad: "✕", doubtful: "!" };

function drawPlace(step, rank, kind) {
  if (!kind) return make("td", { class: "place is_missing" }, "–");
  const place = (store.data.places ?? []).findIndex((name) => name === `step${step}/${rank}` || name === `${step}/${rank}`);
  const tone = KIND_TONES[kind] ?? "doubtful";
  const text = wordOf("kind", kind);
  const inner = [make("span", { "aria-hidden": "true" }, TONE_SYMBOLS[tone]), make("span", { class: "place_kind" }, text)];
  const label = word("matrix.cell", { step, rank, kind: text });
  const button = make("button", { type: "button", "aria-label": label, title: label, onclick: () => choose({ place: selection.place === String(place) ? "" : String(place) }, { isStep: true }) }, inner);
  return make("td", { class: `place is_${tone}`, "data-place": place }, place < 0 ? make("span", { class: "place_still", title: label }, inner) : button);
}

function markMatrix() {
  for (const cell of document.querySelectorAll(".place[data-place]")) cell.classList.toggle("is_chosen", selection.place !== "" && cell.dataset.place === selection.place);
}

function drawCoverage() {
  return makeView("coverage", word("view.coverage"), drawShares(store.data.coverage), drawStatements(store.data.statements), drawCircumstances(), drawUnpaired(), drawProblems());
}

function drawShares(coverage) {
  if (!coverage) return null;
  const calls = coverage.reference_calls + coverage.candidate_calls - coverage.idle_reference - coverage.idle_candidate;
  const shares = [["coverage.calls", coverage.paired_reference + coverage.paired_candidate, calls], ["coverage.values", coverage.compared_values, coverage.values]];
  const facts = shares.map(([key, part, all]) => {
    const share = all > 0 ? part / all : 1;
    const meter = make("span", { class: "meter", "aria-hidden": "true" }, make("span", { style: `width:${Math.max(0, Math.min(1, share)) * 100}%` }));
    return makeFact(word(key), formatShare(share), meter, make("small", {}, word("coverage.of", { part: formatCount(part), all: formatCount(all) })));
  });
  const counts = [["coverage.idle_reference", coverage.idle_reference], ["coverage.idle_candidate", coverage.idle_candidate], ["coverage.uncompared", coverage.uncompared_values]];
  facts.push(...counts.filter(([, count]) => count > 0).map(([key, count]) => makeFact(word(key), formatCount(count))));
  return make("dl", { class: "facts" }, facts);
}

function drawStatements(statements) {
  if (!statements?.length) return null;
  const lines = statements.map(({ label, text, mark }) => make("tr", { class: mark ? `is_${mark}` : null }, make("th", { scope: "row" }, wordOf("label", label)), make("td", { class: `statement${text.startsWith(" ") ? " is_more" : ""}` }, mark === "bad" || mark === "doubtful" ? make("span", { class: "mark", "aria-hidden": "true" }, mark === "bad" ? "✕ " : "! ") : null, text.trimStart())));
  return make("div", { class: "statements" }, make("h3", {}, word("coverage.statements")), makeTable(word("coverage.statements"), null, lines));
}

function drawCircumstances() {
  const found = store.data.circumstances ?? [];
  if (!found.length) return null;
  const lines = found.map((one) => (typeof one === "string" ? makeLine("", one) : makeLine(make("code", {}, String(one.key)), showValue(one.reference), showValue(one.candidate), (one.places ?? []).join(", "))));
  return make("div", {}, make("h3", {}, word("coverage.circumstances")), makeTable(word("coverage.circumstances"), ["", word("side.reference"), word("side.candidate"), wordOf("column", "place")], lines));
}

function showValue(value) {
  return value === null || value === undefined ? word("page.nothing") : typeof value === "object" ? JSON.stringify(value) : String(value);
}

function drawUnpaired() {
  const unpaired = store.data.unpaired ?? [];
  if (!unpaired.length) return null;
  const box = make("div", { id: "unpaired" });
  const fill = () => {
    const shown = unpaired.filter((one) => isInside(one.module_path ?? "", selection.module));
    const lines = shown.map((one) => make("tr", {}, [wordOf("side", one.side), make("code", {}, breakable(one.call)), one.module_path, one.nearest && make("code", {}, breakable(one.nearest)), one.why, one.place].map((cell) => make("td", {}, cell))));
    const head = ["side", "call", "module", "nearest", "why", "place"].map((name) => wordOf("column", name));
    const table = makeTable(word("coverage.unpaired"), head, []);
    const title = make("h3", {}, word("coverage.unpaired_count", { count: formatCount(shown.length) }));
    box.replaceChildren(title, ...(shown.length ? [table, ...makeShortList(table.querySelector("tbody"), lines, MAX_LISTED).slice(1)] : []));
  };
  fill();
  observe(["module"], fill);
  return box;
}

function drawProblems() {
  const problems = store.data.problems ?? [];
  if (!problems.length) return null;
  const list = make("ul", { class: "problems" });
  return make("div", {}, make("h3", {}, word("coverage.problems")), makeShortList(list, problems.map((text) => make("li", {}, text)), MAX_LISTED));
}
