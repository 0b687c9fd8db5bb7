"use strict";
// Filters and the order of the sections; everything is drawn anew when a filter or the width changes.

const state = {hidden: {model: new Set(), device: new Set(), precision: new Set()}, text: "", a: null, b: null, profile: null, target: null};
const WHERE = {model: (cell) => cell.model, device: (cell) => cell.target, precision: (cell) => cell.precision};

function chart(name, drawn, empty) {
  if (drawn) return h("figure", {"data-chart": name}, drawn);
  return empty ? h("p", {class: "note", "data-empty": name}, empty) : "";
}

const isShown = (cell) =>
  Object.entries(WHERE).every(([kind, of]) => !state.hidden[kind].has(of(cell))) && `${cell.model}@${cell.target}:${cell.precision}`.toLowerCase().includes(state.text);

function filters() {
  const all = [...data.cells, ...data.unmeasured];
  const group = ([kind, of]) => h("fieldset", {id: `filter-${kind}`}, h("legend", null, kind), [...new Set(all.map(of))].sort().map((name) =>
    h("label", null, h("input", {type: "checkbox", checked: true, value: name, onchange: (event) => { state.hidden[kind][event.target.checked ? "delete" : "add"](name); draw(); }}), " ", short(name))));
  const search = h("input", {type: "search", id: "filter-text", placeholder: "part of a cell's name", "aria-label": "part of a cell's name", oninput: (event) => { state.text = event.target.value.toLowerCase(); draw(); }});
  return h("section", {class: "filters"}, Object.entries(WHERE).map(group), search);
}

const PARTS = [
  ["overview", (cells, width) => overviewSection(cells, width, state, draw, data.unmeasured.filter(isShown))], ["matrix", matrixSection], ["fleet", fleetSection], ["peers", peersSection], ["times", timesSection], ["compare", (cells, width) => compareSection(cells, width, state, draw)],
  ["trend", trendSection], ["details", (cells, width) => detailsSection(cells, width, state, draw)], ["kernels", (cells, width) => profileSection(cells, width, state, draw)], ["tuning", tuningSection], ["accelerator", partSection],
  ["forms", (cells, width) => formsSection(cells, width, state, draw)], ["sources", sourcesSection],
];

function draw() {
  const cells = data.cells.filter(isShown), width = places.clientWidth - 2 * (window.innerWidth > 900 ? 17 : 13);
  const drawn = cells.length ? PARTS.map(([name, part]) => [name, part(cells, width)]) : [["none", data.cells.length || !data.unmeasured.some(isShown) ? h("p", {class: "note"}, "The filters leave no cell.") : matrixSection([], data.unmeasured.filter(isShown))]];
  const focused = document.activeElement?.id;
  places.replaceChildren(...drawn.filter(([, parts]) => parts).map(([name, parts]) => h("section", {id: name}, parts)));
  if (focused) document.getElementById(focused)?.focus();
}

const main = document.getElementById("main"), places = h("div", {id: "sections"});
document.getElementById("written").textContent = `written ${data.written} by tvmflow ${data.version}; ${data.cells.length} measured cell${data.cells.length === 1 ? "" : "s"}`;
main.append(filters(), places);
function start() {
  if (!places.clientWidth) { requestAnimationFrame(start); return; }  // no layout yet: charts need a width
  try {
    draw();
  } catch (error) {
    places.replaceChildren(h("p", {class: "error"}, `This page could not be drawn: ${error}`));
    throw error;
  }
}
start();
let drawnWidth = window.innerWidth;
window.addEventListener("resize", () => {
  if (window.innerWidth !== drawnWidth && places.clientWidth) { drawnWidth = window.innerWidth; draw(); }
});
