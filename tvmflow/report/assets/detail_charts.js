"use strict";
// The charts of one cell: layers, the turns of its latency, memory during a run, noise of quantized layers.

// Horizontal bars with their labels above them; href: of the label.
function barChart(width, bars, axis, title) {
  if (!bars.length) return null;
  const rows = keyed(bars), most = d3.max(rows, (row) => row.value);
  return plot(width, {
    height: 60 + ROW * rows.length, y: byRow(rows), ariaLabel: axis,
    x: {domain: [0, 1.04 * most || 1], label: axis, ticks: width < 500 ? 4 : 8, tickFormat: d3.format(","), grid: true},
    marks: [
      Plot.ruleY(rows, {x1: 0, x2: "value", y: "key", stroke: (row) => row.color ?? "var(--c0)", strokeWidth: 9}),
      Plot.dot(rows, {x: "value", y: "key", r: 8, fillOpacity: 0, stroke: "none", tip: true, title}),
      labels(rows, width),
    ],
  });
}

const anchorOf = (layer) => `layer-${[...layer].map((c) => (/[A-Za-z0-9]/.test(c) ? c : "_")).join("")}`;

function layersChart(width, cell) {
  const known = cell.layers.source.filter(([, , , , ms]) => typeof ms === "number").toSorted((a, b) => b[4] - a[4]), total = d3.sum(cell.layers.calls, ([, ms]) => ms ?? 0);
  const bars = known.slice(0, 16).map(([name, operator, , kernels, ms]) => ({label: `${percent(ms / total, 0)}  ${name} (${operator})`, value: ms, kernels, href: `#${anchorOf(name)}`}));
  if (known.length > 16) bars.push({label: `${known.length - 16} other layers`, value: d3.sum(known.slice(16), (row) => row[4]), kernels: []});
  return barChart(width, bars, "ms in one run, with what is fused into the layer", (row) => `${row.label}\n${ms(row.value)}\n${row.kernels.join("\n")}`);
}

// Turns of runs: those that count, and those that something disturbed.
function spreadChart(width, compute) {
  const turns = (compute.by_turn ?? []).map((turn, at) => ({...turn, at, kind: turn.counts ? "counts" : (turn.why ?? "another state or undisturbed, left out")}));
  if (turns.length < 3) return null;
  const kinds = [...new Set(turns.map((turn) => turn.kind))].toSorted((a, b) => (b === "counts") - (a === "counts")), values = turns.map((turn) => turn.median_ms);
  const top = Math.min(1.02 * d3.max(values), Math.max(1.25 * compute.median_ms, 1.05 * d3.quantile(values, 0.9))), low = d3.min(values) * 0.98, clipped = turns.filter((turn) => turn.median_ms > top).length;
  return plot(width, {
    height: 260, marginLeft: 44, marginTop: 24, ariaLabel: "distribution of the latency",
    x: {domain: [low, Math.max(top, low * 1.02)], label: `median of a turn (ms)${clipped ? `; ${clipped} slower turn${clipped === 1 ? "" : "s"} beyond the right` : ""}`, tickFormat: (x) => number(x), ticks: width < 500 ? 4 : 8}, y: {label: "turns", grid: true},
    color: {domain: kinds, range: kinds.map((kind, at) => (kind === "counts" ? "var(--c0)" : colorOf(at + 1))), legend: true},
    marks: [
      Plot.rectY(turns.filter((turn) => turn.median_ms <= top), Plot.binX({y: "count"}, {x: "median_ms", fill: "kind", thresholds: 24, inset: 0.5})),
      typeof compute.low_ms === "number" ? Plot.ruleY([{}], {x1: compute.low_ms, x2: compute.high_ms, y: 0, stroke: "var(--good)", strokeWidth: 6}) : null,
      Plot.ruleX([compute.median_ms], {stroke: "currentColor", strokeWidth: 1.5, strokeDasharray: "4 3"}),
      Plot.ruleY([0]),
    ],
  });
}

// Bytes of the arena in use during each call of a run.
function memoryChart(width, cell) {
  const {calls, arena_bytes: arena, labels: names} = cell.layers;
  if (calls.length < 2 || !arena) return null;
  const [unit, one] = arena < 1e6 ? ["kB", 1e3] : ["MB", 1e6];
  const rows = calls.map(([kernel, , live], at) => ({at: at + 1, live: live / one, label: names[kernel] || kernel})), peak = d3.greatest(rows, (row) => row.live);
  return plot(width, {
    height: 260, marginLeft: 56, marginTop: 30, ariaLabel: "memory during a run",
    x: {label: "call of a kernel, in order", ticks: width < 500 ? 4 : 8, tickFormat: (x) => (Number.isInteger(x) ? whole(x) : "")}, y: {domain: [0, 1.15 * Math.max(arena / one, peak.live)], label: `${unit} of activations in use`, grid: true, tickFormat: (x) => number(x)},
    marks: [
      Plot.areaY(rows, {x: "at", y: "live", fill: "var(--c0)", fillOpacity: 0.35, curve: "step"}),
      Plot.line(rows, {x: "at", y: "live", stroke: "var(--c0)", curve: "step"}),
      Plot.ruleY([arena / one], {stroke: "currentColor", strokeDasharray: "4 3"}),
      Plot.text([0], {frameAnchor: "top-right", dy: -14, text: () => `arena: ${number(arena / one)} ${unit}`, fill: "currentColor"}),
      Plot.dot(rows, {x: "at", y: "live", r: 5, fillOpacity: 0, stroke: "none", tip: true, title: (row) => `call ${row.at}: ${row.label}\n${number(row.live)} ${unit}`}),
    ],
  });
}

// Layers of a quantized network, those with most noise first; long bars are good.
function noiseChart(width, cell) {
  const rows = (cell.card.quantization.layers ?? []).map((row, at) => ({...row, label: cell.layers.noisy[at] ?? row.name})).filter((row) => typeof row.sqnr_db === "number" && row.sqnr_db < 190);
  const bars = rows.toSorted((a, b) => a.sqnr_db - b.sqnr_db).slice(0, 16).map((row) => ({label: row.label, value: Math.max(0, row.sqnr_db), color: row.name === cell.card.quantization.worst ? "var(--bad)" : "var(--c0)", total: row.total_sqnr_db, href: `#${anchorOf(row.label)}`}));
  return barChart(width, bars, width < 600 ? "SQNR of the layer alone (dB)" : "signal over quantization noise of the layer alone (dB; short: most noise)", (row) => `${row.label}\nalone ${number(row.value)} dB\nin its place ${number(row.total)} dB`);
}
