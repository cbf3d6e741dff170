"use strict";
// The same modules as an icicle: the width is the number of calls, the colour the worst error.

const ICICLE = { height: 24, width: 1000, least: 2.5, depth: 10 };
const SHADES = 5;

function drawIcicle(root, range) {
  const blocks = placeBlocks(root);
  const depth = Math.max(...blocks.map((block) => block.depth)) + 1;
  const box = make("div", { class: "icicle", role: "img", "aria-label": word("icicle.label"), style: `height:${depth * ICICLE.height}px` });
  for (const { module, x, width, depth: level } of blocks) {
    const shade = shadeOf(module.worst, range);
    const style = `left:${(100 * x) / ICICLE.width}%;width:calc(${(100 * width) / ICICLE.width}% - 1px);top:${level * ICICLE.height}px`;
    const title = `${module.path || word("module.all")}\n${formatNumber(module.worst < 0 ? null : module.worst)}`;
    const isMarked = ["source", "entered", "nonfinite"].includes(module.role);
    box.append(make("div", { class: `block shade_${shade}${isMarked ? " is_marked" : ""}`, style, title, "data-path": module.path, onclick: () => chooseModule(module.path) },
      width > 24 ? `${isMarked ? "★ " : ""}${module.name || word("module.all")}` : ""));
  }
  return make("div", { class: "icicle_box" }, box, drawShadeLegend(range));
}

/** Where each module stands; those too narrow to be seen are left out. */
function placeBlocks(root) {
  const blocks = [];
  const waiting = [{ module: root, x: 0, width: ICICLE.width, depth: 0 }];
  while (waiting.length) {
    const block = waiting.pop();
    blocks.push(block);
    if (block.depth + 1 >= ICICLE.depth) continue;
    let { x } = block;
    for (const child of block.module.children.values()) {
      const width = (block.width * child.callCount) / block.module.callCount;
      if (width >= ICICLE.least) waiting.push({ module: child, x, width, depth: block.depth + 1 });
      x += width;
    }
  }
  return blocks;
}

/** 0 is nothing or zero, then five steps from the smallest error to the largest. */
function shadeOf(worst, range) {
  if (worst <= 0) return 0;
  const share = (Math.min(range.place(worst), range.high) - range.low) / (range.high - range.low);
  return Math.max(1, Math.min(SHADES, 1 + Math.floor(share * SHADES)));
}

function drawShadeLegend(range) {
  const steps = Array.from({ length: SHADES + 1 }, (_, shade) => make("span", { class: `shade shade_${shade}`, "aria-hidden": "true" }));
  return make("p", { class: "legend" }, make("span", {}, "0"), steps, make("span", {}, formatNumber(10 ** range.high)), make("span", { class: "legend_item" }, word(store.isRun ? "icicle.legend_run" : "icicle.legend")));
}

function markIcicle() {
  for (const block of document.querySelectorAll(".block")) block.classList.toggle("is_chosen", selection.module !== "" && block.dataset.path === selection.module);
}
