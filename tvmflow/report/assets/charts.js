"use strict";
// The charts. Each returns an element, or null where there is nothing to draw; rows carry their labels inside the plot, so that
// long names fit a narrow screen.

const COLORS = d3.range(8).map((at) => `var(--c${at})`);
const colorOf = (at) => COLORS[at % COLORS.length];
const VERDICT_COLORS = {domain: ["good", "tie", "bad"], range: ["var(--good)", "var(--tie)", "var(--bad)"]};
const ROW = 38;

function plot(width, options) {
  return Plot.plot({width, marginLeft: 16, marginRight: 20, marginTop: 14, marginBottom: 40, style: {fontSize: "12px", fontFamily: "inherit"}, ...options});
}

const labels = (rows, width) =>
  Plot.text(rows, {frameAnchor: "left", y: "key", text: (row) => short(row.label, Math.floor(width / 7.2)), href: (row) => row.href ?? null, dy: -15, dx: -6, textAnchor: "start", fill: "currentColor"});

const keyed = (rows) => rows.map((row, at) => ({...row, key: at}));
const byRow = (rows) => ({type: "point", domain: d3.range(rows.length), axis: null, padding: 0.6});

// Round ratios that have room beside each other on a logarithmic axis; 1 always.
function ratioTicks(low, high, width) {
  const room = (44 * Math.log(high / low)) / width, chosen = [1];
  const steps = [1.1, 1.2, 1.3, 1.5, 1.7, 2, 2.5, 3, 4, 5, 7, 10, 20, 50, 100, 1000].flatMap((x) => [x, +(1 / x).toPrecision(2)]);
  for (const x of steps) if (x > low && x < high && chosen.every((y) => Math.abs(Math.log(x / y)) > room)) chosen.push(x);
  return chosen;
}

// Round numbers that have room beside each other on a logarithmic axis, the roundest first.
function logTicks(low, high, width) {
  const room = (58 * Math.log(high / low)) / width, chosen = [], powers = d3.range(Math.floor(Math.log10(low)), Math.ceil(Math.log10(high)) + 1);
  for (const x of [1, 2, 5, 3, 7, 4, 6, 8, 1.5].flatMap((digit) => powers.map((power) => +`${digit}e${power}`))) {
    if (x > low && x < high && chosen.every((y) => Math.abs(Math.log(x / y)) > room)) chosen.push(x);
  }
  return chosen;
}

// Ratios far beyond the others would squeeze them: they end at the side of the chart, with their number.
function ratioRange(rows) {
  const middle = d3.median(rows, (row) => row.center), low = Math.min(0.9, d3.min(rows, (row) => row.low)), high = Math.max(1.1, d3.max(rows, (row) => row.high));
  return [Math.max(low, Math.min(0.2, middle / 5)) / 1.05, Math.min(high, Math.max(5, 4 * middle)) * 1.08];
}

function ratioChart(width, ratios, axis) {
  const known = keyed(ratios.filter((row) => typeof row.low === "number"));
  if (!known.length) return null;
  const [low, high] = ratioRange(known), inside = (x) => Math.min(high, Math.max(low, x));
  const rows = known.map((row) => ({...row, from: inside(row.low), to: inside(row.high), at: inside(row.center)}));
  const before = Math.log(1 / low) / Math.log(high / low), onRight = before < 0.5;  // the line of 1x: its label has room on one side
  const room = Math.floor((width * Math.max(before, 1 - before)) / 7.4);
  return plot(width, {
    height: 60 + ROW * rows.length, color: VERDICT_COLORS, y: byRow(rows), ariaLabel: axis,
    x: {type: "log", domain: [low, high], label: axis, ticks: ratioTicks(low, high, width), tickFormat: (x) => `${number(x, 2)}x`, grid: true},
    marks: [
      Plot.ruleX([1], {stroke: "currentColor", strokeWidth: 1.5}),
      Plot.ruleY(rows, {x1: "from", x2: "to", y: "key", stroke: "verdict", strokeWidth: 4, strokeLinecap: "round"}),
      Plot.dot(rows, {x: "at", y: "key", fill: "verdict", stroke: "var(--panel)", r: 6, tip: true, title: (row) => `${row.label}\n${row.text}`}),
      Plot.text(rows.filter((row) => row.at !== row.center), {x: "at", y: "key", text: (row) => (row.center > high ? `${number(row.center)}x ▸` : `◂ ${number(row.center)}x`), textAnchor: (row) => (row.center > high ? "end" : "start"), dx: (row) => (row.center > high ? -10 : 10), fill: "currentColor"}),
      Plot.text(rows, {x: () => 1, y: "key", text: (row) => short(row.label, room), textAnchor: onRight ? "start" : "end", dx: onRight ? 5 : -5, dy: -15, fill: "currentColor"}),
    ],
  });
}

function trendChart(width, cells) {
  const rows = cells.flatMap((cell) => cell.history.filter((row) => typeof row.latency_ms === "number").map((row) => ({...row, time: new Date(row.time_ms)})));
  if (!rows.length) return null;
  const names = [...new Set(rows.map((row) => row.cell))];
  const [first, last] = d3.extent(rows, (row) => row.time_ms), pad = Math.max(36e5, 0.06 * (last - first)), days = (last - first) / 864e5;
  const [least, most] = d3.extent(rows, (row) => row.latency_ms), wide = most > 8 * least;
  const steps = cells.flatMap((cell) => cell.history.filter((row, at) => at && cell.history[at - 1].tvm !== row.tvm).map((row) => ({tvm: row.tvm, time: new Date(row.time_ms)})));
  const versions = [...d3.group(steps, (step) => `${step.tvm} ${step.time.toISOString().slice(0, 10)}`).values()].map((group) => group[0]);
  const withRange = rows.filter((row) => typeof row.low_ms === "number");
  return plot(width, {
    height: 340, marginLeft: 56, marginTop: 34, r: {type: "identity"}, ariaLabel: "median latency over time",
    x: {type: "utc", domain: [new Date(first - pad), new Date(last + pad)], label: `UTC, from ${d3.utcFormat("%Y-%m-%d")(new Date(first))}`, ticks: width < 500 ? 4 : 8, tickFormat: d3.utcFormat(days < 3 ? "%H:%M" : days < 200 ? "%d %b" : "%b %Y")},
    y: {type: wide ? "log" : "linear", zero: !wide, label: "median latency (ms)", grid: true, ticks: 6, tickFormat: (x) => number(x)},
    color: {domain: names, range: names.map((_, at) => colorOf(at)), legend: true, tickFormat: (name) => short(name)},
    marks: [
      Plot.ruleX(versions, {x: "time", stroke: "var(--muted)", strokeDasharray: "4 3"}),
      Plot.text(versions, {x: "time", text: (step) => `TVM ${step.tvm}`, frameAnchor: "top", dy: -14, fill: "currentColor"}),
      Plot.line(rows, {x: "time", y: "latency_ms", z: (row) => `${row.cell} ${row.device} ${row.unit}`, stroke: "cell", strokeWidth: 1.5}),
      Plot.ruleX(withRange, {x: "time", y1: "low_ms", y2: "high_ms", stroke: "cell", strokeWidth: 3}),
      Plot.dot(rows, {
        x: "time", y: "latency_ms", fill: "cell", stroke: "var(--panel)", symbol: (row) => (row.roles.includes("champion") ? "star" : "circle"),
        r: (row) => (row.roles.includes("champion") ? 7 : 4), tip: true,
        title: (row) => [row.cell, `${row.when}, TVM ${row.tvm}, ${unitText(row)}`, `${ms(row.latency_ms)} ${rangeText(row)}`, row.version, ...row.changed.slice(0, 6).map((line) => short(line, 60))].filter(Boolean).join("\n"),
      }),
    ],
  });
}

function profileChart(width, cell) {
  const known = cell.workloads.filter((row) => row.total_ms > 0);
  if (!known.length) return null;
  const rest = known.slice(14), total = d3.sum(known, (row) => row.total_ms);
  const sum = (name) => d3.sum(rest, (row) => (name === "default" ? row.calls * (row.default_ms ?? row.best_ms) : row.total_ms));
  const rows = known.slice(0, 14).map((row) => ({label: kernelLabel(cell, row), href: layerOfKernel(cell, row), total: row.total_ms, before: row.calls * (row.default_ms ?? row.best_ms), calls: row.calls}));
  if (rest.length) rows.push({label: `${rest.length} other kernels`, total: sum("total"), before: sum("default"), calls: d3.sum(rest, (row) => row.calls)});
  const shown = keyed(rows);
  return plot(width, {
    height: 60 + ROW * shown.length, y: byRow(shown), ariaLabel: "time of each kernel",
    x: {domain: [0, 1.04 * d3.max(shown, (row) => Math.max(row.total, row.before))], label: "ms in one run (pale: default schedule)", ticks: width < 500 ? 4 : 8, tickFormat: d3.format(","), grid: true},
    marks: [
      Plot.ruleY(shown, {x1: 0, x2: "before", y: "key", stroke: "var(--faint)", strokeWidth: 12}),
      Plot.ruleY(shown, {x1: 0, x2: "total", y: "key", stroke: "var(--c0)", strokeWidth: 8}),
      Plot.dot(shown, {x: "total", y: "key", r: 8, fillOpacity: 0, stroke: "none", tip: true, title: (row) => `${row.label}\n${ms(row.total)}, ${percent(row.total / total, 0)} of all kernels\n${row.calls} calls; default ${ms(row.before)}`}),
      labels(shown.map((row) => ({...row, label: `${percent(row.total / total, 0)}  ${row.label}`})), width),
    ],
  });
}

function roofChart(width, points, roofs, axis) {
  if (!points.length) return null;
  const [least, most] = d3.extent([...points.map((row) => row.intensity), ...roofs.map((roof) => roof.peak / roof.bandwidth)]);
  const from = least / 1.6, to = most * 1.6;
  const floor = d3.min(points, (row) => row.speed) / 1.6;
  const lines = roofs.flatMap((roof, at) => [Math.max(from, floor / roof.bandwidth), roof.peak / roof.bandwidth, to].map((x) => ({x, y: Math.min(roof.peak, roof.bandwidth * x), at})));
  const names = [...new Set(points.map((row) => row.group))];
  return plot(width, {
    height: 360, marginLeft: 56, marginTop: 24, ariaLabel: "roofline",
    x: {type: "log", domain: [from, to], label: "operations per byte", ticks: width < 500 ? 3 : 6, tickFormat: (x) => number(x, 2), grid: true},
    y: {type: "log", domain: [floor, 2 * d3.max(roofs, (roof) => roof.peak)], label: axis, ticks: 5, tickFormat: (x) => number(x, 2), grid: true},
    color: {domain: names, range: names.map((_, at) => colorOf(at)), legend: names.length > 1, tickFormat: (name) => short(name)},
    marks: [
      Plot.line(lines, {x: "x", y: "y", z: "at", stroke: "currentColor", strokeWidth: 1.5}),
      Plot.text(roofs, {x: to, y: (roof) => 1.55 * roof.peak, text: "label", textAnchor: "end", fill: "currentColor"}),
      Plot.dot(points, {x: "intensity", y: "speed", r: (row) => 3 + 9 * Math.sqrt(row.share), fill: "group", fillOpacity: 0.75, stroke: "var(--panel)", tip: true, title: (row) => `${row.label}\n${number(row.speed)} ${axis}\n${number(row.intensity)} operations per byte`}),
    ],
    r: {type: "identity"},
  });
}

const isInteger = (dtype) => /^u?int/.test(dtype ?? "");
const speedUnit = (dtype) => (isInteger(dtype) ? "GOP/s" : "GFLOP/s");

// The roof is what evaluate measured of the machine, a line for each type of numbers; without it the highest speed and
// the highest traffic that any kernel reached here.
function kernelRoofline(width, cell) {
  const known = cell.workloads.filter((row) => row.flops > 0 && row.nbytes > 0 && row.gflops > 0);
  const total = d3.sum(known, (row) => row.total_ms), axis = [...new Set(known.map((row) => speedUnit(row.dtype)))].toSorted().join(", ");
  const points = known.map((row) => ({label: kernelLabel(cell, row), group: row.template, intensity: row.flops / row.nbytes, speed: row.gflops, share: row.total_ms / total}));
  const peak = d3.max(points, (row) => row.speed), bandwidth = d3.max(points, (row) => row.speed / row.intensity), ceilings = cell.card.bounds?.ceilings;
  const dtypes = new Set(known.map((row) => row.dtype)), measured = Object.entries(ceilings?.operations ?? {}).filter(([dtype]) => dtypes.has(dtype));
  if (!measured.length) return roofChart(width, points, [{peak, bandwidth, label: `highest seen: ${number(peak)} ${axis}, ${number(bandwidth)} GB/s`}], axis);
  const read = ceilings.read ? ceilings.read / 1e9 : bandwidth;
  return roofChart(width, points, measured.map(([dtype, speed]) => ({peak: speed / 1e9, bandwidth: read, label: `${dtype}: ${number(speed / 1e9)} ${speedUnit(dtype)}, reads ${number(read)} GB/s`})), axis);
}

// A kernel's name after the layers that it computes, where these are known.
const callsOf = (cell, row) => cell.kernels.filter((kernel) => kernel.workload && kernel.workload === row.key).map((kernel) => kernel.name);
function layerOfKernel(cell, row) {
  const names = new Set(callsOf(cell, row)), layer = cell.layers.source.find(([, , , kernels]) => kernels.some((kernel) => names.has(kernel)));
  return layer ? `#${anchorOf(layer[0])}` : null;
}
function kernelLabel(cell, row) {
  const names = callsOf(cell, row).map((name) => cell.layers.labels[name]).filter(Boolean);
  return names.length ? `${names.slice(0, 2).join(", ")}: ${row.name}` : row.name;
}

function partRoofline(width, cells) {
  const points = cells.flatMap((cell) => cell.card.part.layers.filter((row) => row.operations && row.gops > 0).map((row) => ({label: row.name, group: nameOf(cell), intensity: row.operations_per_byte, speed: row.gops, share: row.cycles.total / cell.card.part.cycles})));
  const roofs = d3.groups(cells, (cell) => `${cell.card.part.peak_gops} ${cell.card.part.peak_gbytes}`).map(([, group]) => group[0].card.part)
    .map((part) => ({peak: part.peak_gops, bandwidth: part.peak_gbytes, label: `${number(part.peak_gops)} GOP/s, ${number(part.peak_gbytes)} GB/s of the design`}));
  return roofChart(width, points, roofs, "GOP/s");
}

function curveChart(width, cells) {
  const rows = cells.flatMap((cell) => cell.curve.map(([trial, value]) => ({cell: nameOf(cell), trial, share: value / cell.curve[0][1]})));
  const names = [...new Set(rows.map((row) => row.cell))];
  if (rows.length < 2) return null;
  return plot(width, {
    height: 300, marginLeft: 50, marginTop: 24, ariaLabel: "time of all kernels while tuning",
    x: {label: "trial", ticks: width < 500 ? 4 : 8, tickFormat: (x) => number(x)}, y: {domain: [0, 1.05], label: "time of all kernels / default schedules", grid: true},
    color: {domain: names, range: names.map((_, at) => colorOf(at)), legend: true, tickFormat: (name) => short(name)},
    marks: [Plot.line(rows, {x: "trial", y: "share", z: "cell", stroke: "cell", strokeWidth: 2, curve: "step-after", tip: true})],
  });
}

function stageChart(width, cells) {
  const bars = keyed(cells.map((cell) => ({label: nameOf(cell), stages: cell.stage_s}))).flatMap((row) => {
    let end = 0;
    return Object.entries(row.stages).map(([stage, seconds]) => ({key: row.key, stage, seconds, from: end, to: (end += seconds)}));
  });
  if (!bars.length) return null;
  const names = [...new Set(bars.map((bar) => bar.stage))], rows = keyed(cells.map((cell) => ({label: nameOf(cell)})));
  return plot(width, {
    height: 60 + ROW * rows.length, y: byRow(rows), ariaLabel: "seconds of each stage",
    x: {domain: [0, 1.02 * d3.max(bars, (bar) => bar.to)], label: "seconds, when the stage was last made", ticks: width < 500 ? 4 : 8, tickFormat: d3.format(","), grid: true},
    color: {domain: names, range: names.map((_, at) => colorOf(at)), legend: true},
    marks: [
      Plot.ruleY(bars, {x1: "from", x2: "to", y: "key", stroke: "stage", strokeWidth: 12}),
      Plot.dot(bars, {x: (bar) => (bar.from + bar.to) / 2, y: "key", r: 6, fillOpacity: 0, stroke: "none", tip: true, title: (bar) => `${bar.stage}\n${number(bar.seconds)} s`}),
      labels(rows, width),
    ],
  });
}
