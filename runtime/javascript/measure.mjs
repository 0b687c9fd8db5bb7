/** Run and time one network in this process for tvmflow: requests on standard input, replies on standard output, each a
 * line of JSON with the number of bytes that follow it. */

import { readFileSync } from "node:fs";
import process from "node:process";
import { Network } from "./tvmflow.mjs";

const now = process.hrtime.bigint;
const chunks = process.stdin.iterator({ destroyOnReturn: false });
let pending = Buffer.alloc(0);

/** Return the next bytes, up to and with a line's end or `size` of them; null at the end of the input. */
async function read(size) {
  const parts = [];
  for (let wanted = size; ; ) {
    const line = size === undefined ? pending.indexOf(10) + 1 : Math.min(wanted, pending.length);
    if (line || size === 0) {
      parts.push(pending.subarray(0, line));
      pending = pending.subarray(line);
      wanted -= line;
      if (size === undefined || !wanted) return Buffer.concat(parts);
    }
    const { value, done } = await chunks.next();
    if (done) return null;
    pending = pending.length ? Buffer.concat([pending, value]) : value;
  }
}

async function readLine() {
  const line = await read();
  return line && JSON.parse(line.toString("utf8"));
}

function reply(header, content = null) {
  process.stdout.write(`${JSON.stringify({ ...header, bytes: content ? content.byteLength : 0 })}\n`);
  if (content) process.stdout.write(new Uint8Array(content.buffer, content.byteOffset, content.byteLength));
}

/** Return the time of each of `repeats` measurements: the mean of runs that take `least` nanoseconds in total. */
function times(network, repeats, least) {
  network.repeat();
  let runs = 1;
  return Array.from({ length: repeats }, () => {
    for (;;) {
      const begun = now();
      for (let run = 0; run < runs; ++run) network.repeat();
      const spent = Number(now() - begun);
      if (spent >= least || runs >= 1e9) return spent / runs;
      runs = Math.max(2 * runs, Math.ceil((runs * least) / Math.max(spent, 1)));
    }
  });
}

const ACTIONS = {
  input: (network, { at }, content) => network.setInput(at, content),
  preset: (network, { at }, content) => network.setOutput(at, content),
  run(network) {
    const begun = now();
    network.repeat();
    return { ns: Number(now() - begun) };
  },
  output: (network, { at }) => ({ content: network.output(at) }),
  time: (network, { repeats, least_ns: least }) => ({ ns: times(network, repeats, least) }),
  profile(network, { runs }) {
    network.setProfiling(true);
    for (let run = 0; run < runs; ++run) network.repeat();
    const kernels = network.profile();
    network.setProfiling(false);
    return { kernels };
  },
};

const before = process.memoryUsage().rss;
let network;
try {
  network = await Network.load(readFileSync(process.argv[2]));
  const { name, inputs, outputs, bytes } = network;
  reply({ name, inputs, outputs, ...bytes });
} catch (error) {
  reply({ error: String(error.message ?? error) });
  process.exitCode = 1;
}
for (let request; (request = await readLine()); ) {
  try {
    const content = request.bytes ? await read(request.bytes) : null;
    const { content: found = null, ...facts } =
      request.do === "memory" ? { grown: process.memoryUsage().rss - before } : (ACTIONS[request.do](network, request, content) ?? {});
    reply(facts, found);
  } catch (error) {
    reply({ error: String(error.message ?? error) });
  }
}
