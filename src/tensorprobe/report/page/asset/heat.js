"use strict";
// A slice of a tensor as a picture: one cell for each element, or for a block of them.

const VALUE_COLOURS = [[0, 32, 77], [124, 123, 120], [255, 233, 69]]; // ever lighter: the order is seen without the hues
const DIFFERENCE_COLOURS = [[0, 114, 178], [242, 242, 242], [213, 94, 0]];
const NO_NUMBER = [155, 63, 121];

function drawHeatMaps(box, heat) {
  const found = ["reference", "candidate", "difference"].filter((name) => heat[name]?.length);
  const frame = make("div", { class: "heat_maps" });
  box.append(make("h4", {}, word("distribution.slice", { title: heat.title ?? "" })), frame);
  const range = sharedRange(found.filter((name) => name !== "difference").map((name) => heat[name]));
  const tables = found.map((name) => heat[name].map((line) => line.map(numberOf)));
  const draws = found.map((name, index) => {
    const isDifference = name === "difference";
    const title = isDifference ? word("detail.difference") : store.isRun ? word("distribution.values_plain") : word(`side.${name}`);
    const chart = addChart(frame, title, "chart is_square");
    const colours = isDifference ? { range: differenceRange(tables[index]), scale: DIFFERENCE_COLOURS } : { range, scale: VALUE_COLOURS };
    return () => drawHeatMap(chart, tables[index], colours, title, heat);
  });
  if (tables.some((table) => table.flat().some((value) => !Number.isFinite(value)))) box.append(make("p", { class: "note" }, make("span", { class: "swatch", "aria-hidden": "true" }), " ", word("distribution.no_number")));
  return draws;
}

function sharedRange(tables) {
  const values = tables.flat(2).map(numberOf).filter(Number.isFinite);
  return values.length ? values.reduce(([least, most], value) => [Math.min(least, value), Math.max(most, value)], [Infinity, -Infinity]) : [0, 1];
}

/** As far below zero as above it: the colour between them means none. */
function differenceRange(table) {
  const size = table.flat().reduce((most, value) => (Number.isFinite(value) ? Math.max(most, Math.abs(value)) : most), 0) || 1;
  return [-size, size];
}

function drawHeatMap(box, table, { range, scale }, title, heat) {
  const [rows, columns] = [table.length, table[0].length];
  const span = range[1] - range[0] || 1;
  const paint = (value) => (Number.isFinite(value) ? mix(scale, (value - range[0]) / span) : NO_NUMBER);
  const [[top, left], [tall, wide]] = [heat.start ?? [0, 0], heat.block ?? [1, 1]];
  new Chart(box).draw({
    label: word("distribution.heat_label", { name: title, size: formatNumber(Math.max(...range.map(Math.abs))) }),
    series: [],
    x: heatAxis(left, wide, columns, [0, columns]),
    y: heatAxis(top, tall, rows, [rows, 0]),
    image: makeImage(columns, rows, (x, y) => paint(table[y][x])),
    bar: { href: makeImage(1, 64, (_, y) => paint(range[1] - (y / 63) * span)), ticks: [0, 0.5, 1].map((share) => [share, formatShort(range[0] + share * span)]) },
    margin: { left: 40, right: 74, top: 4, bottom: 24 },
    describe: (x, y) => {
      const [row, column] = [Math.floor(y * rows), Math.floor(x * columns)];
      return [`[${top + row * tall}, ${left + column * wide}]`, formatNumber(table[row][column])];
    },
  });
}

/** Cells are numbered by the first element in them. */
function heatAxis(start, block, count, range) {
  const ticks = roundTicks([start, start + (count - 1) * block], 4, true).map(([value, text]) => [(value - start) / block + 0.5, text]);
  return { range, ticks };
}

function formatShort(value) {
  return value === 0 ? "0" : formatTick(Number(value.toPrecision(2)));
}

function makeImage(width, height, paint) {
  const canvas = make("canvas", { width, height });
  const context = canvas.getContext("2d");
  const image = context.createImageData(width, height);
  for (let y = 0; y < height; y += 1) for (let x = 0; x < width; x += 1) image.data.set([...paint(x, y), 255], 4 * (y * width + x));
  context.putImageData(image, 0, 0);
  return canvas.toDataURL();
}

function mix(colours, share) {
  const place = Math.max(0, Math.min(1, share || 0)) * (colours.length - 1);
  const index = Math.min(colours.length - 2, Math.floor(place));
  return colours[index].map((from, part) => Math.round(from + (place - index) * (colours[index + 1][part] - from)));
}
