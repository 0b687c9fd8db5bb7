"use strict";
// The page of a search: a chart of latency and accuracy for each target, and all candidates.

const GOALS = [["drop", "accuracy drop", percent], ["latency_ms", "latency", ms], ["memory_bytes", "memory", megabytes], ["library_bytes", "library", megabytes]];
const goalsText = GOALS.filter(([name]) => typeof data.goals[name] === "number").map(([name, text, shown]) => `${text} at most ${shown(data.goals[name])}`).join(", ");
const settingsText = (one) => [one.precision, one.layers === "-" ? "" : `${one.layers} layers in float`, `${one.trials} trials`].filter(Boolean).join(", ");

function searchChart(candidates, width) {
  const rows = candidates.filter((one) => typeof one.latency_ms === "number").map((one) => ({...one, lost: 100 * (one.drop ?? 0), kind: one.is_chosen ? "chosen" : one.is_best ? "no other is better in everything" : "measured"}));
  if (!rows.length) return null;
  const best = rows.filter((row) => row.is_best).toSorted((a, b) => a.latency_ms - b.latency_ms), {latency_ms: most, drop} = data.goals;
  return plot(width, {
    height: 340, marginLeft: 60, marginTop: 20, ariaLabel: "latency and accuracy drop",
    x: {type: "log", label: "latency, ms", grid: true, nice: true, tickFormat: (x) => number(x, 2)}, y: {label: "accuracy drop, %", grid: true, zero: true, nice: true},
    color: {legend: true, domain: ["chosen", "no other is better in everything", "measured"], range: ["var(--good)", "var(--c0)", "var(--tie)"]},
    marks: [
      typeof most === "number" ? Plot.ruleX([most], {stroke: "var(--bad)", strokeDasharray: "4 3"}) : null,
      typeof drop === "number" ? Plot.ruleY([100 * drop], {stroke: "var(--bad)", strokeDasharray: "4 3"}) : null,
      Plot.line(best, {x: "latency_ms", y: "lost", stroke: "var(--c0)", curve: "step-after", strokeOpacity: 0.5}),
      Plot.ruleY(rows.filter((row) => typeof row.low_ms === "number"), {x1: "low_ms", x2: "high_ms", y: "lost", stroke: "kind", strokeWidth: 2}),
      Plot.dot(rows, {x: "latency_ms", y: "lost", fill: "kind", r: 6, stroke: "var(--panel)", tip: true, title: (row) => `${settingsText(row)}\n${ms(row.latency_ms)}, drop ${percent(row.drop)}\n${row.outcome}`}),
      Plot.text(rows.filter((row) => row.is_best), {x: "latency_ms", y: "lost", text: (row) => `${row.precision}, ${row.trials} trials`, dy: -12, fill: "currentColor"}),
    ],
  });
}

function searchTable(candidates) {
  const columns = [["precision", "left"], ["layers in float", "left"], ["trials", ""], ["latency", ""], ["accuracy drop", ""], ["memory", ""], ["library", ""], ["outcome", "wrap"]];
  const lines = candidates.map((one) => [
    code(one.precision), one.layers, whole(one.trials), [ms(one.latency_ms), one.badges ? h("small", {class: "warn wrap"}, one.badges) : ""], percent(one.drop), megabytes(one.memory_bytes), megabytes(one.library_bytes),
    one.is_chosen ? badge("★ chosen") : one.outcome,
  ]);
  return table(columns, lines);
}

const main = document.getElementById("main"), places = h("div", {id: "sections"});

function draw() {
  const width = places.clientWidth - 2 * (window.innerWidth > 900 ? 17 : 13);
  places.replaceChildren(...d3.groups(data.candidates, (one) => one.target).map(([target, candidates]) => {
    const drawn = searchChart(candidates, width);
    return h("section", {"data-target": target}, h("h2", null, target), drawn ? h("figure", {"data-chart": "search"}, drawn) : h("p", {class: "note"}, "No candidate was measured."), searchTable(candidates));
  }));
}

document.title = `search of ${data.model}`;
document.querySelector("h1").textContent = `search of ${data.model}`;
document.getElementById("written").textContent = `written ${data.written} by tvmflow ${data.version}; goals: ${goalsText || "none"}`;
main.append(places);
draw();
addEventListener("resize", draw);
