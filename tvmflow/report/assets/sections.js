"use strict";
// The parts of the page. Each takes the cells that the filters leave and returns the elements of its section.

const NOTES = {
  matrix: "Latency: median of single runs of one batch on the device's clock, copies not included; below it the interval of the median over the rounds, the least time that this machine's ceilings allow for the kernels' arithmetic and for reading the constants, accuracy and how far it is from the source's, and what is released. Where the spread was too wide, other processes took too much of the machine, or something ran on other threads, that stands instead of a number.",
  fleet: "The newest measurements beside those of the champions, each unit with itself. Of one unit: the others of its kind did not get worse, so look at this device. Of the fleet: all units of the kind did. 'tvmflow regressions' shows every comparison.",
  times: "Single runs of one batch on the device's clock, in the turns that count. Of GPUs also the start of an app, from opening the library to the first output, with an empty and a filled cache of compiled programs, and get_output: the copy of the outputs to the host, a part of each run.",
  peers: "Baselines: same input, same threads, on the same machine, in turns with the library. A point is the speedup of the library, the bar its 95 % interval over the rounds; grey if the interval contains 1: no difference shown.",
  compare: "The latency of B over that of A; the interval is the widest that both intervals allow, and only one that leaves out 1 is a difference. Both were measured at their own time: what a machine does from day to day is not in it. 'tvmflow promote' measures a library in turns with the champion.",
  trend: "A star is the champion; a dashed line is a new version of TVM; the bar at a point is the interval of its median. A step counts as faster or slower only where the intervals of both measurements do not meet.",
  forms: "Accuracy after each stage on the evaluation set, then how the outputs of a stage agree with those of the stage before it: equal top-1, the largest error relative to how the outputs vary over inputs and classes, and the signal-to-noise ratio of the varying part.",
  pareto: "Each point is a cell on the chosen device; its size is that of the library, a star is the champion. The dashed line joins the cells of a model than which no other is both faster and as accurate.",
  layers: "Kernels as evaluate timed them inside the network, put back to the layers of the source by the steps that they compute. A kernel that computes several layers counts for each of them in equal parts; a bar's label leads to the table below.",
  spread: "The median of each short turn of runs. Turns that something disturbed, or in another state of the machine, do not count; the green line is the interval of the reported median, the dashed line the median.",
  memory: "Bytes of the arena that hold values which are still needed, during each call. The dashed line is the arena: what is above the area are gaps and alignment. Constants are not in it.",
  profile: "From tuning: each kernel timed by itself on the device, times its calls in one run, without the calls and the memory between kernels; in the network caches hold other data, so the sum may be above or below the latency. Of the bound: the least time of the kernel's arithmetic, by the ceiling that evaluate measured, over its time.",
  roof: "Operations and bytes of each kernel by its definition, every input and output counted once, so the true intensity is at most this. The roof is what evaluate measured of this machine: multiply-adds of each type in registers, and reads of a buffer as large as the constants; kernels whose data stay in caches may be above the slope. Without that measurement it is the highest that any kernel of this cell reached. The size of a point is its share of the time.",
  retune: "reused: measured under this toolchain before; re-measured: the older toolchain's schedule, measured again and kept; re-tuned: it got slower, so the kernel was searched anew; lost: it does not apply any more, searched anew; new: never tuned before on this kind of device. Kernels of the network as it was built.",
  tuning: "Coverage: share of the network's operations whose kernels have a schedule that was measured on this kind of device. 'tvmflow records CELL --failed' lists the candidates that failed, and why.",
  part: "Bytes of inputs, weights, accumulators, micro-ops and outputs as VTA's simulator counts them (8-bit loads into accumulators at four bytes an element); DRAM: what really moves, instructions included. Cycles are estimated from the tokens of the program at the clock of the design, not measured on a board. A point far below the roof waits for tokens or works in the ALU.",
  links: "Runs and versions open in MLflow's UI; start it with the command above where no server runs. Folders are beside this page, in the workspace.",
};
const note = (name) => h("p", {class: "note"}, NOTES[name]);

// What makes the quality of a cell doubtful.
const warningsOf = (card) => (card.warnings ?? []).map((one) => h("small", {class: "warn", title: one.text}, one.badge));

function matrixCell(cell) {
  if (!cell) return "";
  const card = cell.card, last = newest(cell), compute = card.latency.compute;
  const simulated = Boolean(card.part?.simulated || card.executed);
  const champion = cell.history.findLast((row) => row.roles.includes("champion"));
  const lines = [...computeShown(card), ...warningsOf(card)];
  if (!simulated && typeof compute.low_ms === "number") lines.push(h("small", null, rangeText(compute)));
  if (!simulated && statesText(compute)) lines.push(h("small", null, statesText(compute)));
  if (card.bounds && !card.bounds.reason) lines.push(h("small", null, boundText(card)));
  if (card.accuracy) lines.push(h("small", null, `${percent(card.accuracy.built)} (source ${percent(card.accuracy.source)})`));
  for (const name of Object.keys(card.peers)) {
    const peer = peerOf(card, name);
    if (peer) lines.push(h("small", null, `${name} `, h("span", {class: peer.verdict}, peer.text)));
  }
  if (champion) lines.push(badge(champion.sha256 === last.sha256 ? `★ champion, version ${champion.version_number}` : `★ champion is version ${champion.version_number}`));
  else lines.push(h("small", null, "no champion"));
  return lines;
}

function matrixSection(cells) {
  const kinds = new Map(cells.map((cell) => [cell.target, cell.card.device.kind]));
  const rows = d3.groups(cells, (cell) => `${cell.model}\n${cell.target}`);
  const precisions = data.precisions.filter((name) => cells.some((cell) => cell.precision === name));
  const columns = [["model and device", "left name"], ...precisions.map((name) => [name, "left"])];
  const lines = rows.map(([, group]) => [[code(group[0].model), h("small", null, group[0].target), h("small", null, kinds.get(group[0].target) ?? "")], ...precisions.map((name) => matrixCell(group.find((cell) => cell.precision === name)))]);
  return [h("h2", null, "Models, devices, precisions"), table(columns, lines), note("matrix")];
}

const TIMES = ["mean", "median", "max", "min", "std"];
const msText = (ms) => (typeof ms === "number" ? `${number(ms, 4)} ms` : "–");

// Execution times side by side; of GPU cells, the waits of an app at its start and for its outputs.
function timesSection(cells) {
  const lines = cells.map((cell) => [code(nameOf(cell)), ...TIMES.map((name) => msText(cell.execution.times?.[name]))]);
  const started = cells.filter((cell) => cell.execution.start);
  const starts = started.map((cell) => {
    const start = cell.execution.start, first = (ms, runs) => [msText(ms), h("small", null, `${number(runs, 3)} runs`)];
    return [code(nameOf(cell)), first(start.empty_ms, start.empty_runs), first(start.filled_ms, start.filled_runs), msText(start.run_ms), [msText(start.get_output_ms), h("small", null, `${percent(start.get_output_share)} of a run`)]];
  });
  const columns = [["cell", "left name"], ["start, empty cache", ""], ["start, filled cache", ""], ["run", ""], ["get_output", ""]];
  return [h("h2", null, "Execution time"), table([["cell", "left name"], ...TIMES.map((name) => [name, ""])], lines), starts.length ? table(columns, starts) : "", note("times")];
}

const CAUSES = {fleet: "of the fleet", unit: "of one unit", alone: "no other unit to compare", "": ""};

// What got worse on which device; the filters leave the changes of their cells.
function fleetSection(cells) {
  const fleet = data.fleet;
  if (!fleet) return null;
  const names = new Set(cells.map(nameOf)), worse = fleet.worse.filter((one) => names.has(one.cell));
  const kinds = new Set(fleet.units.map((one) => one.device)).size;
  const summary = `${fleet.units.length} unit${fleet.units.length === 1 ? "" : "s"} of ${kinds} kind${kinds === 1 ? "" : "s"} of devices; compared with the champions: ${fleet.compared}, worse: ${fleet.worse.length}`;
  const lines = worse.map((one) => [code(one.cell), [one.device, h("small", null, one.unit)], one.worse.map((text) => h("div", {class: "bad"}, text)), CAUSES[one.cause], one.changed.join("; ") || "nothing"]);
  const units = () => table([["device", "left name"], ["unit", "left"], ["cells", ""], ["compared", ""], ["worse", ""], ["last measured", ""]], fleet.units.map((one) => [one.device, one.unit, whole(one.cells), whole(one.compared), h("span", {class: one.worse ? "bad" : ""}, whole(one.worse)), one.last]));
  return [h("h2", null, "Fleet"), h("p", null, summary), fleet.suspects.map((text) => h("p", {class: "warn"}, text)), table([["cell", "left name"], ["device", "left"], ["worse", "wrap"], ["seen on", "left"], ["what changed", "wrap"]], lines, "Nothing got worse since the champions."), folded("All units", units, fleet.units.length <= 20), note("fleet")];
}

function peersSection(cells, width) {
  const rows = cells.flatMap((cell) => Object.keys(cell.card.peers).map((name) => ({label: `${name}: ${nameOf(cell)}`, ...peerOf(cell.card, name)})));
  const names = [...new Set(cells.flatMap((cell) => Object.keys(cell.card.peers)))].sort();
  const columns = [["cell", "left name"], ["device", "left"], ["accuracy", ""], ["top-1 agreement", ""], ["error", ""], ["latency", ""], ["bound", "wrap"], ...names.map((name) => [name, ""]), ["cold start", ""], ["library", ""]];
  const lines = cells.map(({card}) => [
    [code(card.cell), ...warningsOf(card)], card.device.kind, percent(card.accuracy?.built), percent(card.agreement.top1_agreement), number(card.agreement.max_relative_error, 2),
    computeShown(card), boundText(card),
    ...names.map((name) => (card.peers[name] ? [latencyText(card.peers[name]), peerOf(card, name) ? h("small", {class: peerOf(card, name).verdict}, peerOf(card, name).text) : ""] : "–")),
    ms(card.cold_start_ms.toSorted((a, b) => a - b)[card.cold_start_ms.length >> 1]), megabytes(card.library_bytes),
  ]);
  const ways = cells.flatMap(({card}) => [
    ...Object.entries(card.peer_variants ?? {}).map(([name, way]) => `${card.cell}: ${name} ran as ${way}`),
    ...Object.entries(card.peers_left_out ?? {}).map(([name, why]) => `${card.cell}: ${name} was left out: ${why}`),
  ]);
  const said = ways.length ? folded("how each baseline ran, and which were left out", () => h("ul", {class: "note"}, ways.map((line) => h("li", null, line)))) : "";
  return [h("h2", null, "Baselines"), chart("peers", ratioChart(width, rows, "times faster than the baseline"), names.length ? "No baseline has an interval yet: a difference is shown after more rounds of turns." : "No baseline was measured in turns with these cells."), table(columns, lines), said, note("peers")];
}

function measurementsOf(cells) {
  return cells.flatMap((cell) => cell.history.map((row, at) => ({...row, owner: cell, at, label: `${row.cell} · ${row.when} · TVM ${row.tvm}${row.version ? ` · version ${row.version}` : ""}`})));
}

function compareSection(cells, width, state, redraw) {
  const all = measurementsOf(cells);
  if (all.length < 2) return [h("h2", null, "Compare"), h("p", {class: "note"}, "Two measurements are needed: of two cells, or of two versions of one.")];
  const key = (row) => `${row.run_id}`;
  // Without a choice: the newest version of the model that has several, beside the version before it.
  const versions = (cell) => new Set(cell.history.map((row) => row.version_number).filter(Boolean)).size;
  const several = cells.find((cell) => versions(cell) > 1) ?? cells.find((cell) => cell.history.length > 1);
  const b = all.find((row) => key(row) === state.b) ?? (several ? all.findLast((row) => row.owner === several) : all[1]);
  const earlier = all.filter((row) => row.owner === b.owner && row.at < b.at);
  const before = earlier.findLast((row) => row.version_number && row.version_number !== b.version_number) ?? earlier.at(-1);
  const a = all.find((row) => key(row) === state.a) ?? before ?? all.find((row) => row !== b);
  const choose = (name, chosen) =>
    h("label", null, name, h("select", {id: `compare-${name}`, onchange: (event) => { state[name.toLowerCase()] = event.target.value; redraw(); }}, all.map((row) => h("option", {value: key(row), selected: row === chosen}, row.label))));
  const ratio = ratioOf(a, b);
  const both = (name, show) => [name, show(a), show(b)];
  const rows = [
    both("latency", (row) => [row.latency, h("small", null, rangeText(row)), row.badges ? h("small", {class: "warn"}, row.badges) : ""]), both("accuracy", (row) => row.accuracy), both("error", (row) => number(row.max_relative_error, 2)),
    both("library", (row) => megabytes(row.library_bytes)), both("device", (row) => row.device), both("unit", (row) => row.unit || "–"), both("cores apart", (row) => (typeof row.round_trip_ns === "number" ? `${number(row.round_trip_ns)} ns` : "–")), both("its system", (row) => row.build || "–"), both("TVM", (row) => row.tvm), both("library sha256", (row) => code(row.library)),
    both("version", (row) => [versionLink(row.owner, row), roles(row)]), both("run", runLink), both("commit", (row) => code(row.commit.slice(0, 12) || "–")),
  ];
  const between = a.owner === b.owner ? a.owner.history.slice(Math.min(a.at, b.at) + 1, Math.max(a.at, b.at) + 1).flatMap((row) => row.changed) : [];
  const ratios = [{label: `B / A: ${b.cell}`, text: "", ...ratio}];
  return [
    h("h2", null, "Compare"), h("div", {class: "pair"}, choose("A", a), choose("B", b)),
    h("p", null, "Latency of B / A: ", ratioText(ratio)), ratio.verdict ? chart("compare", ratioChart(width, ratios, "latency of B / A"), "") : "",
    h("div", {class: "both"}, table([["", "left"], ["A", ""], ["B", ""]], rows)), between.length ? [h("h3", null, "What changed between them"), h("ul", null, between.map((line) => h("li", null, line)))] : "", note("compare"),
  ];
}

function historyTable(cell, open) {
  const columns = [["when", "left"], ["TVM", ""], ["device", "left"], ["latency", ""], ["beside the last like it", "wrap right"], ["accuracy", ""], ["library", ""], ["version", "left"], ["run", ""], ["what changed", "wrap"]];
  const make = () => {
    const lines = cell.history.map((row, at) => [
      row.when, row.tvm, [row.device, h("small", null, row.unit)], [row.latency, h("small", null, rangeText(row)), row.badges ? h("small", {class: "warn"}, row.badges) : ""], beforeOf(cell.history, at) ? ratioText(ratioOf(beforeOf(cell.history, at), row)) : "–", row.accuracy, code(row.library),
      [versionLink(cell, row), roles(row)], runLink(row), at ? row.changed.map((line) => h("div", null, line)) : cell.measured > cell.history.length ? "–" : "the first",
    ]);
    const trail = cell.releases.map((entry) => h("li", null, `${entry.when} ${entry.what}: version ${entry.version}, before ${entry.before ?? "none"}; ${entry.why}`));
    return [table(columns, lines, "not in MLflow"), trail.length ? h("ul", {class: "note"}, trail) : null];
  };
  return folded([code(nameOf(cell)), `: ${cell.measured} measurement${cell.measured === 1 ? "" : "s"}${cell.measured > cell.history.length ? `, the newest here; all: tvmflow history ${nameOf(cell)}` : ""}`], make, open && cell.history.length > 1);
}

function trendSection(cells, width) {
  return [h("h2", null, "Latency over dates and TVM versions"), chart("trend", trendChart(width, cells), "No latency is in MLflow."), cells.map((cell) => historyTable(cell, cells.length < 3)), note("trend")];
}

function formsSection(cells, width, state, redraw) {
  const columns = [["cell", "left name"], ...data.forms.map((name) => [name, ""]), ...data.steps.map((name) => [name.replace("-", " → "), ""])];
  const step = (agreement) => (agreement ? [agreement.top1_agreement === null || agreement.top1_agreement === undefined ? "" : percent(agreement.top1_agreement), h("small", null, `${number(agreement.max_relative_error, 2)}${typeof agreement.sqnr_db === "number" ? `, ${number(agreement.sqnr_db)} dB` : ""}`)] : "–");
  const lines = cells.map(({card}) => [code(card.cell), ...data.forms.map((name) => percent(card.accuracy?.[name])), ...data.steps.map((name) => step(card.agreement_by_step[name]))]);
  return [h("h2", null, "Accuracy after each stage"), table(columns, lines), note("forms"), noiseOf(cells, width, state, redraw), cells.map(layersOf)];
}

// The layers of one cell, those with most noise first.
function noiseOf(cells, width, state, redraw) {
  const known = cells.filter((cell) => cell.card.quantization.layers?.length);
  if (!known.length) return "";
  const cell = known.find((one) => nameOf(one) === state.profile) ?? known[0];
  const choose = h("select", {id: "noise-cell", "aria-label": "cell", onchange: (event) => { state.profile = event.target.value; redraw(); }}, known.map((one) => h("option", {selected: one === cell}, nameOf(one))));
  return [h("h3", null, "Quantization noise of layers"), h("p", null, choose), chart("noise", noiseChart(width, cell), "No layer of this cell is rounded.")];
}

function layersOf(cell) {
  const quantization = cell.card.quantization;
  if (!quantization.layers) return "";
  const goal = quantization.goal_met === null || quantization.goal_met === undefined ? "" : `; the goal of max_drop is ${quantization.goal_met ? "met" : "not met"}`;
  const moved = quantization.moved_to_float?.length ? `; moved back to float32: ${quantization.moved_to_float.join(", ")}` : "";
  const decibel = (x) => (typeof x === "number" ? `${x.toFixed(1)} dB` : "–");
  const columns = [["layer", "left"], ["dtype", "left"], ["SQNR alone", ""], ["SQNR in its place", ""], ["scale", ""], ["zero point", ""], ["clipped", ""]];
  const make = () => table(columns, quantization.layers.map((row, at) => [[cell.layers.noisy[at] ?? row.name, " ", cell.layers.noisy[at] === row.name ? "" : h("small", null, row.name), row.name === quantization.worst ? [" ", badge("most noise")] : ""], row.dtype ?? row.form ?? "", decibel(row.sqnr_db), decibel(row.total_sqnr_db), number(row.scale), row.zero_point ?? "–", percent(row.clipped, 3)]));
  return folded([code(nameOf(cell)), `: SQNR of the outputs ${decibel(quantization.output_sqnr_db)} on ${quantization.samples} calibration samples${moved}${goal}`], make);
}

// Kernels where they run, in the network, as evaluate timed them beside the ceilings that it measured.
function boundsOf(cell) {
  const rows = cell.card.bounds?.kernels ?? [], total = d3.sum(rows, (row) => row.ms);
  if (!rows.length) return "";
  const columns = [["kernel", "left name"], ["in the network", ""], ["of all kernels", ""], ["at least", ""], ["reached", ""]];
  const make = () => table(columns, rows.map((row) => [[code(row.name), h("small", null, cell.layers.labels[row.name] ?? "")], ms(row.ms), percent(row.ms / total, 0), ms(row.least_ms), percent(row.share, 0)]));
  return folded("kernels in the network, those that lose most beside their least time first", make);
}

function profileSection(cells, width, state, redraw) {
  const known = cells.filter((cell) => cell.workloads.length);
  if (!known.length) return [h("h2", null, "Kernels and roofline"), h("p", {class: "note"}, "No cell here has timed kernels: they come from tuning (tune.trials_per_workload above 0).")];
  const cell = known.find((one) => nameOf(one) === state.profile) ?? known[0];
  const half = width > 900 ? (width - 20) / 2 : width;
  const columns = [["kernel", "left name"], ["template", "left"], ["calls", ""], ["default", ""], ["best", ""], ["of the network", ""], ["speed", ""], ["of the fastest", ""], ["of the bound", ""], ["operations/byte", ""], ["trials", ""], ["schedule", "left"]];
  const make = () => table(columns, cell.workloads.map((row) => [[code(row.name), h("small", null, kernelLabel(cell, row).replace(`: ${row.name}`, "").replace(row.name, ""))], row.template, row.calls, ms(row.default_ms), ms(row.best_ms), ms(row.total_ms), row.gflops ? `${number(row.gflops)} ${speedUnit(row.dtype)}` : "–", row.gflops ? percent(row.of_best, 0) : "–", kernelShare(cell.card, row), row.flops && row.nbytes ? number(row.flops / row.nbytes) : "–", row.trials, row.origin ?? "–"]));
  return [
    h("h2", null, "Kernels and roofline"),
    h("p", null, h("select", {id: "profile-cell", "aria-label": "cell", onchange: (event) => { state.profile = event.target.value; redraw(); }}, known.map((one) => h("option", {selected: one === cell}, nameOf(one))))),
    h("div", {class: "charts"},
      h("div", null, chart("profile", profileChart(half, cell), "No kernel was timed."), note("profile")),
      h("div", null, chart("roofline", kernelRoofline(half, cell), "No operations and bytes are known: tune again with this version."), note("roof"))),
    folded("all kernels, the costliest first", make), boundsOf(cell),
  ];
}

function tuningSection(cells, width) {
  const origins = ["reused", "re-measured", "re-tuned", "lost", "new"];
  const known = cells.filter((cell) => cell.workloads.some((row) => row.origin));
  const before = (cell) => cell.workloads.filter((row) => row.before_ms);
  const moved = (cell) => (before(cell).length ? `${ms(d3.sum(before(cell), (row) => row.before_ms * row.calls))} → ${ms(d3.sum(before(cell), (row) => row.total_ms))}` : "–");
  const retuned = known.map((cell) => [code(nameOf(cell)), cell.toolchain.tvm ?? "–", ...origins.map((name) => cell.workloads.filter((row) => row.origin === name).length), moved(cell)]);
  const columns = [["cell", "left name"], ["kernels", ""], ["schedules: measured / default / none", "wrap right"], ["coverage", ""], ["trials", ""], ["per minute", ""], ["failed", ""], ["device hours", ""], ["saved by reuse", ""]];
  const schedule = (cell, how) => cell.kernels.filter((row) => row.schedule === how).length;
  const lines = cells.map((cell) => [
    code(nameOf(cell)), cell.kernels.length, `${schedule(cell, "record")} / ${schedule(cell, "default")} / ${schedule(cell, "none")}`, percent(cell.coverage, 1), cell.ledger.measured ?? "–", whole(cell.ledger.trials_per_minute),
    d3.sum(Object.values(cell.ledger.failures ?? {})), number(cell.ledger.device_hours), typeof cell.ledger.saved_s === "number" ? `${whole(cell.ledger.saved_s)} s` : "–",
  ]);
  const layers = cells.flatMap((cell) => (cell.ledger.winograd_layers ?? []).map((row) => [code(nameOf(cell)), code(row.convolution), `F(${row.tile}x${row.tile})`, row.error.toExponential(1)]));
  const tiles = () => table([["cell", "left name"], ["image, weights, padding", "left"], ["tile", "left"], ["error / spread", ""]], layers);
  return [
    h("h2", null, "Tuning"), chart("curve", curveChart(width, cells.filter((cell) => cell.curve.length)), "No trial was measured."), table(columns, lines), note("tuning"),
    h("h3", null, "Where the schedules come from"), table([["cell", "left name"], ["TVM", ""], ...origins.map((name) => [name, ""]), ["older toolchain's time → now", ""]], retuned, "No cell was tuned by this version of tvmflow."), note("retune"),
    layers.length ? folded("layers computed by Winograd's algorithm, with their rounding errors", tiles) : null,
  ];
}

function partSection(cells, width) {
  const known = cells.filter((cell) => cell.card.part && cell.card.part.counters);
  if (!known.length) return null;
  const bytes = ["inp_load_nbytes", "wgt_load_nbytes", "acc_load_nbytes", "uop_load_nbytes", "out_store_nbytes"];
  const names = ["inp", "wgt", "acc", "uop", "out"].map((name) => [name, ""]);
  const columns = [["cell", "left name"], ["design", "left"], ["schedules", "left"], ...names, ["sum", ""], ["DRAM", ""], ["GEMM", ""], ["ALU", ""], ["instructions", ""], ["cycles", ""], ["GEMM core busy", ""], ["estimate", ""]];
  const lines = known.map(({card: {cell, part}}) => [code(cell), part.name, part.mode, ...bytes.map((key) => whole(part.counters[key])), whole(part.five_nbytes), ...["dram_nbytes", "gemm_counter", "alu_counter", "insn_count"].map((key) => whole(part.counters[key])), whole(part.cycles), percent(part.gemm_utilization, 0), ms(part.estimated_ms)]);
  const layerColumns = [["launch", "left"], ...names, ["instructions", ""], ["cycles", ""], ["load busy", ""], ["compute busy", ""], ["store busy", ""], ["GEMM core busy", ""], ["GOP/s", ""]];
  const layers = known.map(({card: {cell, part}}) => {
    const make = () => table(layerColumns, part.layers.map((row) => [code(row.name), ...[...bytes, "insn_count"].map((key) => whole(row[key])), whole(row.cycles.total), ...["load", "compute", "store"].map((key) => percent(row.cycles[key] / row.cycles.total, 0)), percent(row.cycles.utilization, 0), number(row.gops)]));
    const regions = part.regions?.length > 1 ? ` in ${part.regions.length} regions (${part.regions.map((one) => `${one.name}: ${whole(one.cycles)} cycles`).join(", ")})` : "";
    const reasons = Object.entries(part.cpu_reasons ?? {}).map(([name, why]) => `${name} (${why})`).join(", ");
    return folded([code(cell), `: ${part.layers.length} launches${regions}${reasons ? `; on the CPU instead: ${reasons}` : ""}`], make);
  });
  const beside = data.processors.filter((one) => cells.some((cell) => cell.model === one.model)).map((one) => [
    h("h3", null, "CPU and accelerator: ", code(one.model)),
    table([["", "left"], ["unit", "left"], ...one.cells.map((name) => [short(name), ""])], one.rows.map((row) => [row.what, row.unit, ...row.values.map((found) => (found ? `${found.value >= 1e4 ? whole(found.value) : number(found.value, 4)}, ${found.how}` : "–"))])),
  ]);
  return [h("h2", null, "Accelerator"), chart("accelerator", partRoofline(width, known), "No layer was counted."), table(columns, lines), note("part"), layers, beside];
}

function sourcesSection(cells, width) {
  const rows = cells.map((cell) => folded(code(nameOf(cell)), () => [
    table([["stage", "left"], ["folder", "left"], ["recipe key", "left"], ["seconds", ""]], cell.stages.map((row) => [row.stage, link(row.folder, row.address), code(row.key.slice(0, 16)), number(row.seconds)])),
    table([["file", "left"], ["sha256", "left"]], cell.digests.map(([name, sha256]) => [name, code(sha256)])),
    h("p", {class: "note"}, `Toolchain: ${Object.entries(cell.toolchain).map(([name, text]) => `${name} ${text}`).join(", ")}`),
  ]));
  return [h("h2", null, "Stages, digests, links"), chart("stages", stageChart(width, cells), "No stage is there."), h("p", {class: "note"}, code(data.mlflow_command)), note("links"), rows];
}
