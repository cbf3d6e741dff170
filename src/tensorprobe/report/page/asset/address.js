"use strict";
// Every view has an address: what is chosen stands after the `#`, and a pasted address restores it.

function readAddress() {
  const found = new URLSearchParams(location.hash.slice(1));
  return Object.fromEntries(Object.keys(NOTHING).map((key) => [key, found.get(key) ?? ""]));
}

function writeAddress(isStep) {
  const hash = addressOf(selection);
  if (hash === location.hash) return;
  const target = hash || location.pathname + location.search;
  if (isStep) history.pushState(null, "", target);
  else history.replaceState(null, "", target);
}

function addressOf(chosen) {
  const parts = Object.keys(NOTHING)
    .filter((key) => chosen[key])
    .map((key) => `${key}=${encodeURIComponent(chosen[key]).replaceAll("%2C", ",").replaceAll("%2F", "/")}`);
  return parts.length ? `#${parts.join("&")}` : "";
}

/** An address was pasted, or the back button pressed: only what differs is drawn again. */
function followAddress() {
  const wanted = readAddress();
  const changed = Object.keys(NOTHING).filter((key) => selection[key] !== wanted[key]);
  Object.assign(selection, wanted);
  notify(changed);
  if (selection.view) showView(selection.view);
}

/** A link in the contents moves the reader and keeps what is chosen. */
function followView(event, name) {
  event.preventDefault();
  choose({ view: name }, { isStep: true });
  showView(name);
}

function showView(name) {
  const section = document.getElementById(`view_${name}`);
  if (!section) return;
  section.scrollIntoView({ block: "start" });
  section.querySelector("h2")?.focus({ preventScroll: true });
}
