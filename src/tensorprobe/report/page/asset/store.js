"use strict";
// The data of the page: columns of calls and rows. Text columns hold indexes into one table of strings.

const COLUMNS_OF_CALL = ["place", "role", "module", "direction", "operation", "because", "rule", "input_error", "truth_reference",
  "truth_candidate", "location_reference", "location_candidate", "location", "is_framework_made"];
const NOT_SHOWN = new Set(["call", "place", "module_path"]);

class Store {
  constructor(data) {
    this.data = data;
    this.strings = data.strings ?? [];
    this.calls = spread(data.calls ?? {});
    this.rows = spread(data.rows ?? {});
    this.callCount = countLines(this.calls);
    this.rowCount = countLines(this.rows);
    this.isRun = data.kind === "run";
    this.details = data.details ?? {};
    this.cache = new Map();
  }

  text(index) {
    return index === null || index === undefined || index < 0 ? "" : this.strings[index];
  }

  has(table, column) {
    return column in this[table] || `${column}_s` in this[table];
  }

  cell(table, column, index) {
    const texts = this[table][`${column}_s`];
    if (texts) return this.text(texts[index]);
    return this[table][column]?.[index] ?? null;
  }

  ofCall(column, call) {
    if (call < 0 || call === null) return null;
    return column === "place" ? this.placeName(this.calls.place?.[call]) : this.cell("calls", column, call);
  }

  /** The frames that led to a call of one side, the innermost first; none where they are not in the file. */
  stackOf(side, call) {
    const stack = this.data.stacks?.[this.calls[`stack_${side}`]?.[call] ?? -1];
    return (Array.isArray(stack) ? stack : []).map((index) => this.text(index));
  }

  callOf(row) {
    return this.rows.call?.[row] ?? -1;
  }

  /** A cell of the table of all pairs: of the row, or of the call that it belongs to. */
  ofRow(column, row) {
    if (column === "row") return row;
    if (column === "place") return this.placeName(this.placeOf(row));
    if (this.has("rows", column)) return this.cell("rows", column, row);
    if (column === "module" && this.callOf(row) < 0) return this.cell("rows", "module_path", row);
    if (column === "role" && this.callOf(row) < 0) return this.isRun ? null : "not compared";
    return this.ofCall(column, this.callOf(row));
  }

  placeOf(row) {
    return this.rows.place?.[row] ?? this.calls.place?.[this.callOf(row)] ?? 0;
  }

  hasSeveralPlaces() {
    return (this.data.places?.length ?? 0) > 1;
  }

  placeName(place) {
    return this.data.places?.[place] ?? "";
  }

  /** Every column that the table can show. */
  columnNames() {
    const ofRows = Object.keys(this.rows).map(withoutSuffix).filter((name) => !NOT_SHOWN.has(name));
    const ofCalls = COLUMNS_OF_CALL.filter((name) => this.has("calls", name) && !ofRows.includes(name));
    return ["row", ...(this.isRun && this.has("calls", "name") ? ["name"] : []), ...ofRows, ...ofCalls];
  }

  isText(column) {
    if (column === "place") return true;
    const table = this.has("rows", column) ? "rows" : "calls";
    if (`${column}_s` in this[table]) return true;
    return typeof this[table][column]?.find((value) => value !== null && !["NaN", "Infinity", "-Infinity"].includes(value)) === "string";
  }

  isTextCached(column) {
    return this.remember(`is text ${column}`, () => this.isText(column));
  }

  /** Of a column, for each row: a number that sorts as the column does; NaN where there is nothing. None until it is prepared. */
  sortKeys(column) {
    return this.cache.get(`keys ${column}`) ?? null;
  }

  /** Texts are put in order in slices: fifty thousand names take longer than a reader should wait. */
  async prepareSortKeys(column) {
    const numbers = this.rows[`${column}_s`];
    const keys = numbers ? await this.rankNumbers(numbers) : await this.rankValues(column);
    this.cache.set(`keys ${column}`, keys);
  }

  /** A column of numbers of strings. */
  async rankNumbers(numbers) {
    const ranks = new Int32Array(this.strings.length).fill(-1);
    for (const number of numbers) if (number >= 0 && this.strings[number] !== "") ranks[number] = 0;
    const used = [];
    for (let number = 0; number < ranks.length; number += 1) if (ranks[number] === 0) used.push(number);
    const sorted = await sortInSlices(used, (first, second) => compareNaturally(this.strings[first], this.strings[second]));
    for (let rank = 0; rank < sorted.length; rank += 1) ranks[sorted[rank]] = rank;
    return Float64Array.from(numbers, (number) => (ranks[number] >= 0 ? ranks[number] : NaN));
  }

  /** Any other column: numbers, or the few words of a call. */
  async rankValues(column) {
    const values = this.valuesOf(column);
    const words = this.isText(column) ? await sortInSlices([...new Set(values)].filter((text) => text !== null), (first, second) => compareNaturally(String(first), String(second))) : null;
    const ranks = words && new Map(words.map((text, rank) => [text, rank]));
    return Float64Array.from(values, (value) => {
      if (value === null || value === "") return NaN;
      return ranks ? ranks.get(value) : value === "NaN" ? Infinity : Number(value);
    });
  }

  /** A column, a value for each row. */
  valuesOf(column) {
    const texts = this.rows[`${column}_s`];
    if (texts) return texts.map((index) => this.text(index));
    if (column in this.rows && column !== "place") return this.rows[column];
    return Array.from({ length: this.rowCount }, (_, row) => this.ofRow(column, row));
  }

  /** Which strings of the table contain a text, as flags. */
  stringsWith(text) {
    const lower = this.lowerStrings();
    const wanted = text.toLowerCase();
    const flags = new Uint8Array(lower.length);
    for (let index = 0; index < lower.length; index += 1) if (lower[index].includes(wanted)) flags[index] = 1;
    return flags;
  }

  lowerStrings() {
    return this.remember("lower", () => this.strings.map((one) => one.toLowerCase()));
  }

  /** The numbers of the strings that are paths of modules, each once. */
  moduleStrings() {
    return this.remember("modules", () => [...new Set([...(this.calls.module_s ?? []), ...(this.rows.module_path_s ?? [])])].filter((index) => index >= 0));
  }

  rowsOfCall(call) {
    const first = this.calls.first_row?.[call] ?? 0;
    return Array.from({ length: this.calls.row_count?.[call] ?? 0 }, (_, index) => first + index);
  }

  /** The names of a pair of calls as one: that of the reference, or of the candidate where there is none. */
  callName(call) {
    return this.ofCall("name", call) || this.ofCall("reference", call) || this.ofCall("candidate", call) || word("page.no_name");
  }

  rowName(row) {
    if (this.isRun) return [this.callName(this.callOf(row)), this.ofRow("slot", row)].filter(Boolean).join(".");
    return this.ofRow("reference_name", row) || this.ofRow("candidate_name", row) || word("page.no_name");
  }

  remember(key, compute) {
    if (!this.cache.has(key)) this.cache.set(key, compute());
    return this.cache.get(key);
  }
}

function countLines(table) {
  return Object.values(table).reduce((count, column) => Math.max(count, column.length), 0);
}

/** A column with one value in all lines has it once in the file. */
function spread(table) {
  const count = countLines(table);
  return Object.fromEntries(Object.entries(table).map(([name, column]) => [name, column.length < count ? new Array(count).fill(column[0]) : column]));
}

function withoutSuffix(name) {
  return name.endsWith("_s") ? name.slice(0, -2) : name;
}

function decodeBase64(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text); // browsers of 2025: several times as fast
  const letters = atob(text);
  const bytes = new Uint8Array(letters.length);
  for (let index = 0; index < letters.length; index += 1) bytes[index] = letters.charCodeAt(index);
  return bytes;
}

/** What base64 and gzip hide: the bytes of an element of the page. */
async function unpack(id) {
  const element = document.getElementById(id);
  const bytes = decodeBase64(element.textContent.trim());
  element.textContent = ""; // it is needed once, and large
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}
