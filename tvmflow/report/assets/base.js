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

// Latency of `now` over latency of `before`: two rows of measurements; the interval is the widest that theirs allow.
function ratioOf(before, now) {
  if (!before || !now || typeof before.latency_ms !== "number" || typeof now.latency_ms !== "number") return {why: "no steady latency"};
  const center = now.latency_ms / before.latency_ms;
  if (before.device !== now.device) return {center, why: "different devices"};
  if (before.unit !== now.unit) return {center, why: "different units of the device"};
  if (before.build !== now.build) return {center, why: "different builds of the device's system"};
  if (typeof before.low_ms !== "number" || typeof now.low_ms !== "number") return {center, why: "no interval was kept"};
  const low = now.low_ms / before.high_ms, high = now.high_ms / before.low_ms;
  return {center, low, high, verdict: verdictOf(low, high, "low")};
}

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
  const {low, high, reason} = advantage;
  if (typeof low !== "number") return {text: reason ?? "–", verdict: "tie"};
  const verdict = advantage.times_faster === null ? "tie" : verdictOf(low, high, "high");
  const range = `${number(low)} to ${number(high)}`;
  const center = advantage.times_faster ?? Math.sqrt(low * high);
  return {center, low, high, verdict, text: verdict === "tie" ? `no difference shown (${range})` : `${number(center)}x (${range})`};
}

const latencyText = (latency) => (latency.steady ? ms(latency.median_ms) : latency.reason ?? "unsteady");

function computeText(card) {
  const executed = card.executed;
  if (executed) return `${number(executed.instructions / 1e6)} M instructions, ${percent(executed.multiply_add_instructions / executed.instructions)} multiply-adds (emulated: not a time)`;
  if (card.part && card.part.simulated) return `≈ ${ms(card.part.estimated_ms)}, simulated`;
  return latencyText(card.latency.compute);
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
const runLink = (row) => (row.run_id ? link(row.run_id.slice(0, 8), row.url) : "–");
const versionLink = (cell, row) =>
  row.version_number ? link(`version ${row.version_number}`, `${data.mlflow_ui}/#/models/${encodeURIComponent(cell.registered)}/versions/${encodeURIComponent(row.version_number)}`) : "–";
const badge = (text, kind = "") => h("span", {class: `badge ${kind}`}, text);
const roles = (row) => row.roles.map((role) => [" ", badge(role === "champion" ? "★ champion" : role)]);
const nameOf = (cell) => cell.card.cell;
const code = (text) => h("code", null, text);
const newest = (cell) => cell.history.at(-1) ?? null;
