"use strict";
// The verdict, and what it rests on: the call, both sides' source lines, inputs against outputs, the other differences.

const MAX_OTHERS = 8;

function drawVerdict() {
  const { verdict } = store.data;
  const tone = verdict.agrees ? "good" : ["source", "entered"].includes(verdict.kind) ? "bad" : "doubtful";
  const symbol = { good: "✓", bad: "✕", doubtful: "!" }[tone];
  return make(
    "section",
    { id: "view_verdict", class: `view verdict is_${tone}`, "aria-labelledby": "heading_verdict" },
    make("h2", { id: "heading_verdict", class: "verdict_kind", tabindex: -1 },
      make("span", { class: "verdict_symbol", "aria-hidden": "true" }, symbol),
      wordOf("kind", verdict.kind),
      makeViewLink("verdict", word("view.verdict"))),
    make("p", { class: "headline" }, verdict.headline),
    drawLead(verdict),
    verdict.evidence?.length > 0 && make("ul", { class: "evidence" }, verdict.evidence.map((text) => make("li", {}, text))),
    drawFacts(verdict),
    drawSides(verdict.sides),
    drawCommands(verdict.commands, verdict.script),
    drawOthers(store.data.others ?? []),
  );
}

/** A comparison says its sentences in English; in another language the page says the first of them too. */
function drawLead(verdict) {
  const name = verdict.sides?.candidate?.calls?.[0] ?? verdict.sides?.reference?.calls?.[0];
  if (language === "en" || !name) return null;
  const module = verdict.sides.candidate?.module ?? verdict.sides.reference?.module;
  const text = word(module ? "verdict.lead_module" : "verdict.lead", { kind: wordOf("kind", verdict.kind), call: name, module });
  return make("p", { class: "lead" }, text);
}

function drawFacts(verdict) {
  const facts = [...lossFacts(verdict.loss), ...effectFacts(verdict.effect), ...callFacts(verdict.call)];
  return facts.length > 0 && make("dl", { class: "facts" }, facts);
}

function makeFact(name, value, ...more) {
  return make("div", { class: "fact" }, make("dt", {}, name), make("dd", {}, make("strong", {}, value), more));
}

function lossFacts(loss) {
  if (!loss) return [];
  const difference = numberOf(loss.candidate) - numberOf(loss.reference);
  return [
    makeFact(word("verdict.loss"), formatLoss(loss.candidate), make("small", {}, word("verdict.loss_reference", { loss: formatLoss(loss.reference) }))),
    makeFact(word("verdict.loss_difference"), formatNumber(difference)),
  ];
}

function formatLoss(loss) {
  const number = numberOf(loss);
  return number !== null && Number.isFinite(number) ? String(Number(number.toPrecision(9))) : formatNumber(loss);
}

function effectFacts(effect) {
  if (effect === null || effect === undefined) return [];
  const share = Math.max(0, Math.min(1, numberOf(effect)));
  const meter = make("span", { class: "meter", "aria-hidden": "true" }, make("span", { style: `width:${share * 100}%` }));
  return [makeFact(word("verdict.effect"), formatShare(effect), meter)];
}

/** What went in against what came out: the jump is the evidence. */
function callFacts(call) {
  if (call === null || call === undefined) return [];
  const cells = ["input_error", "error", "tolerance"].map((name) => numberOf(store.ofCall(name, call)));
  if (cells[1] === null) return [];
  const scale = new LogScale(cells);
  const [bottom, top] = scale.axis().range;
  const bars = cells.map((value, index) => {
    const name = word(["verdict.error_in", "verdict.error_out", "verdict.tolerance"][index]);
    const width = value === null ? 0 : (100 * (scale.place(value) - bottom)) / (top - bottom);
    const bar = make("span", { class: `error_bar is_${["in", "out", "tolerance"][index]}`, "aria-hidden": "true" }, make("span", { style: `width:${width}%` }));
    return [make("span", { class: "error_name" }, name), bar, make("span", { class: "error_number" }, value === null ? word("page.unknown") : formatNumber(value))];
  });
  return [make("div", { class: "fact is_wide" }, make("dt", {}, word("verdict.in_and_out")), make("dd", { class: "error_bars" }, bars))];
}

function drawSides(sides) {
  if (!sides?.reference && !sides?.candidate) return null;
  return make("div", { class: "sides" }, ["reference", "candidate"].map((side) => drawSide(side, sides[side])));
}

function drawSide(side, found) {
  const heading = make("h3", {}, word(`side.${side}`));
  if (!found) return make("div", { class: `side is_${side}` }, heading, note(word("side.nothing")));
  return make(
    "div",
    { class: `side is_${side}` },
    heading,
    make("div", { class: "side_calls" }, (found.calls ?? []).map((name) => makeName(name))),
    found.module && make("p", { class: "side_module" }, word("side.module"), " ", makeModuleLink(found.module)),
    drawSource(found),
    drawStack(found.stack),
  );
}

function makeModuleLink(module) {
  return make("a", { href: addressOf({ ...NOTHING, module }) , onclick: (event) => {
    event.preventDefault();
    choose({ module }, { isStep: true });
  } }, make("code", {}, breakable(module)));
}

/** The recorded line with its neighbours; where the file is gone, the location as it was recorded. */
function drawSource(found) {
  const { source } = found;
  if (!source) return found.location && make("p", { class: "location" }, make("code", {}, found.location));
  const lines = source.lines.map((text, index) => {
    const number = source.first + index;
    const isIt = number === source.line;
    return make("li", { class: isIt ? "is_it" : null, "aria-current": isIt ? "true" : null, value: number }, make("code", {}, text || " "));
  });
  return make("figure", { class: "source" },
    make("figcaption", {}, make("code", {}, breakable(`${source.file}:${source.line}`)), makeCopyButton(`${source.file}:${source.line}`)),
    make("ol", { class: "source_lines", tabindex: 0, "aria-label": word("side.source_of", { file: source.file }) }, lines));
}

function drawStack(stack) {
  if (!stack?.length) return null;
  return make("details", { class: "stack" }, make("summary", {}, word("side.stack", { count: stack.length })),
    make("ol", {}, stack.map((line) => make("li", {}, make("code", {}, line)))));
}

function drawCommands(commands, script) {
  if (!commands?.length) return null;
  return make("div", { class: "commands" }, make("h3", {}, word("verdict.next")),
    commands.map(({ what, command }) => make("div", { class: "command" },
      make("span", { class: "command_what" }, wordOf("what", what)), make("code", { class: "command_line", tabindex: 0 }, command), makeCopyButton(command))),
    drawScript(script));
}

/** The script itself, for a bug report; where it cannot be made, why. */
function drawScript(script) {
  if (!script) return null;
  if (!script.text) return script.reason ? note(word("verdict.no_script", { reason: script.reason })) : null;
  const text = make("pre", { class: "command_line", tabindex: 0 }, make("code", { dir: "ltr" }, script.text));
  return make("div", { class: "command is_script" },
    make("span", { class: "command_what" }, word("verdict.script")),
    make("details", {}, make("summary", {}, make("code", {}, breakable(script.call))), text, note(word("verdict.script_tensors"))),
    makeCopyButton(script.text, word("verdict.copy_script")));
}

function drawOthers(others) {
  if (!others.length) return null;
  const rows = others.map((other) => {
    const isKnown = other.call !== null && other.call !== undefined;
    const code = make("code", {}, breakable(other.name ?? store.callName(other.call ?? -1)));
    const name = isKnown ? make("button", { type: "button", class: "link", onclick: () => chooseCall(other.call) }, code) : code;
    const place = store.hasSeveralPlaces() && other.place !== null && other.place !== undefined && make("small", { class: "other_place" }, store.placeName(other.place));
    const cells = [makePill("role", other.role), make("span", {}, name, place && " ", place), make("span", { dir: "auto" }, other.because), formatShare(other.effect), formatNumber(other.error), formatNumber(other.tolerance)];
    return make("tr", {}, cells.map((cell, index) => make("td", { class: index > 2 ? "is_number" : null }, cell)));
  });
  const head = ["role", "call", "because", "effect", "error", "tolerance"].map((name) => wordOf("column", name));
  const table = makeTable(word("verdict.others"), head, []);
  return make("div", { class: "others" }, make("h3", {}, word("verdict.others_count", { count: formatCount(others.length) })),
    make("div", {}, table, makeShortList(table.querySelector("tbody"), rows, MAX_OTHERS).slice(1)));
}

function chooseCall(call) {
  choose({ call: String(call), pair: "" }, { isStep: true });
}

function choosePair(row) {
  const call = store.callOf(row);
  choose({ pair: String(row), call: call < 0 ? "" : String(call) }, { isStep: true });
}
