"use strict";
// What one cell does: its layers in order of the source, the spread of its latency, its memory.

function detailsSection(cells, width, state, redraw) {
  const known = cells.filter((cell) => cell.layers.source.length || cell.layers.calls.length || cell.card.latency.compute.by_turn?.length);
  if (!known.length) return [h("h2", null, "Layers, spread and memory of a cell"), h("p", {class: "note"}, "No cell here has them: run it again with this version.")];
  const cell = known.find((one) => nameOf(one) === state.profile) ?? known[0];
  const half = width > 900 ? (width - 20) / 2 : width;
  const choose = h("select", {id: "details-cell", "aria-label": "cell", onchange: (event) => { state.profile = event.target.value; redraw(); }}, known.map((one) => h("option", {selected: one === cell}, nameOf(one))));
  return [
    h("h2", null, "Layers, spread and memory of a cell"), h("p", null, choose),
    h("div", {class: "charts"},
      h("div", null, h("h3", null, "Time of the source's layers"), chart("layers", layersChart(half, cell), "No kernel was timed in the network, or the source's layers are not found in it."), note("layers")),
      h("div", null,
        h("h3", null, "Distribution of the latency"), chart("spread", spreadChart(half, cell.card.latency.compute), "No turns were kept: measure again with this version."), note("spread"),
        h("h3", null, "Memory during a run"), chart("memory", memoryChart(half, cell), "No plan was kept: build again with this version."), note("memory"))),
    cell.layers.source.length ? folded(["the source's layers in order, and the kernels that compute them"], () => layersTable(cell), true) : "",
    sumsText(cell),
  ];
}

function layersTable(cell) {
  const columns = [["layer of the source", "left name"], ["operator", "left"], ["weights", ""], ["in a run", ""], ["kernels", "left name"]];
  const rows = cell.layers.source.slice(0, 200).map(([name, operator, weights, kernels, time]) => [h("code", {id: anchorOf(name)}, name), operator, whole(weights), ms(time), kernels.length ? kernels.map((kernel) => h("div", null, code(kernel))) : "–"]);
  return [table(columns, rows), cell.layers.source.length > 200 ? h("p", {class: "note"}, `${cell.layers.source.length - 200} more: tvmflow report --json`) : null];
}

// Why the kernels' times may add up to more than the run.
function sumsText(cell) {
  const compute = cell.card.latency.compute, sum = d3.sum(Object.values(cell.card.kernels_ms ?? {}));
  if (!sum || !hasTime(cell)) return "";
  const beside = `The kernels' own times add up to ${ms(sum)}, a run takes ${ms(compute.median_ms)}. `;
  if (sum <= compute.median_ms) return h("p", {class: "note", id: "sums"}, beside, "The rest are the calls and the start of the threads.");
  return h("p", {class: "note", id: "sums"}, beside, "They exceed it: reading the clock around every call takes its time, threads meet at each kernel's end, and the profile ran at another moment than the turns, perhaps beside other processes. Compare kernels with each other, not with the run.");
}
