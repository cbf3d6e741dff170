"use strict";
// Puts the page together: reads the data, draws the views in their order, keeps them in step with what is chosen.

let store = null;

const VIEWS = {
  comparison: { verdict: drawVerdict, course: drawCourse, graph: drawGraph, modules: drawModules, table: drawTable, matrix: drawMatrix, coverage: drawCoverage },
  run: { verdict: drawRunVerdict, course: drawCourse, gradients: drawGradients, overflow: drawOverflow, lost_digits: drawLostDigits, modules: drawModules, table: drawTable, settings: drawSettings },
};

function themeName() {
  const chosen = recall("theme");
  if (chosen === "light" || chosen === "dark") return chosen;
  return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

function applyTheme() {
  document.documentElement.dataset.theme = themeName();
}

function labelPage() {
  document.documentElement.lang = LANGUAGES[language];
  for (const element of document.querySelectorAll("[data-word]")) element.textContent = word(element.dataset.word);
  for (const element of document.querySelectorAll("[data-label]")) element.setAttribute("aria-label", word(element.dataset.label));
  const languageSwitch = document.getElementById("language_switch");
  languageSwitch.textContent = language === "en" ? "中文" : "English";
  languageSwitch.lang = language === "en" ? "zh-CN" : "en";
  const isDark = themeName() === "dark";
  const themeSwitch = document.getElementById("theme_switch");
  themeSwitch.textContent = word(isDark ? "page.light" : "page.dark");
}

function drawPage() {
  observers.length = 0;
  labelPage();
  const { data } = store;
  const sides = store.isRun ? data.path : `${data.reference} ↔ ${data.candidate}`;
  document.getElementById("bar_title").textContent = visible(String(sides ?? ""));
  const views = Object.entries(VIEWS[store.isRun ? "run" : "comparison"]).map(([name, draw]) => [name, drawSafely(name, draw)]).filter(([, view]) => view);
  document.getElementById("views").replaceChildren(drawActiveFilters(), ...views.map(([, view]) => view), drawFoot());
  drawContents(views.map(([name]) => name));
  watchSelection();
  markAll();
}

/** One view that fails says so in its place; the others are drawn. */
function drawSafely(name, draw) {
  try {
    return draw();
  } catch (error) {
    console.error(error);
    return makeView(name, word(`view.${name}`), make("p", { class: "notice is_bad" }, word("failure.view", { reason: error.message })));
  }
}

function drawFoot() {
  return make("footer", { class: "foot" }, `tensorprobe ${store.data.tensorprobe ?? ""} · ${word("page.offline")}`);
}

function drawContents(names) {
  const title = (name) => word(store.isRun && name === "table" ? "view.table_run" : `view.${name}`);
  const links = names.map((name) => make("li", {}, make("a", { href: `#view=${name}`, "data-view": name, onclick: (event) => followView(event, name) }, title(name))));
  document.getElementById("contents").replaceChildren(make("ol", {}, links));
  watchScroll();
}

/** The contents mark the view in sight. */
let scrollWatch = null;

function watchScroll() {
  scrollWatch?.disconnect();
  const inSight = new Set();
  scrollWatch = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      if (isIntersecting) inSight.add(target.id);
      else inSight.delete(target.id);
    }
    const links = [...document.querySelectorAll("#contents [data-view]")];
    const current = links.find((link) => inSight.has(`view_${link.dataset.view}`));
    for (const link of links) link.toggleAttribute("aria-current", link === current);
  }, { rootMargin: "-100px 0px -50% 0px" });
  for (const section of document.querySelectorAll(".view")) scrollWatch.observe(section);
}

function watchSelection() {
  observe(FILTERS, () => markFilters());
  observe([...FILTERS, "sort"], () => pairTable?.refresh());
  observe(["columns"], () => {
    pairTable?.drawHead();
    pairTable?.draw();
  });
  observe(["module", "place", "role", "filter"], refreshCourse);
  observe(["module"], markModules);
  observe(["module", "call"], markGraph);
  observe(["place"], () => {
    markMatrix();
    redrawModules();
  });
  observe(["call"], markCourse);
  observe(["pair"], () => pairTable?.mark());
  observe(["call", "pair"], drawDetail);
}

function redrawModules() {
  const fresh = drawModules();
  if (fresh) document.getElementById("view_modules")?.replaceWith(fresh);
}

function markAll() {
  markModules();
  markGraph();
  markMatrix();
  drawDetail();
}

function listen() {
  document.getElementById("language_switch").addEventListener("click", () => {
    switchLanguage();
    drawPage();
  });
  document.getElementById("theme_switch").addEventListener("click", () => {
    remember("theme", themeName() === "dark" ? "light" : "dark");
    applyTheme();
    drawPage();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    applyTheme();
    drawPage();
  });
  window.addEventListener("popstate", followAddress);
  for (const [name, isPrinted] of [["beforeprint", true], ["afterprint", false]]) {
    window.addEventListener(name, () => {
      pairTable?.print(isPrinted);
      graphCamera?.print(isPrinted);
    });
  }
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !document.getElementById("detail").hidden && !event.target.closest("details[open]")) closeDetail();
  });
}

function fail(text) {
  const box = document.getElementById("failure");
  box.textContent = text;
  box.hidden = false;
}

async function start() {
  applyTheme();
  labelPage();
  const loading = document.getElementById("loading");
  loading.textContent = word("page.loading");
  if (typeof DecompressionStream === "undefined") {
    loading.hidden = true;
    fail(word("failure.browser"));
    return;
  }
  try {
    store = new Store(JSON.parse(await unpack("data")));
    Object.assign(selection, readAddress());
    loading.hidden = true;
    drawPage();
    listen();
    afterPaint(() => store.lowerStrings()); // so that the first letter of a filter does not wait for it
    if (selection.view) setTimeout(() => showView(selection.view), 0); // the graph has its height then
  } catch (error) {
    console.error(error);
    fail(word("failure.data", { reason: error.message }));
  }
  loading.hidden = true;
}

start();
