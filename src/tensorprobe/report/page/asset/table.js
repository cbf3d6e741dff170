"use strict";
// All pairs. Only the rows in sight are in the document, so that fifty thousand scroll as smoothly as fifty.

const ROW_HEIGHT = 28;
const MARGIN_ROWS = 8;
const PRINTED_ROWS = 60;

class PairTable {
  constructor() {
    this.rows = new Uint32Array(0);
    this.active = 0;
    this.isPrinted = false;
    this.head = make("thead", { role: "rowgroup" });
    this.body = make("tbody", { role: "rowgroup" });
    this.drawn = new Map(); // the rows in the document, by their place
    this.grid = make("table", { class: "pair_table", role: "grid", tabindex: 0, "aria-label": word("view.table"), "aria-describedby": "table_keys" }, this.head, this.body);
    this.sheet = make("style", {});
    this.box = make("div", { class: "pair_box", id: "pair_box" }, this.sheet, this.grid);
    this.box.addEventListener("scroll", () => this.redraw(), { passive: true });
    this.grid.addEventListener("keydown", (event) => this.press(event));
    this.body.addEventListener("click", (event) => this.click(event));
    this.waiting = 0;
    this.completing = 0;
  }

  /** Filter and sort again; what is to be sorted by must be known first. */
  refresh() {
    const [name] = this.sorting();
    if (!name || !store.columnNames().includes(name) || store.sortKeys(name)) {
      this.show();
      return;
    }
    this.drawHead();
    this.box.setAttribute("aria-busy", "true");
    store.prepareSortKeys(name).then(() => setTimeout(() => this === pairTable && this.refresh(), 0));
  }

  show() {
    this.box.removeAttribute("aria-busy");
    this.rows = this.sort(findShownRows());
    const chosen = selection.pair === "" ? -1 : this.rows.indexOf(Number(selection.pair));
    this.active = Math.max(0, chosen);
    this.box.scrollTop = chosen > 0 ? this.heightBefore(chosen) - this.box.clientHeight / 2 : 0;
    this.drawHead();
    this.draw();
    const text = word("table.count", { count: formatCount(this.rows.length), all: formatCount(store.rowCount) });
    document.getElementById("filter_count").textContent = text;
    announce(text);
    performance.mark("table");
  }

  sort(rows) {
    const [name, isDown] = this.sorting();
    const keys = store.sortKeys(name);
    if (!keys) return rows;
    const direction = isDown ? -1 : 1;
    const known = rows.filter((row) => !Number.isNaN(keys[row]));
    const unknown = rows.filter((row) => Number.isNaN(keys[row]));
    known.sort((first, second) => direction * (keys[first] - keys[second]) || first - second); // between two infinite ones it is NaN
    const sorted = new Uint32Array(rows.length);
    sorted.set(known);
    sorted.set(unknown, known.length);
    return sorted;
  }

  sorting() {
    return selection.sort.startsWith("-") ? [selection.sort.slice(1), true] : [selection.sort, false];
  }

  /** A click sorts by the largest first where there are numbers, then the other way, then not at all. */
  sortBy(name) {
    const first = store.isText(name) || name === "row" ? name : `-${name}`;
    const second = first === name ? `-${name}` : name;
    choose({ sort: selection.sort === first ? second : selection.sort === second ? "" : first });
  }

  drawHead() {
    const names = chosenColumns();
    const [sorted, isDown] = this.sorting();
    this.placeColumns(names);
    this.grid.setAttribute("aria-colcount", names.length);
    this.grid.setAttribute("aria-rowcount", this.rows.length + 1);
    const cells = names.map((name, index) => {
      const order = name !== sorted ? "none" : isDown ? "descending" : "ascending";
      const arrow = { none: "", ascending: " ▲", descending: " ▼" }[order];
      const button = make("button", { type: "button", title: columnTitle(name), "data-column": name, onclick: () => this.sortBy(name) }, columnTitle(name), make("span", { "aria-hidden": "true" }, arrow));
      return make("th", { scope: "col", role: "columnheader", "aria-sort": order, class: `column_${index}${this.isNumber(name) ? " is_number" : ""}` }, button);
    });
    this.head.replaceChildren(make("tr", { role: "row", "aria-rowindex": 1 }, cells));
  }

  /** One rule a column: the browser lays out a row without measuring the others. */
  placeColumns(names) {
    const all = names.reduce((sum, name) => sum + columnWidth(name), 0);
    let left = 0;
    this.sheet.textContent = names.map((name, index) => {
      const rule = `.column_${index} { left: ${(100 * left) / all}%; width: ${(100 * columnWidth(name)) / all}% }`;
      left += columnWidth(name);
      return rule;
    }).join("\n");
    this.grid.style.minWidth = `${all}px`;
  }

  isNumber(name) {
    return name !== "status" && name !== "role" && (name === "row" || !store.isTextCached(name));
  }

  redraw() {
    if (!this.waiting) this.waiting = requestAnimationFrame(() => this.extend());
  }

  heightBefore(index) {
    return index * ROW_HEIGHT;
  }

  /** All rows in sight anew. */
  draw() {
    this.drawn.clear();
    this.body.replaceChildren();
    this.body.style.height = `${Math.max(1, this.rows.length) * ROW_HEIGHT}px`;
    if (!this.rows.length) this.body.append(make("tr", { role: "row", class: "nothing" }, make("td", { role: "gridcell" }, word("table.nothing"))));
    this.extend();
    this.mark();
  }

  /** The rows that came into sight; the elements of those that left it are used again. */
  extend() {
    this.waiting = 0;
    const inSight = Math.ceil((this.box.clientHeight || 600) / ROW_HEIGHT);
    const top = Math.floor(this.box.scrollTop / ROW_HEIGHT);
    const margin = this.hasJumped(top, inSight) ? this.completeLater() : MARGIN_ROWS;
    const first = this.isPrinted ? 0 : Math.max(0, top - margin);
    const last = Math.min(this.rows.length, this.isPrinted ? PRINTED_ROWS : top + inSight + margin + 1);
    const spare = [...this.drawn].filter(([index]) => index < first || index >= last).map(([index, line]) => (this.drawn.delete(index), line));
    const names = chosenColumns();
    const known = this.drawn.size ? Math.min(...this.drawn.keys()) : Infinity;
    const [above, below] = [[], []];
    for (let index = first; index < last; index += 1) {
      if (this.drawn.has(index)) continue;
      const line = this.fillRow(spare.shift() ?? this.makeRow(names), index, names);
      (index < known ? above : below).push(line);
      this.drawn.set(index, line);
    }
    for (const line of spare) line.remove();
    this.body.style.paddingTop = `${this.isPrinted ? 0 : first * ROW_HEIGHT}px`;
    placeLines(this.body, above, below);
  }

  /** The scroll bar was dragged: nothing that is drawn is in sight. */
  hasJumped(top, inSight) {
    if (this.isPrinted || !this.drawn.size) return false;
    const drawn = [...this.drawn.keys()];
    return top > Math.max(...drawn) || top + inSight < Math.min(...drawn);
  }

  /** While it is dragged, rows out of sight would be drawn for nothing: they follow when it rests. */
  completeLater() {
    clearTimeout(this.completing);
    this.completing = setTimeout(() => this.redraw(), 120);
    return 0;
  }

  makeRow(names) {
    const cells = names.map((name, place) => make("td", { role: "gridcell", class: `column_${place}${this.isNumber(name) ? " is_number" : ""}` }));
    return make("tr", { role: "row" }, cells);
  }

  fillRow(line, index, names) {
    const row = this.rows[index];
    line.id = `line_${index}`;
    line.setAttribute("aria-rowindex", index + 2);
    this.markRow(line, index);
    line.dataset.index = index;
    line.dataset.row = row;
    for (const [place, name] of names.entries()) fillCell(line.children[place], name, row, !this.isNumber(name));
    return line;
  }

  markRow(line, index) {
    line.className = [index === this.active ? "is_active" : "", index % 2 ? "is_odd" : ""].join(" ").trim();
    line.setAttribute("aria-selected", String(selection.pair === String(this.rows[index])));
  }

  /** The row that is open, and the one that the keyboard is at. */
  mark() {
    this.grid.setAttribute("aria-activedescendant", this.rows.length ? `line_${this.active}` : "");
    for (const [index, line] of this.drawn) this.markRow(line, index);
  }

  click(event) {
    const line = event.target.closest("tr[data-index]");
    if (!line || String(getSelection())) return;
    this.active = Number(line.dataset.index);
    choosePair(Number(line.dataset.row));
  }

  press(event) {
    if (event.target !== this.grid) return;
    const page = Math.max(1, Math.floor(this.box.clientHeight / ROW_HEIGHT) - 2);
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    if (event.key in steps) this.moveTo(this.active + steps[event.key]);
    else if (event.key === "Enter" && this.rows.length) choosePair(this.rows[this.active]);
    else return;
    event.preventDefault();
  }

  moveTo(index) {
    this.active = Math.max(0, Math.min(this.rows.length - 1, index));
    const top = this.heightBefore(this.active);
    const room = this.box.clientHeight - 2 * ROW_HEIGHT;
    if (top < this.box.scrollTop) this.box.scrollTop = top;
    else if (top > this.box.scrollTop + room) this.box.scrollTop = top - room;
    this.extend();
    this.mark();
  }

  print(isPrinted) {
    this.isPrinted = isPrinted;
    this.drawHead();
    this.draw();
  }

  /** All rows that pass the filters, in the order shown, with the columns shown. */
  toCsv() {
    const names = chosenColumns();
    const lines = [names.map(quoteCsv).join(",")];
    for (const row of this.rows) lines.push(names.map((name) => quoteCsv(store.ofRow(name, row))).join(","));
    return `${lines.join("\r\n")}\r\n`;
  }
}

/** Lines that are in the document already, in their order, stay where they are. */
function placeLines(body, above, below) {
  const isInPlace = (line, index, lines) => line.parentNode === body && (index === 0 || lines[index - 1].nextSibling === line);
  if (above.length && !(above.length === body.children.length && above.every(isInPlace))) body.prepend(...above);
  if (below.length && !(below.length === body.children.length && below.every(isInPlace))) body.append(...below);
}

/** What the cell shows already stays: most cells beneath each other are alike. */
function fillCell(cell, name, row, isText) {
  const value = store.ofRow(name, row);
  if (cell.shown === value) return;
  cell.shown = value;
  const content = drawCell(name, value);
  if (typeof content !== "string") cell.replaceChildren(content);
  else if (cell.firstChild?.nodeType === Node.TEXT_NODE) cell.firstChild.nodeValue = visible(content);
  else cell.replaceChildren(visible(content));
  if (isText && typeof content === "string") cell.title = visible(content);
  else if (cell.title) cell.removeAttribute("title");
}

/** A cell of CSV. What a spreadsheet would take for a formula gets an apostrophe. */
function quoteCsv(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return String(value);
  const text = String(value);
  const isNumber = text !== "" && Number.isFinite(Number(text));
  const safe = /^[=+\-@\t\r]/.test(text) && !isNumber && text !== "-Infinity" ? `'${text}` : text;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

let pairTable = null;

function drawTable() {
  pairTable = new PairTable();
  const copy = makeCopyButton(() => pairTable.toCsv(), word("table.copy_csv"));
  const view = makeView("table", word(store.isRun ? "view.table_run" : "view.table"),
    drawFilters(),
    make("div", { class: "toolbar is_table" }, drawColumnChoice(), copy, make("span", { id: "table_keys", class: "note" }, word("table.keys"))),
    pairTable.box,
    make("p", { class: "only_printed" }, word("table.printed", { count: PRINTED_ROWS })));
  setTimeout(() => pairTable.refresh(), 0);
  return view;
}
