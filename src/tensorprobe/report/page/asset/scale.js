"use strict";
// Where a number stands on an axis, and which numbers are written beside it.

const RAISED = { "-": "⁻", 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹" };

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

  /** The ends of the axis and its ticks: pairs of a place and a text. */
  axis() {
    const step = Math.max(1, Math.ceil((this.high - this.low) / 9));
    const ticks = [];
    for (let power = this.low; power <= this.high; power += step) ticks.push([power, `10${raise(power)}`]);
    if (this.hasZero) ticks.push([this.zero, "0"]);
    if (this.hasInfinite) ticks.push([this.infinite, "NaN, ∞"]);
    const bottom = (this.hasZero ? this.zero : this.low) - 0.3;
    return { ticks, range: [bottom, (this.hasInfinite ? this.infinite : this.high) + 0.35] };
  }
}

function raise(power) {
  return Array.from(String(power), (letter) => RAISED[letter]).join("");
}

/** About so many round numbers between two, with their texts. */
function roundTicks([low, high], count, isWhole = false) {
  const rough = (high - low) / Math.max(1, count);
  if (!Number.isFinite(rough) || rough <= 0) return [low, high].map((value) => [value, formatTick(value)]);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = Math.max(isWhole ? 1 : 0, power * [1, 2, 5, 10].find((one) => one * power >= rough * 0.999));
  const ticks = [];
  for (let index = Math.ceil(low / step); index * step <= high; index += 1) ticks.push(Number((index * step).toPrecision(12)));
  return ticks.map((value) => [value, formatTick(value)]);
}

function formatTick(value) {
  const size = Math.abs(value);
  const isLong = size !== 0 && (size < 1e-3 || (size >= 1e6 && !Number.isInteger(value)) || size >= 1e9);
  const text = isLong ? Number(value.toPrecision(6)).toExponential().replace("e+", "e") : Number.isInteger(value) ? formatCount(value) : String(Number(value.toPrecision(8)));
  return text.replaceAll("-", "−");
}
