"use strict";
// What the reader has chosen. Every view draws itself from it, and the address repeats it.

const NOTHING = { view: "", module: "", place: "", status: "", role: "", filter: "", sort: "", columns: "", call: "", pair: "" };
const FILTERS = ["module", "place", "status", "role", "filter"];

const selection = { ...NOTHING };
const observers = [];

/** Call `react` whenever one of these keys changes. */
function observe(keys, react) {
  observers.push({ keys, react });
}

/** Choose: everything that depends on a changed key is drawn again. `isStep`: the back button returns from here. */
function choose(change, { isStep = false } = {}) {
  const changed = Object.keys(change).filter((key) => selection[key] !== change[key]);
  if (!changed.length) return;
  Object.assign(selection, change);
  writeAddress(isStep);
  notify(changed);
}

function notify(changed) {
  for (const { keys, react } of [...observers]) if (keys.some((key) => changed.includes(key))) react(changed);
}

/** The members of a list in the address; the words have no comma. */
function chosenOf(key) {
  return new Set(selection[key] ? selection[key].split(",") : []);
}

function toggleChosen(key, member) {
  const chosen = chosenOf(key);
  if (!chosen.delete(member)) chosen.add(member);
  choose({ [key]: [...chosen].sort().join(",") });
}

function isFiltered() {
  return FILTERS.some((key) => selection[key] !== "");
}

function clearFilters() {
  choose(Object.fromEntries(FILTERS.map((key) => [key, ""])), { isStep: true });
}

/** Is a module path the chosen one, or inside it? */
function isInside(path, module) {
  return !module || path === module || (path !== null && path.startsWith(`${module}.`));
}

/** For each call: does it pass the filters by module, place, role and text? */
function findShownCalls() {
  const { calls } = store;
  const shown = new Uint8Array(store.callCount).fill(1);
  const roles = chosenOf("role");
  const inModule = selection.module ? flagModules(selection.module) : null;
  const inRole = roles.size ? flagStrings(roles) : null;
  const withText = selection.filter ? store.stringsWith(selection.filter) : null;
  const place = selection.place === "" ? -1 : Number(selection.place);
  const searched = ["name_s", "reference_s", "candidate_s", "module_s", "operation_s"].map((name) => calls[name]).filter(Boolean);
  for (let call = 0; call < store.callCount; call += 1) {
    if (place >= 0 && calls.place?.[call] !== place) shown[call] = 0;
    else if (selection.module && !inModule[calls.module_s?.[call]]) shown[call] = 0;
    else if (roles.size && calls.role_s && !inRole[calls.role_s[call]]) shown[call] = 0;
    else if (withText && !searched.some((column) => column[call] >= 0 && withText[column[call]])) shown[call] = 0;
  }
  return shown;
}

/** The numbers of the rows that pass all filters. */
function findShownRows() {
  const { rows, calls } = store;
  const statuses = chosenOf("status");
  const roles = chosenOf("role");
  const withText = selection.filter ? store.stringsWith(selection.filter) : null;
  const place = selection.place === "" ? -1 : Number(selection.place);
  const inStatus = statuses.size ? flagStrings(statuses) : null;
  const inRole = roles.size ? flagStrings(roles) : null;
  const inModule = selection.module ? flagModules(selection.module) : null;
  const ofRow = ["reference_name_s", "candidate_name_s", "slot_s", "reason_s"].map((name) => rows[name]).filter(Boolean);
  const ofCall = ["name_s", "reference_s", "candidate_s", "module_s", "operation_s"].map((name) => calls[name]).filter(Boolean);
  const found = [];
  for (let row = 0; row < store.rowCount; row += 1) {
    const call = store.callOf(row);
    if (place >= 0 && store.placeOf(row) !== place) continue;
    if (statuses.size && rows.status_s && !inStatus[rows.status_s[row]]) continue;
    if (roles.size && !(call < 0 ? roles.has("not compared") : inRole[calls.role_s?.[call]])) continue;
    if (selection.module && !inModule[call < 0 ? rows.module_path_s?.[row] : calls.module_s?.[call]]) continue;
    if (withText && !contains(ofRow, row, withText) && !(call >= 0 && contains(ofCall, call, withText))) continue;
    found.push(row);
  }
  return Uint32Array.from(found);
}

function contains(columns, index, flags) {
  return columns.some((column) => column[index] >= 0 && flags[column[index]]);
}

function flagStrings(wanted) {
  const flags = new Uint8Array(store.strings.length);
  for (const text of wanted) flags[store.strings.indexOf(text)] = 1; // each text is there once
  return flags;
}

function flagModules(module) {
  const flags = new Uint8Array(store.strings.length);
  for (const index of store.moduleStrings()) if (isInside(store.strings[index], module)) flags[index] = 1;
  return flags;
}
