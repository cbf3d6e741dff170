"use strict";
// Names in the order that a person expects, without a pause of the page.

const SORTED_AT_ONCE = 1000;
const SLICE_MS = 12;

/** `linear.9` before `linear.10`; cheap enough for a hundred thousand names. */
function compareNaturally(first, second) {
  if (first === second) return 0;
  let index = 0;
  const end = Math.min(first.length, second.length);
  while (index < end && first.charCodeAt(index) === second.charCodeAt(index)) index += 1;
  while (index > 0 && isDigit(first.charCodeAt(index - 1))) index -= 1;
  const left = parseInt(first.slice(index, index + 15), 10);
  const right = parseInt(second.slice(index, index + 15), 10);
  if (!Number.isNaN(left) && !Number.isNaN(right) && left !== right) return left - right;
  return first < second ? -1 : 1;
}

function isDigit(code) {
  return code >= 48 && code <= 57;
}

/** Parts are sorted, then merged, and the page goes on in between. */
async function sortInSlices(items, compare) {
  const breathe = makeBreath();
  let runs = [];
  for (let start = 0; start < items.length; start += SORTED_AT_ONCE) {
    runs.push(items.slice(start, start + SORTED_AT_ONCE).sort(compare));
    await breathe();
  }
  while (runs.length > 1) {
    const merged = [];
    for (let index = 0; index < runs.length; index += 2) merged.push(await merge(runs[index], runs[index + 1] ?? [], compare, breathe));
    runs = merged;
  }
  return runs[0] ?? [];
}

async function merge(left, right, compare, breathe) {
  const merged = [];
  let [first, second] = [0, 0];
  while (first < left.length && second < right.length) {
    merged.push(compare(left[first], right[second]) <= 0 ? left[first++] : right[second++]);
    if (merged.length % SORTED_AT_ONCE === 0) await breathe();
  }
  return merged.concat(left.slice(first), right.slice(second));
}

/** Waits for the page where a slice of time is used up. */
function makeBreath() {
  let began = performance.now();
  return async () => {
    if (performance.now() - began < SLICE_MS) return;
    await new Promise((done) => setTimeout(done, 0));
    began = performance.now();
  };
}
