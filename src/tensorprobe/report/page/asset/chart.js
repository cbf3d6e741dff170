"use strict";
// Charts by plotly, which is unpacked when the first one is wanted. Colours are those of the theme.

let plotlyComing = null;

/** The library, once. Its hash stands in the policy of the page, so it may run although it comes out of a box. */
function loadPlotly() {
  plotlyComing ??= unpack("plotly").then((source) => {
    const script = document.createElement("script");
    script.textContent = source;
    document.head.append(script);
    if (!window.Plotly) throw new Error(word("failure.plotly"));
    return window.Plotly;
  });
  return plotlyComing;
}

/** When the browser has shown what is there, and has nothing else to do. */
function afterPaint(act) {
  requestAnimationFrame(() => (window.requestIdleCallback ? requestIdleCallback(act, { timeout: 500 }) : setTimeout(act, 50)));
}

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

function chartLayout(change = {}) {
  const axis = { gridcolor: colour("line"), linecolor: colour("line_strong"), zeroline: false, automargin: true, tickfont: { size: 11 }, title: { font: { size: 12 } } };
  return {
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: "inherit", size: 12, color: colour("text_soft") },
    margin: { l: 56, r: 12, t: 8, b: 40 },
    hovermode: "closest",
    hoverlabel: { bgcolor: colour("surface_raised"), bordercolor: colour("line_strong"), font: { color: colour("text"), size: 12 }, align: "left" },
    showlegend: false,
    ...change,
    xaxis: { ...axis, ...change.xaxis, title: { ...axis.title, ...change.xaxis?.title } },
    yaxis: { ...axis, ...change.yaxis, title: { ...axis.title, ...change.yaxis?.title } },
  };
}

const CHART_CONFIG = {
  displaylogo: false,
  responsive: true,
  doubleClick: "reset",
  modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d", "toImage"],
};

/** Draw into a container; what the container shows is said in words too. */
async function drawChart(container, label, traces, layout) {
  const plotly = await loadPlotly();
  if (!container.isConnected) return null;
  container.setAttribute("role", "img");
  container.setAttribute("aria-label", label);
  await plotly.react(container, traces, chartLayout(layout), CHART_CONFIG);
  return plotly;
}

/** Texts for plotly, which reads some markup: a name stays a name. */
function plain(text) {
  return String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

/** A log axis for errors, which may be zero (drawn beneath the smallest) or infinite (above the largest). */
class LogScale {
  constructor(values) {
    let least = Infinity;
    let most = -Infinity;
    this.hasZero = false;
    this.hasInfinite = false;
    for (const value of values) {
      if (value === null) continue;
      const size = Math.abs(value);
      if (size === 0) this.hasZero = true;
      else if (!Number.isFinite(size)) this.hasInfinite = true;
      else {
        least = Math.min(least, size);
        most = Math.max(most, size);
      }
    }
    this.low = Number.isFinite(least) ? Math.floor(Math.log10(least)) : -8;
    this.high = Number.isFinite(most) ? Math.ceil(Math.log10(most)) : 0;
    if (this.high <= this.low) this.high = this.low + 1;
    this.zero = this.low - 0.8;
    this.infinite = this.high + 0.8;
  }

  /** The height of a value: its power of ten. */
  place(value) {
    if (value === null) return null;
    const size = Math.abs(value);
    if (size === 0) return this.zero;
    return Number.isFinite(size) ? Math.log10(size) : this.infinite;
  }

  axis() {
    const step = Math.max(1, Math.ceil((this.high - this.low) / 9));
    const powers = [];
    for (let power = this.low; power <= this.high; power += step) powers.push(power);
    const values = [...powers, ...(this.hasZero ? [this.zero] : []), ...(this.hasInfinite ? [this.infinite] : [])];
    const texts = [...powers.map((power) => `10<sup>${power}</sup>`), ...(this.hasZero ? ["0"] : []), ...(this.hasInfinite ? ["NaN, ∞"] : [])];
    const bottom = (this.hasZero ? this.zero : this.low) - 0.3;
    return { tickvals: values, ticktext: texts, range: [bottom, (this.hasInfinite ? this.infinite : this.high) + 0.35] };
  }
}
