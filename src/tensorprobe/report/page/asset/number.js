"use strict";
// Numbers as the data has them: null where there is none, and "NaN" and "Infinity" as strings.

/** A number, or null; NaN stays NaN. */
function numberOf(value) {
  return value === null || value === undefined || value === "" ? null : Number(value);
}

/** How bad an error is, as a number that sorts: nothing is -1, and NaN is as bad as infinity. */
function badness(value) {
  const number = numberOf(value);
  return number === null ? -1 : Number.isNaN(number) ? Infinity : Math.abs(number);
}

/** `1.23e-7`, `0.0123`, `12,345`, `∞`. */
function formatNumber(value) {
  if (value === null || value === undefined || value === "") return "";
  if (typeof value === "boolean") return word(value ? "page.yes" : "page.no");
  const number = Number(value);
  if (typeof value === "string" && Number.isNaN(number)) return value;
  if (Number.isNaN(number)) return "NaN";
  if (!Number.isFinite(number)) return number > 0 ? "∞" : "−∞";
  return formatFinite(number);
}

function formatFinite(number) {
  const size = Math.abs(number);
  if (Number.isInteger(number) && size < 1e9) return formatCount(number);
  if (size >= 1e5 || size < 1e-2) return number.toExponential(2).replace("e+", "e").replace("-", "−").replace("e-", "e−");
  return String(Number(number.toPrecision(5))).replace("-", "−");
}

function formatCount(number) {
  return String(number).replace("-", "−").replace(/\B(?=(\d{3})+$)/g, ",");
}

/** `98 %`; rounded down, so that 100 % is all of it. */
function formatShare(share) {
  const number = numberOf(share);
  return number === null || !Number.isFinite(number) ? "" : `${Math.floor(number * 1000 + 1e-9) / 10} %`;
}
