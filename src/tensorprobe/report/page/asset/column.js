"use strict";
// Which columns the table has, how wide they are and what a cell shows.

const USUAL_COLUMNS = {
  comparison: ["row", "status", "role", "reference_name", "error", "tolerance", "max_abs_error", "cosine", "candidate_name", "module", "reference_dtype", "reference_shape"],
  run: ["row", "name", "slot", "dtype", "shape", "max", "min", "mean", "norm", "nan_count", "inf_count", "module"],
};
const NARROW_COLUMNS = { comparison: ["status", "error", "reference_name"], run: ["name", "slot", "max", "min"] };
const PRINTED_COLUMNS = { comparison: ["row", "status", "role", "reference_name", "error", "tolerance"], run: ["row", "name", "slot", "dtype", "max", "min", "nan_count"] };
const COLUMN_WIDTHS = { row: 72, max_abs_error: 124, status: 132, role: 132, reference_name: 330, candidate_name: 330, name: 330, slot: 120, module: 200, because: 300, reason: 260, rule: 140, place: 120,
  location_reference: 320, location_candidate: 320, location: 320, reference_value: 160, candidate_value: 160, reference_data_name: 300, candidate_data_name: 300, reference_dtype: 100, candidate_dtype: 100,
  reference_shape: 110, candidate_shape: 110, dtype: 90, shape: 110 };
const NUMBER_WIDTH = 104;

function chosenColumns() {
  const known = new Set(store.columnNames());
  const wanted = selection.columns ? selection.columns.split(",") : usualColumns();
  const found = wanted.filter((name) => known.has(name));
  return found.length ? found : ["row"];
}

function usualColumns() {
  if (pairTable?.isPrinted) return PRINTED_COLUMNS[store.isRun ? "run" : "comparison"];
  const isNarrow = window.innerWidth < 640;
  const usual = (isNarrow ? NARROW_COLUMNS : USUAL_COLUMNS)[store.isRun ? "run" : "comparison"];
  const several = store.hasSeveralPlaces() && !isNarrow;
  return several ? [usual[0], "place", ...usual.slice(1)] : usual;
}

function columnWidth(name) {
  return COLUMN_WIDTHS[name] ?? (store.isText(name) ? 150 : NUMBER_WIDTH);
}

function columnTitle(name) {
  const known = wordOf("column", name);
  return known === name ? name.replaceAll("_", " ") : known;
}

/** The content of a cell: pills for status and role, names as code, numbers short. */
function drawCell(name, value) {
  if (name === "row") return formatCount(value);
  if (value === null || value === "") return "";
  if (name === "status" || name === "role") return makePill(name, value);
  if (Array.isArray(value)) return value.join(" × ");
  return typeof value === "string" && store.isTextCached(name) ? value : formatNumber(value);
}

/** The button that opens the list of all columns. */
function drawColumnChoice() {
  const list = make("div", { class: "column_list", role: "group", "aria-label": word("table.columns") });
  for (const name of store.columnNames()) {
    const box = make("input", { type: "checkbox", value: name });
    box.checked = chosenColumns().includes(name);
    box.addEventListener("change", () => {
      const wanted = new Set(chosenColumns());
      if (box.checked) wanted.add(name);
      else wanted.delete(name);
      choose({ columns: [...wanted].join(",") });
    });
    list.append(make("label", {}, box, " ", columnTitle(name)));
  }
  const reset = make("button", { type: "button", class: "quiet", onclick: () => choose({ columns: "" }) }, word("table.usual_columns"));
  const choice = make("details", { class: "column_choice" }, make("summary", {}, word("table.columns")), make("div", { class: "popup" }, reset, list));
  observe(["columns"], () => {
    const shown = chosenColumns();
    for (const box of list.querySelectorAll("input")) box.checked = shown.includes(box.value);
  });
  choice.addEventListener("keydown", (event) => {
    if (event.key === "Escape") choice.open = false;
  });
  return choice;
}
