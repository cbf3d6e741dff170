"use strict";
// Elements are made, never parsed: whatever a dump has as a name becomes text.

const SVG = "http://www.w3.org/2000/svg";

/** An element with attributes, listeners (`onclick: …`) and children, which are nodes, texts or nothing. */
function make(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function makeSvg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : SPOKEN.has(name) ? visible(String(value)) : String(value));
  }
  append(element, children);
  return element;
}

function append(element, children) {
  for (const child of children) {
    if (Array.isArray(child)) append(element, child);
    else if (child !== null && child !== undefined && child !== false) element.append(child instanceof Node ? child : visible(String(child)));
  }
}

const SPOKEN = new Set(["title", "aria-label"]);
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g;

/** A name with characters that turn the writing around, or that nobody sees, shows them as their codes. */
function visible(text) {
  return text.replace(UNSEEN, (found) => `\\u${found.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

/** A section of the page with its heading; the address of the view is `#view=…`. */
function makeView(name, title, ...children) {
  const heading = make("h2", { id: `heading_${name}`, tabindex: -1 }, title, makeViewLink(name, title));
  return make("section", { id: `view_${name}`, class: "view", "aria-labelledby": `heading_${name}` }, heading, children);
}

function makeViewLink(name, title) {
  const label = word("page.link_to", { title });
  // The contents have the same links: who listens to the page would only hear each of them twice.
  return make("a", { class: "anchor", href: `#view=${name}`, title: label, "aria-hidden": "true", tabindex: -1, onclick: (event) => followView(event, name) }, "#");
}

function note(...children) {
  return make("p", { class: "note" }, children);
}

/** A button that copies a text, and says that it did. */
function makeCopyButton(text, label = word("copy.button")) {
  const button = make("button", { type: "button", class: "copy", title: word("copy.title", { text: shorten(text, 80) }) }, label);
  button.addEventListener("click", async (event) => {
    event.stopPropagation();
    await copyText(typeof text === "function" ? text() : text);
    button.textContent = word("copy.done");
    announce(word("copy.done"));
    setTimeout(() => (button.textContent = label), 1500);
  });
  return button;
}

function shorten(text, limit) {
  const plain = typeof text === "function" ? "" : String(text);
  return plain.length > limit ? `${plain.slice(0, limit - 1)}…` : plain;
}

async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    copyBySelection(text); // a browser without a clipboard for files
  }
}

function copyBySelection(text) {
  const area = make("textarea", { class: "only_heard", "aria-hidden": "true" });
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

/** Says a text to who cannot see that something changed. */
function announce(text) {
  document.getElementById("announcer").textContent = text;
}

/** A name in the letters of code, which may break at its dots, and a button that copies it. */
function makeName(name) {
  return make("span", { class: "name" }, make("code", { dir: "ltr" }, breakable(name)), makeCopyButton(name));
}

function breakable(name) {
  return String(name)
    .split(/(?<=[._/])/)
    .flatMap((part) => [part, make("wbr")]);
}

const SYMBOLS = {
  equal: "=",
  close: "≈",
  different: "≠",
  "not comparable": "?",
  source: "★",
  entered: "→",
  drift: "∿",
  discontinuity: "⚡︎",
  propagated: "↳",
  clean: "✓",
  nonfinite: "✕",
  "not compared": "?",
};

/** A status or a role: a symbol, a word and a colour, so that none of them is needed alone. */
function makePill(group, name) {
  const kind = String(name).replaceAll(" ", "_");
  const known = Object.hasOwn(SYMBOLS, name);
  const symbol = make("span", { "aria-hidden": "true", class: "pill_symbol" }, known ? SYMBOLS[name] : "•");
  return make("span", { class: `pill ${known ? `is_${kind}` : ""}` }, symbol, wordOf(group, name));
}

/** A table of a few rows; cells are nodes or texts. The heading of a number stands above it. */
function makeTable(caption, head, rows) {
  const isNumber = (index) => rows[0]?.children[index]?.classList.contains("is_number");
  return make(
    "div",
    { class: "scroll_x", tabindex: 0, role: "region", "aria-label": caption },
    make(
      "table",
      { class: head ? "plain_table has_head" : "plain_table" },
      make("caption", { class: "only_heard" }, caption),
      head && make("thead", {}, make("tr", {}, head.map((cell, index) => make("th", { scope: "col", class: isNumber(index) ? "is_number" : null }, cell)))),
      make("tbody", {}, rows),
    ),
  );
}

function makeLine(heading, ...cells) {
  return make("tr", {}, make("th", { scope: "row" }, heading), cells.map((cell) => make("td", {}, cell)));
}

/** The first of many nodes, which are made when they are wanted, with a button for the rest. */
function fillLazily(container, items, limit, draw) {
  container.append(...items.slice(0, limit).map(draw));
  if (items.length <= limit) return;
  const button = make("button", { type: "button", class: "quiet" }, word("page.show_all", { count: formatCount(items.length) }));
  const line = make("li", { role: "none" }, button);
  button.addEventListener("click", (event) => {
    event.stopPropagation();
    line.replaceWith(...items.slice(limit).map(draw));
  });
  container.append(line);
}

/** The first of many nodes, and a button for the rest. */
function makeShortList(container, items, limit) {
  container.append(...items.slice(0, limit));
  if (items.length <= limit) return [container];
  const button = make("button", { type: "button", class: "quiet" }, word("page.show_all", { count: formatCount(items.length) }));
  button.addEventListener("click", () => {
    container.append(...items.slice(limit));
    button.remove();
  });
  return [container, button];
}
