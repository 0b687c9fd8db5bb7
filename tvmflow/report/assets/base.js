"use strict";
// What all parts of the page use: elements, numbers in words, verdicts. Text gets into the page as text nodes only.

const data = JSON.parse(document.getElementById("data").textContent);

function h(tag, props, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props ?? {})) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(9).filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
}

function number(x, digits = 3) {
  if (typeof x !== "number" || !Number.isFinite(x)) return "–";
  return x && Math.abs(x) < 1e-3 ? x.toExponential(digits - 1) : x.toLocaleString("en", {maximumSignificantDigits: digits});
}
const percent = (x, digits = 2) => (typeof x === "number" ? `${(100 * x).toFixed(digits)} %` : "–");
const whole = (x) => (typeof x === "number" ? Math.round(x).toLocaleString("en") : "–");
const ms = (x) => (typeof x === "number" ? `${number(x)} ms` : "–");
const megabytes = (x) => (typeof x === "number" ? `${(x / 1e6).toFixed(2)} MB` : "–");
// The end of a cell's name, its precision, says as much as its beginning.
function short(text, most = 44) {
  if (text.length <= most) return text;
  const end = Math.floor(0.4 * (most - 1));
  return `${text.slice(0, most - 1 - end)}…${text.slice(-end)}`;
}

// A difference counts only where its interval leaves out 1.
const verdictOf = (low, high, better) => (low > 1 ? (better === "high" ? "good" : "bad") : high < 1 ? (better === "high" ? "bad" : "good") : "tie");
const VERDICTS = {good: "faster", tie: "no difference shown", bad: "slower"};

const unitText = (row) => (row.unit ? `${row.device}, ${row.unit}` : row.device);

// States of a machine, by how far its cores are from each other: as tvmflow/evaluation/machine_state.py tells them apart.
const isSameState = (a, b) => typeof a.round_trip_ns !== "number" || typeof b.round_trip_ns !== "number" || Math.max(a.round_trip_ns, b.round_trip_ns) <= data.apart * Math.min(a.round_trip_ns, b.round_trip_ns);

// Latency of `now` over latency of `before`, two rows of measurements: as tvmflow/evaluation/regression.py compares them.
function ratioOf(before, now) {
  if (!before || !now || typeof before.latency_ms !== "number" || typeof now.latency_ms !== "number") return {why: "no latency"};
  const center = now.latency_ms / before.latency_ms;
  if (before.device !== now.device) return {center, why: "different devices"};
  if (before.unit !== now.unit) return {center, why: "different units of the device"};
  if (before.build !== now.build) return {center, why: "different builds of the device's system"};
  if (!isSameState(before, now)) return {center, why: "different states of the machine"};
  if (typeof before.low_ms !== "number" || typeof now.low_ms !== "number") return {center, why: "no interval was kept"};
  const low = now.low_ms / before.high_ms, high = now.high_ms / before.low_ms;
  const verdict = verdictOf(low * (1 - data.between), high * (1 + data.between), "low");
  const disturbed = verdict === "bad" ? now.badges : verdict === "good" ? before.badges : "";
  return disturbed ? {center, why: disturbed} : {center, low, high, verdict};
}

// The last measurement before one that can be compared with it: of the same unit, in the same state of the machine.
const beforeOf = (history, at) => history.slice(0, at).findLast((row) => typeof row.latency_ms === "number" && row.device === history[at].device && row.unit === history[at].unit && row.build === history[at].build && isSameState(row, history[at]));

function ratioText(ratio) {
  if (ratio.center === undefined) return h("span", {class: "tie"}, ratio.why);
  if (ratio.verdict === undefined) return h("span", {class: "tie"}, `${number(ratio.center)} (${ratio.why}: no verdict)`);
  const range = `${number(ratio.low)} to ${number(ratio.high)}`;
  if (ratio.verdict === "tie") return h("span", {class: "tie"}, `no difference shown (${range})`);
  return h("span", {class: ratio.verdict}, `${number(ratio.center)} (${range}), ${VERDICTS[ratio.verdict]}`);
}

// How many times faster than a peer the library is, as the scorecard says it.
function peerOf(card, name) {
  const advantage = card.advantages[name];
  if (!advantage) return null;
  const {times_faster: center, low, high, reason} = advantage;
  if (typeof center !== "number") return {text: reason ?? "–", verdict: "tie"};
  if (typeof low !== "number") return {center, text: `${number(center)}x`, verdict: "tie"};
  const verdict = verdictOf(low, high, "high"), text = `${number(center)}x (${number(low)} to ${number(high)})`;
  return {center, low, high, verdict, text: verdict === "tie" ? `${text}, no difference shown` : text};
}

const badgesText = (latency) => latency.badges.join(", ");
const latencyText = (latency) => (latency.is_time ? [ms(latency.median_ms), ...latency.badges].join(", ") : badgesText(latency));
// The state of the machine that a latency is of, and what it is in the others.
function statesText(latency) {
  if (typeof latency.round_trip_ns !== "number") return "";
  const others = latency.elsewhere.map((one) => `${ms(one.value)} with cores ${number(one.round_trip_ns)} ns apart (${percent(one.share, 0)} of the turns)`);
  return [`cores ${number(latency.round_trip_ns)} ns apart`, ...others].join("; ");
}

function computeText(card) {
  const executed = card.executed;
  if (executed) return `${number(executed.instructions / 1e6)} M instructions, ${percent(executed.multiply_add_instructions / executed.instructions)} multiply-adds (emulated: not a time)`;
  if (card.part && card.part.simulated) return `≈ ${ms(card.part.estimated_ms)}, simulated`;
  return latencyText(card.latency.compute);
}

// The same as what a table shows: the number, and below it what disturbed it.
function computeShown(card) {
  const {is_time: isTime, median_ms: median, badges} = card.latency.compute, simulated = Boolean(card.part?.simulated || card.executed);
  const shown = isTime && !simulated, warns = badges.length && !simulated ? "warn" : "";
  return [h("b", {class: warns}, shown ? ms(median) : computeText(card)), shown && warns ? h("small", {class: warns}, badges.join(", ")) : ""];
}

// The least time that the machine's ceilings allow, and the share of it that is reached, or why there is no bound.
function boundText({bounds}) {
  if (!bounds) return "–";
  if (bounds.reason) return `no bound: ${bounds.reason}`;
  return `at least ${ms(bounds.least_ms)}${typeof bounds.share === "number" ? `, ${percent(bounds.share, 0)} reached` : ""}`;
}

// The same share of one kernel, as tuning timed it, by its arithmetic.
function kernelShare(card, row) {
  const speed = card.bounds?.ceilings?.operations[row.dtype];
  return speed && row.flops && row.best_ms ? percent((1e3 * row.flops) / speed / row.best_ms, 0) : "–";
}

const rangeText = (row) => (typeof row.low_ms === "number" ? `${number(row.low_ms)} to ${number(row.high_ms)}` : "");

function table(columns, rows, empty = "nothing here") {
  if (!rows.length) return h("p", {class: "note"}, empty);
  const names = columns.map(([name, side]) => h("th", {class: side}, name));
  const lines = rows.map((row) => h("tr", null, row.map((cell, at) => h("td", {class: columns[at][1]}, cell))));
  return h("div", {class: "scroll"}, h("table", null, h("thead", null, h("tr", null, names)), h("tbody", null, lines)));
}

// What is folded away is made when it is opened: a team's history is long.
function folded(summary, make, open = false) {
  const details = h("details", {open}, h("summary", null, summary));
  const fill = () => { if (details.open && details.children.length === 1) details.append(...[make()].flat(9).filter(Boolean)); };
  details.addEventListener("toggle", fill);
  fill();
  return details;
}

const link = (text, address) => h("a", {href: address, rel: "noopener"}, text);
const mlflowLink = (text, address) => link(text, address + data.mlflow_pages);
const runLink = (row) => (row.run_id ? mlflowLink(row.run_id.slice(0, 8), row.url) : "–");
const versionLink = (cell, row) =>
  row.version_number ? mlflowLink(`version ${row.version_number}`, `${data.mlflow_ui}/#/models/${encodeURIComponent(cell.registered)}/versions/${encodeURIComponent(row.version_number)}`) : "–";
const badge = (text, kind = "") => h("span", {class: `badge ${kind}`}, text);
const roles = (row) => row.roles.map((role) => [" ", badge(role === "champion" ? "★ champion" : role)]);
const nameOf = (cell) => cell.card.cell;
const code = (text) => h("code", null, text);
const newest = (cell) => cell.history.at(-1) ?? null;
