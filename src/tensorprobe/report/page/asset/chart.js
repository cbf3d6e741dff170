"use strict";
// Charts as SVG: a frame with two axes, and one path for each series, so that thousands of points are a few elements.
// Colours are variables of the theme: a chart that was drawn in the dark is printed on white.

const SYMBOLS_DRAWN = {
  circle: (x, y, r) => `M${x - r} ${y}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0`,
  triangle: (x, y, r) => `M${x - r} ${y - 0.8 * r}h${2 * r}l${-r} ${1.7 * r}z`,
  square: (x, y, r) => `M${x - r} ${y - r}h${2 * r}v${2 * r}h${-2 * r}z`,
  cross: (x, y, r) => `M${x - r} ${y - r}l${2 * r} ${2 * r}m0 ${-2 * r}l${-2 * r} ${2 * r}`,
  star: (x, y, r) => `M${STAR.map(([dx, dy]) => `${(x + r * dx).toFixed(1)} ${(y + r * dy).toFixed(1)}`).join("L")}z`,
};
const STAR = Array.from({ length: 10 }, (_, corner) => {
  const [angle, radius] = [(Math.PI * corner) / 5, corner % 2 ? 0.42 : 1];
  return [radius * Math.sin(angle), -radius * Math.cos(angle)];
});
const REACH = 24; // pixels from the pointer to the point that it means
const DRAGGED = 6; // pixels from which on it is no click

/** When the browser has shown what is there, and has nothing else to do. */
function afterPaint(act) {
  requestAnimationFrame(() => (window.requestIdleCallback ? requestIdleCallback(act, { timeout: 500 }) : setTimeout(act, 50)));
}

class Chart {
  /** `pick` is given the name of a point that was clicked, `zoom` the ends of a stretch, or null for all of it. */
  constructor(box, { pick = null, zoom = null } = {}) {
    Object.assign(this, { box, pick, zoom, drag: null, left_out: new Set() });
    this.svg = makeSvg("svg", { class: "chart_frame", role: "img", tabindex: pick ? 0 : null });
    this.marks = makeSvg("g");
    this.legend = make("div", { class: "chart_legend" });
    this.tip = make("div", { class: "chart_tip", "aria-hidden": "true", hidden: true });
    box.replaceChildren(this.legend, this.svg, this.tip);
    this.listen();
  }

  /** `series` are {name, x, y, names, look}; `x` and `y` are axes: {range, ticks, title}; `describe` makes the lines of a hint. */
  draw(content) {
    this.content = { marks: [], image: null, bar: null, margin: { left: 56, right: 12, top: 8, bottom: 40 }, ...content };
    this.svg.setAttribute("aria-label", visible(content.label));
    this.drawLegend();
    this.paint();
  }

  drawLegend() {
    const { series } = this.content;
    const buttons = series.filter((one) => one.name && series.length > 1).map((one) => {
      const key = makeSvg("svg", { class: "chart_key", viewBox: "0 0 20 14", "aria-hidden": "true" }, drawSeries(one.look, [[1, 7], [19, 7]], [[10, 7]]));
      const button = make("button", { type: "button", class: "chart_series", "aria-pressed": String(!this.left_out.has(one.name)) }, key, one.name);
      button.addEventListener("click", () => this.toggle(one.name, button));
      return button;
    });
    this.legend.replaceChildren(...buttons);
  }

  toggle(name, button) {
    if (!this.left_out.delete(name)) this.left_out.add(name);
    button.setAttribute("aria-pressed", String(!this.left_out.has(name)));
    this.paint();
  }

  paint() {
    const [width, height] = [this.svg.clientWidth, this.svg.clientHeight];
    this.size = width;
    if (!this.content || !width || !height) return;
    const { margin, x, y, image, bar } = this.content;
    const [left, right, top, bottom] = [margin.left, width - margin.right, margin.top, height - margin.bottom];
    this.frame = { left, right, top, bottom };
    this.toX = (value) => left + ((value - x.range[0]) / (x.range[1] - x.range[0])) * (right - left);
    this.toY = (value) => bottom - ((value - y.range[0]) / (y.range[1] - y.range[0])) * (bottom - top);
    this.shown = this.content.series.filter((one) => !this.left_out.has(one.name)).map((one) => this.placeSeries(one));
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.brush = makeSvg("rect", { class: "chart_brush", y: top, height: Math.max(0, bottom - top), visibility: "hidden" });
    this.svg.replaceChildren(
      ...this.drawAxes(),
      ...(image ? [makeSvg("image", { href: image, x: left, y: top, width: right - left, height: bottom - top, preserveAspectRatio: "none", class: "chart_image" })] : []),
      ...(bar ? drawColourBar(bar, this.frame) : []),
      this.marks,
      ...this.shown.flatMap((one) => drawSeries(one.look, one.points, one.points, bottom)),
      this.brush);
    this.mark(this.content.marks);
  }

  /** Lines across the chart: where something begins, and what is chosen. */
  mark(marks) {
    this.content.marks = marks;
    const [low, high] = this.content.x.range;
    this.marks.replaceChildren(...(this.frame ? marks.filter(({ x }) => x >= low && x <= high).flatMap((one) => this.drawMark(one)) : []));
  }

  /** The points of a series in pixels; those outside of the frame are left out. */
  placeSeries(one) {
    const points = [];
    const names = [];
    const [low, high] = this.content.x.range;
    for (let index = 0; index < one.x.length; index += 1) {
      if (one.x[index] < low || one.x[index] > high || one.y[index] === null) continue;
      points.push([round(this.toX(one.x[index])), round(this.toY(one.y[index]))]);
      names.push(index);
    }
    return { ...one, points, indexes: names };
  }

  drawAxes() {
    const { left, right, top, bottom } = this.frame;
    const { x, y } = this.content;
    const lines = y.ticks.map(([value]) => `M${left} ${round(this.toY(value))}H${right}`).join("");
    const strokes = x.ticks.map(([value]) => `M${round(this.toX(value))} ${bottom}v4`).join("");
    return [
      makeSvg("path", { class: "chart_grid", d: lines }),
      makeSvg("path", { class: "chart_axis", d: `M${left} ${top}V${bottom}H${right}${strokes}` }),
      ...y.ticks.map(([value, text]) => makeSvg("text", { class: "chart_tick is_y", x: left - 6, y: this.toY(value) + 4 }, text)),
      ...x.ticks.map(([value, text]) => makeSvg("text", { class: "chart_tick is_x", x: this.toX(value), y: bottom + 16 }, text)),
      ...(x.title ? [makeSvg("text", { class: "chart_title", x: (left + right) / 2, y: bottom + 34 }, x.title)] : []),
      ...(y.title ? [makeSvg("text", { class: "chart_title", transform: `translate(12 ${(top + bottom) / 2}) rotate(-90)` }, y.title)] : []),
    ];
  }

  /** A line across the chart, with a word at its top. */
  drawMark({ x, name, text }) {
    const place = round(this.toX(x));
    const line = makeSvg("path", { class: `chart_mark ${name}`, d: `M${place} ${this.frame.top}V${this.frame.bottom}` });
    return text ? [line, makeSvg("text", { class: "chart_tick", x: place + 4, y: this.frame.top + 10 }, text)] : [line];
  }

  listen() {
    this.svg.addEventListener("pointermove", (event) => this.move(event));
    this.svg.addEventListener("pointerleave", () => this.hint(null));
    this.svg.addEventListener("pointerdown", (event) => {
      if (event.button === 0 && this.frame) this.drag = { start: event.offsetX, id: event.pointerId, isLong: false };
    });
    this.svg.addEventListener("pointerup", (event) => this.release(event));
    this.svg.addEventListener("pointercancel", () => this.endDrag());
    this.svg.addEventListener("dblclick", () => this.zoom?.(null));
    this.svg.addEventListener("wheel", (event) => this.turnWheel(event), { passive: false });
    new ResizeObserver(() => {
      if (this.content && this.svg.clientWidth !== this.size) this.paint();
    }).observe(this.box);
  }

  move(event) {
    if (!this.frame) return;
    if (this.drag && this.zoom && Math.abs(event.offsetX - this.drag.start) > DRAGGED) {
      if (!this.drag.isLong) this.svg.setPointerCapture(this.drag.id);
      this.drag.isLong = true;
      const [from, to] = this.stretch(event.offsetX);
      fill(this.brush, { x: from, width: to - from, visibility: "visible" }, []);
    }
    this.hint(this.drag?.isLong ? null : this.nearest(event));
  }

  stretch(x) {
    const ends = [this.drag.start, x].map((one) => Math.max(this.frame.left, Math.min(this.frame.right, one)));
    return ends.sort((one, other) => one - other);
  }

  release(event) {
    const { drag } = this;
    const ends = drag?.isLong ? this.stretch(event.offsetX).map((x) => this.valueAt(x)) : null;
    this.endDrag();
    if (ends) this.zoom(ends);
    else if (drag && this.pick) {
      const found = this.nearest(event);
      if (found) this.pick(found.name);
    }
  }

  endDrag() {
    this.drag = null;
    this.brush?.setAttribute("visibility", "hidden");
  }

  /** With ctrl, as a map does it; alone it scrolls the page. */
  turnWheel(event) {
    if (!event.ctrlKey || !this.zoom || !this.frame) return;
    event.preventDefault();
    const [middle, factor] = [this.valueAt(event.offsetX), Math.exp(Math.max(-120, Math.min(120, event.deltaY)) / 200)];
    this.zoom(this.content.x.range.map((end) => middle + (end - middle) * factor));
  }

  valueAt(x) {
    const { range } = this.content.x;
    return range[0] + ((x - this.frame.left) / (this.frame.right - this.frame.left)) * (range[1] - range[0]);
  }

  /** The point that the pointer means, or what an image has there. */
  nearest({ offsetX, offsetY }) {
    const { left, right, top, bottom } = this.frame;
    if (this.content.image) {
      const isInside = offsetX >= left && offsetX < right && offsetY >= top && offsetY < bottom;
      return isInside ? { x: offsetX, y: offsetY, lines: this.content.describe((offsetX - left) / (right - left), (offsetY - top) / (bottom - top)) } : null;
    }
    let found = null;
    let least = REACH ** 2;
    for (const one of this.shown) {
      for (const [place, [x, y]] of one.points.entries()) {
        const distance = (x - offsetX) ** 2 + (y - offsetY) ** 2;
        if (distance > least) continue;
        least = distance;
        found = { x, y, one, index: one.indexes[place] };
      }
    }
    return found && { ...found, name: found.one.names?.[found.index], lines: this.content.describe(found.one, found.index) };
  }

  hint(found) {
    this.tip.hidden = !found;
    this.svg.classList.toggle("is_pointed", Boolean(found && this.pick));
    if (!found) return;
    this.tip.replaceChildren(...found.lines.map((line) => make("div", {}, line)));
    const [x, y] = [found.x + this.svg.clientLeft, found.y + this.svg.getBoundingClientRect().top - this.box.getBoundingClientRect().top];
    this.tip.style.left = `${Math.max(0, Math.min(x + 12, this.box.clientWidth - this.tip.offsetWidth - 4))}px`;
    this.tip.style.top = `${y > this.tip.offsetHeight + 12 ? y - this.tip.offsetHeight - 8 : y + 16}px`;
  }
}

function round(number) {
  return Math.round(number * 10) / 10;
}

/** The line through points and the symbols at them. A histogram has a floor, which its line is filled down to. */
function drawSeries(look, line, points, floor = 0) {
  const parts = [];
  const style = `--ink:var(--${look.colour})`;
  if (look.line && line.length) {
    const d = look.isStepped ? drawSteps(line) : `M${line.map(([x, y]) => `${x} ${y}`).join("L")}`;
    if (look.isStepped) parts.push(makeSvg("path", { class: "series is_area", style, d: `${d}V${floor}H${line[0][0]}z` }));
    parts.push(makeSvg("path", { class: `series is_line is_${look.line}`, style, d }));
  }
  if (look.symbol && (!look.line || points.length <= MAX_SYMBOLS)) {
    const draw = SYMBOLS_DRAWN[look.symbol];
    const d = points.map(([x, y]) => draw(x, y, look.size / 2)).join("");
    parts.push(makeSvg("path", { class: `series ${look.isFilled ? "is_filled" : "is_open"}`, style, d }));
  }
  return parts;
}

const MAX_SYMBOLS = 100; // on a line; more would hide it

/** Each height lasts until the next edge. */
function drawSteps(points) {
  return `M${points[0][0]} ${points[0][1]}${points.slice(1).map(([x, y]) => `H${x}V${y}`).join("")}`;
}

function drawColourBar({ href, ticks }, { right, top, bottom }) {
  const height = bottom - top;
  return [
    makeSvg("image", { href, x: right + 8, y: top, width: 8, height, preserveAspectRatio: "none", class: "chart_image" }),
    ...ticks.map(([share, text]) => makeSvg("text", { class: "chart_tick", x: right + 20, y: bottom - share * height + (share === 1 ? 9 : share === 0 ? 0 : 4) }, text)),
  ];
}
