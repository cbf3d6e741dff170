"use strict";
// The modules as a tree, each with the worst that is inside it; a click filters the rest of the page.

const MAX_DEPTH = 40; // a hostile path may have thousands of parts
const MAX_CHILDREN = 30; // the rest at a click
const SEVERITY = ["", "not compared", "clean", "propagated", "discontinuity", "drift", "entered", "source"];

/** The tree of all module paths; sums and worst errors are rolled up. */
function buildModuleTree() {
  return store.remember(`modules ${selection.place}`, () => {
    const root = makeModule("", "");
    const place = selection.place === "" ? -1 : Number(selection.place);
    for (let call = 0; call < store.callCount; call += 1) {
      if (place >= 0 && store.calls.place?.[call] !== place) continue;
      addCall(root, store.ofCall("module", call) ?? "", call);
    }
    return root;
  });
}

function makeModule(name, path) {
  return { name, path, children: new Map(), callCount: 0, worst: -1, worstCall: -1, role: "", badCount: 0 };
}

function addCall(root, path, call) {
  const worst = badness(store.isRun ? store.calls.max_abs?.[call] : store.calls.error?.[call]);
  const role = store.isRun ? runRole(call) : store.ofCall("role", call) ?? "";
  let module = root;
  countCall(module, call, worst, role);
  if (!path) return;
  for (const part of splitPath(path)) {
    const inner = module.path ? `${module.path}.${part}` : part;
    if (!module.children.has(part)) module.children.set(part, makeModule(part, inner));
    module = module.children.get(part);
    countCall(module, call, worst, role);
  }
}

/** A run of its own has no roles: NaN and Inf are what is wrong with it. */
function runRole(call) {
  return (store.calls.nan_count?.[call] ?? 0) + (store.calls.inf_count?.[call] ?? 0) > 0 ? "nonfinite" : "";
}

function splitPath(path) {
  const parts = path.split(".");
  return parts.length <= MAX_DEPTH ? parts : [...parts.slice(0, MAX_DEPTH - 1), parts.slice(MAX_DEPTH - 1).join(".")];
}

function countCall(module, call, worst, role) {
  module.callCount += 1;
  if (worst > module.worst) Object.assign(module, { worst, worstCall: call });
  if (role === "nonfinite" || SEVERITY.indexOf(role) > SEVERITY.indexOf("clean")) module.badCount += 1;
  if (role === "nonfinite" || SEVERITY.indexOf(role) > SEVERITY.indexOf(module.role)) module.role = role;
}

function drawModules() {
  const root = buildModuleTree();
  if (!root.children.size) return null;
  const tree = make("ul", { class: "tree", role: "tree", "aria-label": word("view.modules") });
  const first = root.children.values().next().value;
  const verdictCall = store.isRun ? store.data.run?.nonfinite?.call : store.data.verdict?.call;
  const opened = selection.module || (verdictCall !== null && verdictCall !== undefined ? store.ofCall("module", verdictCall) : "") || first.path;
  const range = errorRange(root);
  fillLazily(tree, [...root.children.values()], MAX_CHILDREN, (child) => drawModule(child, 1, opened, range));
  tree.addEventListener("keydown", moveInTree);
  tree.querySelector(".tree_line")?.setAttribute("tabindex", "0");
  const head = make("div", { class: "tree_head", "aria-hidden": "true" }, make("span", {}, word("module.name")), make("span", {}, word(store.isRun ? "module.worst_run" : "module.worst")), make("span", {}, word("module.calls")));
  return makeView("modules", word("view.modules"), note(word(store.isRun ? "module.hint_run" : "module.hint")), drawIcicle(root, range), make("div", { class: "tree_box" }, head, tree));
}

/** From the smallest to the largest error of any module, as powers of ten. */
function errorRange(root) {
  const values = [];
  const waiting = [...root.children.values()];
  while (waiting.length) {
    const module = waiting.pop();
    if (module.worst >= 0) values.push(module.worst);
    waiting.push(...module.children.values());
  }
  return new LogScale(values);
}

function drawModule(module, level, opened, range) {
  const isOpen = module.children.size > 0 && (isInside(opened, module.path) && opened !== module.path);
  const line = make("div", { class: "tree_line", style: `--level:${level - 1}`, tabindex: -1 }, drawModuleCells(module, range));
  const isLeaf = module.children.size === 0;
  const item = make("li", { role: "treeitem", "aria-level": level, "aria-expanded": isLeaf ? null : String(isOpen), "aria-selected": String(selection.module === module.path), "data-path": module.path }, line);
  item.fillChildren = () => {
    if (item.querySelector(":scope > ul") || isLeaf) return;
    const group = make("ul", { role: "group" });
    fillLazily(group, openedFirst(module, opened), MAX_CHILDREN, (child) => drawModule(child, level + 1, opened, range));
    item.append(group);
  };
  if (isOpen) item.fillChildren();
  line.addEventListener("click", (event) => {
    if (event.target.closest(".tree_toggle")) toggleModule(item);
    else chooseModule(module.path);
    focusTreeLine(line);
  });
  return item;
}

/** In the order of execution; only where there are very many, what is opened comes first. */
function openedFirst(module, opened) {
  const children = [...module.children.values()];
  const place = children.findIndex((child) => isInside(opened, child.path));
  return place < MAX_CHILDREN ? children : [children[place], ...children.slice(0, place), ...children.slice(place + 1)];
}

function drawModuleCells(module, range) {
  const [bottom, top] = range.axis().range;
  const width = module.worst < 0 ? 0 : Math.max(2, (100 * (range.place(module.worst) - bottom)) / (top - bottom));
  const kind = module.role.replaceAll(" ", "_");
  return [
    make("span", { class: "tree_name" },
      make("span", { class: "tree_toggle", "aria-hidden": "true" }, module.children.size ? "▸" : ""),
      make("code", { title: module.name }, breakable(module.name)),
      module.role && makePill("role", module.role)),
    make("span", { class: "tree_worst" },
      make("span", { class: "bar_track", "aria-hidden": "true" }, make("span", { class: `bar_value is_${kind}`, style: `width:${width}%` })),
      make("span", { class: "tree_number" }, module.worst < 0 ? "" : module.worst === Infinity ? "NaN, ∞" : formatNumber(module.worst))),
    make("span", { class: "tree_count" }, word("module.count", { bad: formatCount(module.badCount), all: formatCount(module.callCount) })),
  ];
}

function chooseModule(path) {
  choose({ module: selection.module === path ? "" : path }, { isStep: true });
}

function toggleModule(item, isOpen = item.getAttribute("aria-expanded") !== "true") {
  if (!item.hasAttribute("aria-expanded")) return;
  item.fillChildren();
  item.setAttribute("aria-expanded", String(isOpen));
}

function focusTreeLine(line) {
  for (const other of document.querySelectorAll("#view_modules .tree_line[tabindex='0']")) other.setAttribute("tabindex", "-1");
  line.setAttribute("tabindex", "0");
  line.focus();
}

/** The keys of a tree: up and down, right opens, left closes or goes up, Enter filters. */
function moveInTree(event) {
  const item = event.target.closest("[role=treeitem]");
  const lines = [...event.currentTarget.querySelectorAll(".tree_line")].filter((line) => line.offsetParent !== null);
  const index = lines.indexOf(item.querySelector(".tree_line"));
  const isOpen = item.getAttribute("aria-expanded") === "true";
  const actions = {
    ArrowDown: () => lines[index + 1],
    ArrowUp: () => lines[index - 1],
    Home: () => lines[0],
    End: () => lines.at(-1),
    ArrowRight: () => (isOpen ? lines[index + 1] : toggleModule(item, true)),
    ArrowLeft: () => (isOpen ? toggleModule(item, false) : item.parentElement.closest("[role=treeitem]")?.querySelector(".tree_line")),
    Enter: () => chooseModule(item.dataset.path),
    " ": () => chooseModule(item.dataset.path),
  };
  if (!actions[event.key]) return;
  event.preventDefault();
  const line = actions[event.key]();
  if (line) focusTreeLine(line);
}

/** The chosen module is marked, and shown although its parents were closed. */
function markModules() {
  const view = document.getElementById("view_modules");
  if (!view) return;
  const byPath = (path) => [...view.querySelectorAll("[role=treeitem]")].find((item) => item.dataset.path === path);
  const parts = selection.module ? splitPath(selection.module) : [];
  for (let count = 1; count < parts.length; count += 1) {
    const item = byPath(parts.slice(0, count).join("."));
    if (item) toggleModule(item, true);
  }
  for (const item of view.querySelectorAll("[role=treeitem]")) item.setAttribute("aria-selected", String(item.dataset.path === selection.module && selection.module !== ""));
  markIcicle();
}
