"use strict";
// The beginning of the page: what there is in a few numbers, and one chart of accuracy, latency and size on a device.

// What stands for the quality of a cell: its accuracy, else how often its class is that of the source.
const qualityOf = (card) => card.accuracy?.built ?? card.agreement.top1_agreement ?? null;
const hasTime = (cell) => cell.card.latency.compute.is_time && !cell.card.executed && !cell.card.part?.simulated;
const championOf = (cell) => cell.history.findLast((row) => row.roles.includes("champion")) ?? null;
const isChampion = (cell) => Boolean(championOf(cell)) && championOf(cell).sha256 === newest(cell)?.sha256;

// The points that no other of the same model is better than in latency and quality, fastest first.
function frontOf(points) {
  let best = -Infinity;
  return points.toSorted((a, b) => a.ms - b.ms || b.quality - a.quality).filter((point) => point.quality > best && ((best = point.quality), true));
}

function paretoPoints(cells) {
  const shown = cells.filter((cell) => hasTime(cell) && qualityOf(cell.card) !== null);
  const points = shown.map((cell) => ({cell, model: cell.model, precision: cell.precision, ms: cell.card.latency.compute.median_ms, quality: qualityOf(cell.card), bytes: cell.card.library_bytes, champion: isChampion(cell), text: latencyText(cell.card.latency.compute)}));
  // A champion that is not the newest measurement has a point of its own.
  const older = shown.filter((cell) => championOf(cell) && !isChampion(cell)).map((cell) => {
    const row = championOf(cell), accuracy = Number.parseFloat(row.accuracy) / 100;
    return {cell, model: cell.model, precision: cell.precision, ms: row.latency_ms, quality: Number.isFinite(accuracy) ? accuracy : qualityOf(cell.card), bytes: row.library_bytes, champion: true, text: `${row.latency} on ${row.when}, version ${row.version_number}`};
  });
  return [...points, ...older.filter((point) => typeof point.ms === "number")];
}

// One label for each model, at its champion or its fastest point, where no other label is in the way.
function placeLabels(points, placeOf, width) {
  const placed = [], models = d3.groups(points, (point) => point.model).map(([, own]) => own.toSorted((a, b) => b.champion - a.champion || a.ms - b.ms)[0]);
  for (const point of models.toSorted((a, b) => a.ms - b.ms)) {
    const at = placeOf(point), anchor = at > width / 2 ? "end" : "start", room = Math.floor((anchor === "end" ? at + 40 : width - 100 - at) / 8);
    const text = short(`${point.champion ? "★ " : ""}${point.model}`, Math.max(6, Math.min(34, room))), size = 7.5 * text.length;
    const from = anchor === "start" ? at : at - size;
    const dy = [-20, 24, -34, 38, -48, 52].find((level) => placed.every((other) => other.dy !== level || other.from + other.size < from || from + size < other.from));
    if (dy !== undefined) placed.push({point, text, anchor, dy, from, size});
  }
  return placed;
}

function paretoChart(width, points) {
  if (!points.length) return null;
  const fronts = [...d3.group(points, (point) => point.model)].map(([model, own]) => ({model, points: frontOf(own)}));
  const best = new Set(fronts.flatMap((front) => front.points)), largest = d3.max(points, (point) => point.bytes);
  const named = points.filter((point) => point.champion || best.has(point)), [worst, top] = d3.extent(points, (point) => point.quality);
  const pad = Math.max(0.004, 0.15 * (top - worst)), precisions = data.precisions.filter((name) => points.some((point) => point.precision === name));
  const [least, most] = d3.extent(points, (point) => point.ms);
  const placed = placeLabels(named, (point) => (Math.log((point.ms * 1.5) / least) / Math.log((2.25 * most) / least)) * (width - 88), width);
  return plot(width, {
    height: 380, marginLeft: 58, marginTop: 24, marginRight: 30, r: {type: "identity"}, ariaLabel: "latency, accuracy and size",
    x: {type: "log", domain: [least / 1.5, most * 1.5], label: "median latency (ms), less is better", grid: true, ticks: logTicks(least / 1.5, most * 1.5, width), tickFormat: (x) => number(x, 2)},
    y: {domain: [worst - pad, Math.min(1, top) + pad], label: "accuracy, or top-1 equal to the source's", grid: true, ticks: 6, tickFormat: (y) => (y <= 1 ? percent(y, 1) : "")},
    color: {domain: precisions, range: precisions.map((_, at) => colorOf(at)), legend: true},
    marks: [
      fronts.map((front) => Plot.line(front.points, {x: "ms", y: "quality", stroke: "var(--muted)", strokeDasharray: "3 3", curve: "step-after"})),
      Plot.dot(points, {
        x: "ms", y: "quality", fill: "precision", fillOpacity: (point) => (best.has(point) ? 0.95 : 0.45), stroke: "var(--panel)", symbol: (point) => (point.champion ? "star" : "circle"),
        r: (point) => 4 + 9 * Math.sqrt(point.bytes / largest), tip: true,
        title: (point) => [nameOf(point.cell), `${point.text}, ${percent(point.quality)}`, megabytes(point.bytes), point.champion ? "★ champion" : "", best.has(point) ? "no other of this model is faster and as accurate" : ""].filter(Boolean).join("\n"),
      }),
      placed.map(({point, text, anchor, dy}) => Plot.text([point], {x: "ms", y: "quality", text: () => text, textAnchor: anchor, dx: anchor === "start" ? 6 : -6, dy, fill: "currentColor"})),
    ],
  });
}

const counted = (names, what) => ((count) => `${count} ${what}${count === 1 ? "" : "s"}`)(new Set(names).size);

function tile(value, text, kind = "") {
  return h("div", {class: "tile"}, h("b", {class: kind}, value), h("span", null, text));
}

// Of each cell the baseline that is hardest to beat, where an interval shows a difference.
function besideBest(cells) {
  const verdicts = cells.map((cell) => Object.keys(cell.card.advantages).map((name) => peerOf(cell.card, name)).filter((peer) => peer?.center).toSorted((a, b) => a.center - b.center)[0]?.verdict);
  return Object.fromEntries(["good", "tie", "bad"].map((name) => [name, verdicts.filter((verdict) => verdict === name).length]));
}

function overviewSection(cells, width, state, redraw, unmeasured) {
  const targets = d3.groups(cells.filter(hasTime), (cell) => cell.target).toSorted((a, b) => b[1].length - a[1].length);
  const target = targets.some(([name]) => name === state.target) ? state.target : targets[0]?.[0];
  const points = paretoPoints(cells.filter((cell) => cell.target === target));
  const beside = besideBest(cells), worse = data.fleet?.worse.filter((row) => cells.some((cell) => nameOf(cell) === row.cell)).length ?? 0;
  const built = unmeasured.filter((cell) => cell.built).length;
  const choose = h("select", {id: "overview-target", "aria-label": "device", onchange: (event) => { state.target = event.target.value; redraw(); }}, targets.map(([name, own]) => h("option", {value: name, selected: name === target}, `${name}: ${own.length} cell${own.length === 1 ? "" : "s"}`)));
  return [
    h("h2", null, "Summary"),
    h("div", {class: "tiles"},
      tile(cells.length, `measured cell${cells.length === 1 ? "" : "s"} of ${counted(cells.map((cell) => cell.model), "model")} on ${counted(cells.map((cell) => cell.target), "device")}`),
      tile(cells.filter(championOf).length, `with a champion, ${cells.filter(isChampion).length} of them the newest measured`),
      tile(beside.good, "faster than every baseline", beside.good ? "good" : ""), tile(beside.bad, "slower than one", beside.bad ? "bad" : ""), tile(beside.tie, "no difference shown to the best"),
      data.fleet ? tile(worse, "got worse since the champions", worse ? "bad" : "") : ""),
    unmeasured.length ? h("p", {class: "note"}, `${unmeasured.length} cell${unmeasured.length === 1 ? " was" : "s were"} never measured here and ${unmeasured.length === 1 ? "is" : "are"} not shown${built ? ` (${built} built)` : ""}; 'tvmflow status' lists them.`) : "",
    targets.length ? h("p", null, choose) : "",
    chart("pareto", paretoChart(width, points), "No cell here has a latency and an accuracy."), note("pareto"),
  ];
}
