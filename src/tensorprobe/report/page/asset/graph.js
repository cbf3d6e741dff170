"use strict";
// The region that differs: the calls of both sides, what went in, what came out; values that match are joined.

const NODE = { width: 184, height: 46, gapX: 40, gapY: 20, sideGap: 56 };

let graphCamera = null;

function drawGraph() {
  const { graph } = store.data;
  graphCamera = null;
  if (!graph?.nodes?.length) return null;
  const layout = placeNodes(graph);
  const canvas = makeSvg("svg", { class: "graph", role: "group", "aria-label": word("graph.label", { count: graph.nodes.length }) });
  const content = makeSvg("g", {});
  content.append(...drawSideTitles(layout), ...drawEdges(graph, layout), ...drawJoins(graph, layout), ...drawNodes(graph, layout));
  canvas.append(makeArrowHead(), content);
  const camera = new Camera(canvas, content, layout.size);
  graphCamera = camera;
  const buttons = make("div", { class: "toolbar" },
    makeTool("+", word("graph.zoom_in"), () => camera.zoom(1.25)),
    makeTool("−", word("graph.zoom_out"), () => camera.zoom(0.8)),
    makeTool("⤢", word("graph.fit"), () => camera.fit()));
  const view = makeView("graph", word("view.graph"), note(word("graph.hint")), make("div", { class: "graph_box" }, buttons, canvas), drawGraphLegend());
  setTimeout(() => camera.fit(), 0);
  return view;
}

function makeTool(symbol, label, act) {
  return make("button", { type: "button", "aria-label": label, title: label, onclick: act }, symbol);
}

/** What is computed from something stands to the right of it; the candidate stands beneath the reference. */
function placeNodes({ nodes }) {
  const rowsOf = (side) => nodes.filter((node) => node.side === side).map((node) => node.row ?? 0);
  const referenceRows = Math.max(-1, ...rowsOf("reference")) + 1;
  const step = { x: NODE.width + NODE.gapX, y: NODE.height + NODE.gapY };
  const shift = referenceRows ? referenceRows * step.y + NODE.sideGap : 0;
  const byId = new Map();
  for (const node of nodes) byId.set(node.id, { x: (node.column ?? 0) * step.x, y: (node.row ?? 0) * step.y + 28 + (node.side === "candidate" ? shift : 0) });
  const all = [...byId.values()];
  const size = { width: Math.max(...all.map((one) => one.x)) + NODE.width, height: Math.max(...all.map((one) => one.y)) + NODE.height };
  return { byId, size, nodes, shift };
}

function drawSideTitles({ nodes, size, shift }) {
  return ["reference", "candidate"].filter((side) => nodes.some((node) => node.side === side)).flatMap((side) => {
    const top = side === "candidate" ? shift : 0;
    const title = makeSvg("text", { x: 0, y: top + 12, class: "graph_side" }, word(`side.${side}`));
    const line = makeSvg("line", { x1: 0, x2: size.width, y1: top - NODE.sideGap / 2 + 8, y2: top - NODE.sideGap / 2 + 8, class: "side_line" });
    return top > 0 ? [line, title] : [title];
  });
}

function makeArrowHead() {
  const shape = makeSvg("path", { d: "M0,0 L8,4 L0,8 z", class: "arrow_head" });
  return makeSvg("defs", {}, makeSvg("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 8, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto-start-reverse" }, shape));
}

function drawEdges(graph, { byId }) {
  return (graph.edges ?? []).flatMap((edge) => {
    const start = byId.get(edge.from);
    const end = byId.get(edge.to);
    if (!start || !end) return [];
    const [x0, y0, x1, y1] = [start.x + NODE.width, start.y + NODE.height / 2, end.x, end.y + NODE.height / 2];
    const bend = Math.max(16, Math.abs(x1 - x0) / 2);
    return [makeSvg("path", { class: "edge", d: `M${x0},${y0} C${x0 + bend},${y0} ${x1 - bend},${y1} ${x1 - 1},${y1}`, "marker-end": "url(#arrow)" })];
  });
}

function drawJoins(graph, { byId, shift }) {
  return (graph.joins ?? []).flatMap((join) => {
    const start = byId.get(join.reference);
    const end = byId.get(join.candidate);
    if (!start || !end) return [];
    const aside = 28 + 24 * (Math.round((start.y - 28) / (NODE.height + NODE.gapY)) % 6); // joins of one column stand side by side
    const [x0, y0, x1, y1] = [start.x + aside, start.y + NODE.height, end.x + aside, end.y];
    const state = String(join.state).replaceAll(" ", "_");
    const middle = { x: (x0 + x1) / 2, y: shift - NODE.sideGap / 2 + 8 };
    const line = makeSvg("path", { class: `join is_${state}`, d: `M${x0},${y0} L${middle.x},${middle.y} L${x1},${y1}` });
    const symbol = SYMBOLS[join.state] ?? "";
    return [line, symbol && makeSvg("circle", { class: `join_disc is_${state}`, cx: middle.x, cy: middle.y, r: 9 }), symbol && makeSvg("text", { class: "join_symbol", x: middle.x, y: middle.y + 4, "text-anchor": "middle" }, symbol)].filter(Boolean);
  });
}

function drawNodes(graph, { byId }) {
  return graph.nodes.map((node) => drawNode(node, byId.get(node.id)));
}

const STATE_SYMBOLS = { equal: "=", different: "≠", unmatched: "∅", source: "★" };

function drawNode(node, place) {
  const isCall = node.call !== null && node.call !== undefined;
  const state = Object.hasOwn(STATE_SYMBOLS, node.state) ? node.state : "unmatched";
  const label = `${word(`side.${node.side}`)}: ${node.name || node.label}, ${word(`graph.${state}`)}`;
  const radius = node.kind === "value" ? NODE.height / 2 : 5;
  const group = makeSvg("g", {
    class: `node is_${state} is_${node.kind === "value" ? "value" : "call"}`,
    transform: `translate(${place.x},${place.y})`,
    tabindex: isCall ? 0 : null,
    role: isCall ? "button" : "img",
    "aria-label": label,
    "data-module": isCall ? store.ofCall("module", node.call) : null,
    "data-call": isCall ? node.call : null,
  },
    makeSvg("title", {}, [node.name, node.shape].filter(Boolean).join("\n")),
    makeSvg("rect", { width: NODE.width, height: NODE.height, rx: radius }),
    makeSvg("text", { class: "node_symbol", x: NODE.width - 16, y: 20, "text-anchor": "middle" }, STATE_SYMBOLS[state]),
    makeSvg("text", { class: "node_label", x: 14, y: 19 }, shorten(node.label, 15)),
    makeSvg("text", { class: "node_shape", x: 14, y: 36 }, shorten(node.shape || node.name || "", 24)));
  if (isCall) {
    group.addEventListener("click", () => chooseCall(node.call));
    group.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        chooseCall(node.call);
      }
    });
  }
  return group;
}

function drawGraphLegend() {
  return make("p", { class: "legend" }, ["source", "different", "equal", "unmatched"].map((state) =>
    make("span", { class: `legend_item is_${state}` }, make("span", { class: "legend_box", "aria-hidden": "true" }, STATE_SYMBOLS[state]), word(`graph.${state}`))));
}

/** What a module filter leaves out is dimmed, and the chosen call is framed. */
function markGraph() {
  for (const node of document.querySelectorAll("#view_graph .node[data-call]")) {
    node.classList.toggle("is_dimmed", !isInside(node.dataset.module ?? "", selection.module));
    node.classList.toggle("is_chosen", selection.call !== "" && node.dataset.call === selection.call);
  }
}

/** Pan by dragging, zoom by buttons or by the wheel with Ctrl: the plain wheel scrolls the page. */
class Camera {
  constructor(canvas, content, size) {
    Object.assign(this, { canvas, content, size, scale: 1, x: 0, y: 0, held: null });
    canvas.addEventListener("pointerdown", (event) => this.hold(event));
    canvas.addEventListener("pointermove", (event) => this.drag(event));
    for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, () => this.release());
    canvas.addEventListener("wheel", (event) => this.turn(event), { passive: false });
  }

  fit() {
    const { width } = this.canvas.getBoundingClientRect();
    if (!width) return;
    this.scale = Math.max(0.6, Math.min(1.1, (width - 32) / this.size.width));
    this.canvas.style.height = `${Math.max(180, Math.min(560, this.size.height * this.scale + 40))}px`;
    this.x = Math.max(16, (width - this.size.width * this.scale) / 2);
    this.y = 16;
    this.apply();
  }

  /** On paper all of it is shown, as wide as the paper. */
  print(isPrinted) {
    if (isPrinted) {
      this.content.removeAttribute("transform");
      this.canvas.setAttribute("viewBox", `-8 -8 ${this.size.width + 16} ${this.size.height + 16}`);
    } else {
      this.canvas.removeAttribute("viewBox");
      this.fit();
    }
  }

  zoom(factor, centre = null) {
    const { width, height } = this.canvas.getBoundingClientRect();
    const [x, y] = centre ?? [width / 2, height / 2];
    const scale = Math.max(0.1, Math.min(4, this.scale * factor));
    this.x = x - ((x - this.x) * scale) / this.scale;
    this.y = y - ((y - this.y) * scale) / this.scale;
    this.scale = scale;
    this.apply();
  }

  turn(event) {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    const box = this.canvas.getBoundingClientRect();
    this.zoom(Math.exp(-event.deltaY / 300), [event.clientX - box.left, event.clientY - box.top]);
  }

  hold(event) {
    if (event.button === 0) this.held = { x: event.clientX - this.x, y: event.clientY - this.y };
  }

  drag(event) {
    if (!this.held) return;
    this.x = event.clientX - this.held.x;
    this.y = event.clientY - this.held.y;
    this.canvas.classList.add("is_dragged");
    this.apply();
  }

  release() {
    this.held = null;
    this.canvas.classList.remove("is_dragged");
  }

  apply() {
    this.content.setAttribute("transform", `translate(${this.x},${this.y}) scale(${this.scale})`);
  }
}
