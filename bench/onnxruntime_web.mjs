/** Be a peer of bench/wasm.py: run an ONNX model by onnxruntime-web on one thread, as many times as each line says.
 *
 *     node onnxruntime_web.mjs PACKAGE MODEL SHAPE */

import { readFileSync } from "node:fs";
import process from "node:process";
import readline from "node:readline";
import { pathToFileURL } from "node:url";

const [folder, model, shapeText] = process.argv.slice(2);
const ort = await import(pathToFileURL(`${folder}/node_modules/onnxruntime-web/dist/ort.wasm.min.mjs`).href);
ort.env.wasm.numThreads = 1;
const session = await ort.InferenceSession.create(readFileSync(model), { executionProviders: ["wasm"] });
const shape = shapeText.split("x").map(Number);
const data = new Float32Array(shape.reduce((all, one) => all * one, 1)).map((_, at) => Math.sin(at));
const feeds = { [session.inputNames[0]]: new ort.Tensor("float32", data, shape) };
for await (const line of readline.createInterface({ input: process.stdin })) {
  const times = [];
  let outputs;
  for (let run = 0; run < Number(line); ++run) {
    const begun = process.hrtime.bigint();
    outputs = await session.run(feeds);
    times.push(Number(process.hrtime.bigint() - begun) / 1e9);
  }
  const output = Array.from(outputs[session.outputNames[0]].data.slice(0, 1000));
  process.stdout.write(`${JSON.stringify({ times_s: times, output })}\n`);
}
