"use strict";
// What filters the page: status, role, place, module and text. What is active is always in sight, with a way out.

function drawFilters() {
  const search = make("input", { type: "search", id: "filter_text", placeholder: word("filter.text"), "aria-label": word("filter.text"), value: selection.filter, spellcheck: "false", autocomplete: "off" });
  let waiting = 0;
  search.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => choose({ filter: search.value }), 80);
  });
  const count = make("output", { id: "filter_count", class: "filter_count" });
  return make("div", { class: "filters", role: "search", "aria-label": word("filter.label") },
    search,
    drawChoices("status", "rows"),
    drawChoices("role", "calls"),
    drawPlaceChoice("filter_place"),
    count);
}

/** One button for each word that occurs, with how often. */
function drawChoices(key, table) {
  const counts = countWords(key, table);
  if (!counts.length) return null;
  const buttons = counts.map(([name, count]) => {
    const button = make("button", { type: "button", class: "chip", "data-key": key, "data-name": name, "aria-pressed": String(chosenOf(key).has(name)) }, makePill(key, name), make("span", { class: "chip_count" }, formatCount(count)));
    button.addEventListener("click", () => toggleChosen(key, name));
    return button;
  });
  return make("div", { class: "chips", role: "group", "aria-label": wordOf("column", key) }, make("span", { class: "chips_name", "aria-hidden": "true" }, wordOf("column", key)), buttons);
}

function countWords(key, table) {
  const counts = new Map();
  const column = store[table][`${key}_s`] ?? [];
  for (const index of column) counts.set(index, (counts.get(index) ?? 0) + 1);
  return [...counts].filter(([index]) => index >= 0).map(([index, count]) => [store.text(index), count]).sort(bySeverity);
}

const STATUS_ORDER = ["different", "not comparable", "close", "equal"];

function bySeverity([first, firstCount], [second, secondCount]) {
  const rank = (name) => (SEVERITY.includes(name) ? -SEVERITY.indexOf(name) : STATUS_ORDER.includes(name) ? STATUS_ORDER.indexOf(name) - 10 : 1);
  return rank(first) - rank(second) || secondCount - firstCount;
}

function drawPlaceChoice(id) {
  const places = store.data.places ?? [];
  if (places.length < 2) return null;
  const options = [make("option", { value: "" }, word("filter.all_places")), places.map((name, place) => make("option", { value: place, selected: selection.place === String(place) }, name))];
  const select = make("select", { id, "aria-label": word("filter.place") }, options);
  select.addEventListener("change", () => choose({ place: select.value }, { isStep: true }));
  return select;
}

/** The strip under the bar: every active filter, each with a button that takes it away. */
function drawActiveFilters() {
  const strip = make("div", { id: "active_filters", class: "active_filters", hidden: true });
  markFilters(strip);
  return strip;
}

function markFilters(strip = document.getElementById("active_filters")) {
  const names = { module: (text) => text, filter: (text) => `“${text}”`, place: (place) => store.placeName(Number(place)), status: listWords("status"), role: listWords("role") };
  const active = FILTERS.filter((key) => selection[key] !== "");
  strip.hidden = active.length === 0;
  strip.replaceChildren(
    make("span", {}, word("filter.active")),
    ...active.map((key) => make("button", { type: "button", class: "active_filter", "aria-label": word("filter.remove", { name: wordOf("column", key) }), onclick: () => choose({ [key]: "" }, { isStep: true }) },
      make("small", {}, wordOf("column", key)), " ", make("code", {}, shorten(names[key](selection[key]), 60)), " ✕")),
    make("button", { type: "button", class: "quiet", onclick: clearFilters }, word("filter.clear")));
  for (const chip of document.querySelectorAll(".chip")) chip.setAttribute("aria-pressed", String(chosenOf(chip.dataset.key).has(chip.dataset.name)));
  const search = document.getElementById("filter_text");
  if (search && search !== document.activeElement) search.value = selection.filter;
  const select = document.getElementById("filter_place");
  if (select) select.value = selection.place;
}

function listWords(group) {
  return (text) => text.split(",").map((name) => wordOf(group, name)).join(", ");
}
