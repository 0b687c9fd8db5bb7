/** Run a network that was compiled to WebAssembly: in a browser, in a worker, in node, without other packages.
 *
 *     import { Network } from "./tvmflow.mjs";
 *     const network = await Network.load("digits.wasm");           // a URL, a Response, or bytes
 *     const { probabilities } = network.run({ input: pixels });    // typed arrays of the dtypes in network.inputs
 *     const best = network.classify(context.getImageData(0, 0, width, height), 3);
 *     network.free();
 *
 * The module is the C library (tvmflow.h) for wasm32: it keeps no state outside of its instances and needs a clock only.
 */

const ABI_VERSION = 1;
const ALIGNMENT = 64; // TVMFLOW_ALIGNMENT
const DTYPES = ["float32", "float16", "bfloat16", "int8", "uint8", "int32", "int64", "bool"];
/** Of each dtype; numbers of 16 bits are given as their bits. */
const ARRAYS = {
  float32: Float32Array,
  float16: Uint16Array,
  bfloat16: Uint16Array,
  int8: Int8Array,
  uint8: Uint8Array,
  int32: Int32Array,
  int64: BigInt64Array,
  bool: Uint8Array,
};
const RGBA = 2;
const STATUS = ["", "bad argument", "no memory", "no threads", "a kernel failed", "the device failed"];
/** Members of tvmflow_api in their order, all of 4 bytes but those in WIDE, which lie at multiples of 8. */
const MEMBERS = (
  "abi_version size network inputs outputs kernels threads arena_size constant_size input output create run destroy " +
  "last_error set_profiling profile labels label_count top_k images run_image classify device create_on gpu " +
  "create_on_gpu processor tolerance create_with_gpu sizes size_of sizes_of shape_of run_sized threads_of states " +
  "state_of state_reset"
).split(" ");
const WIDE = new Set(["tolerance"]);

export class NetworkError extends Error {}

/** What a module of `wasi_snapshot_preview1` may ask of us: the time. Everything else is refused. */
function systemFor(compiled, memory) {
  const refused = () => 52; // ENOSYS
  const known = {
    clock_time_get(_clock, _precision, address) {
      new DataView(memory().buffer).setBigUint64(address, BigInt(Math.round(performance.now() * 1e6)), true);
      return 0;
    },
  };
  const system = {};
  for (const { module, name, kind } of WebAssembly.Module.imports(compiled)) {
    if (module !== "wasi_snapshot_preview1" || kind !== "function")
      throw new NetworkError(`the module imports ${module}.${name}: not a network of tvmflow`);
    system[name] = known[name] ?? refused;
  }
  return { wasi_snapshot_preview1: system };
}

async function compile(source) {
  if (typeof source === "string" || source instanceof URL) source = await fetch(source);
  if (typeof Response !== "undefined" && source instanceof Response) {
    if (!source.ok) throw new NetworkError(`${source.url}: ${source.status} ${source.statusText}`);
    source = await source.arrayBuffer();
  }
  const alive = setInterval(() => {}, 1000); // node 24 ends while only a compilation is awaited
  try {
    return await WebAssembly.compile(source);
  } finally {
    clearInterval(alive);
  }
}

export class Network {
  #memory;
  #table;
  #exports;
  #api = {};
  #instance = 0;
  #inputs;
  #outputs;
  #owned = [];

  /** Load a network from a URL, a Response, an ArrayBuffer or a Uint8Array. Throws NetworkError for another module. */
  static async load(source) {
    const compiled = await compile(source);
    let memory;
    const instance = await WebAssembly.instantiate(compiled, systemFor(compiled, () => memory));
    memory = instance.exports.memory;
    return new Network(instance.exports);
  }

  /** Use `load`. */
  constructor(exports) {
    const { memory, malloc, free, tvmflow_network: entry, __indirect_function_table: table } = exports;
    if (!(memory && malloc && free && entry && table)) throw new NetworkError("not a network of tvmflow");
    this.#exports = exports;
    this.#memory = memory;
    this.#table = table;
    exports._initialize?.();
    this.#readApi(entry());
    const specs = (count, read) => Array.from({ length: count }, (_, at) => this.#readTensor(read, at));
    const { inputs, outputs } = this.#api;
    this.inputs = specs(inputs, "input");
    this.outputs = specs(outputs, "output");
    this.states = Array.from({ length: this.#api.states ?? 0 }, (_, at) => this.#readState(at));
    this.sizes = Array.from({ length: this.#api.sizes ?? 0 }, (_, at) => this.#readSize(at));
    const place = this.#allocate(4);
    this.#check("create", 0, place);
    this.#instance = this.#view().getUint32(place, true);
    this.#inputs = this.inputs.map(({ size }) => this.#allocate(size));
    this.#outputs = this.outputs.map(({ size }) => this.#allocate(size));
  }

  /** model@target:precision */
  get name() {
    return this.#text(this.#api.network);
  }

  /** Names of classes; empty if the network has none. */
  get labels() {
    const view = this.#view();
    return Array.from({ length: this.#api.label_count }, (_, at) =>
      this.#text(view.getUint32(this.#api.labels + 4 * at, true)),
    );
  }

  /** Bytes of weights and of values between kernels. */
  get bytes() {
    return { constants: this.#api.constant_size, arena: this.#api.arena_size };
  }

  /** Run once. inputs: by name, or in their order: typed arrays, or { data, shape } where sizes are dynamic; a state
   * that is not given is carried from the last run. Returns the outputs by name, as new typed arrays; with dynamic
   * sizes as { data, shape }. */
  run(inputs) {
    const given = this.inputs.map((spec, at) => (Array.isArray(inputs) ? inputs[at] : inputs[spec.name]));
    const unknown = Array.isArray(inputs) ? [] : Object.keys(inputs).filter((name) => !this.inputs.some((spec) => spec.name === name));
    if (unknown.length || (Array.isArray(inputs) && inputs.length > this.inputs.length))
      throw new NetworkError(`no input ${unknown.join(", ") || inputs.length}; the network has ${this.inputs.map((spec) => spec.name).join(", ")}`);
    if (this.sizes.length) return this.#runSized(given);
    this.inputs.forEach((spec, at) => this.#write(spec, at, given[at], spec.size));
    this.#start("run", given);
    return Object.fromEntries(this.outputs.map(({ name }, at) => [name, this.output(at)]));
  }

  /** Run again on the inputs of the last run; for measurements. Outputs: `output`. */
  repeat() {
    this.#start("run", null);
  }

  /** Set the bytes of an input for `repeat`. */
  setInput(at, bytes) {
    this.#setBytes(this.inputs[at], this.#inputs[at], bytes);
  }

  /** Set the bytes of an output, which a run overwrites. */
  setOutput(at, bytes) {
    this.#setBytes(this.outputs[at], this.#outputs[at], bytes);
  }

  /** Copy an output of the last run, by its position. */
  output(at) {
    const { dtype, size } = this.outputs[at];
    return this.#read(this.#outputs[at], dtype, size);
  }

  /** Run on an image, RGBA as canvas gives it ({ data, width, height }), which is resized, cropped and normalized as in
   * training. Returns the k most probable classes: [{ index, label, probability }]. */
  classify(image, k = 5) {
    if (!this.#api.images) throw new NetworkError("the network takes no images");
    const { data, width, height } = image;
    if (!(width > 0 && height > 0) || data.length !== 4 * width * height)
      throw new NetworkError(`an image of ${data.length} bytes: ${width} x ${height} pixels RGBA are ${4 * width * height}`);
    const pixels = this.#borrow(data.length);
    const place = this.#borrow(20 + 8 * k);
    try {
      this.#bytes().set(data, pixels);
      const view = this.#view();
      [pixels, width, height, 0, RGBA].forEach((word, at) => view.setUint32(place + 4 * at, word, true));
      this.#check("classify", this.#instance, place, k, place + 20, place + 20 + 4 * k);
      const labels = this.labels;
      const after = this.#view();
      return Array.from({ length: k }, (_, at) => {
        const index = after.getUint32(place + 20 + 4 * at, true);
        return { index, label: labels[index] ?? "", probability: after.getFloat32(place + 20 + 4 * (k + at), true) };
      });
    } finally {
      this.#exports.free(pixels);
      this.#exports.free(place);
    }
  }

  /** Set all states to what they are at first, for the beginning of another stream. */
  resetStates() {
    this.#check("state_reset", this.#instance);
  }

  /** Turn the profile of kernels on or off; `profile` reads it: [{ kernel, calls, nanoseconds }]. */
  setProfiling(on) {
    this.#check("set_profiling", this.#instance, on ? 1 : 0);
  }

  profile() {
    const place = this.#borrow(24);
    try {
      return Array.from({ length: this.#api.kernels }, (_, at) => {
        this.#check("profile", this.#instance, at, place);
        const view = this.#view();
        return {
          kernel: this.#text(view.getUint32(place, true)),
          calls: Number(view.getBigUint64(place + 8, true)),
          nanoseconds: Number(view.getBigUint64(place + 16, true)),
        };
      });
    } finally {
      this.#exports.free(place);
    }
  }

  /** Free the instance and its buffers; the object is not used afterwards. */
  free() {
    if (this.#instance) this.#call("destroy", this.#instance);
    this.#owned.forEach((memory) => this.#exports.free(memory));
    this.#instance = 0;
    this.#owned = [];
  }

  // -- inputs and outputs --

  #setBytes({ name, size }, place, bytes) {
    if (bytes.byteLength !== size) throw new NetworkError(`${name}: ${bytes.byteLength} bytes; expected ${size}`);
    this.#bytes().set(bytes, place);
  }

  #write(spec, at, value, size) {
    if (value === undefined || value === null) {
      if (this.states.some(({ input }) => input === at)) return;
      throw new NetworkError(`input ${spec.name} is missing`);
    }
    const wanted = ARRAYS[spec.dtype];
    const data = value.data ?? value;
    if (!(data instanceof wanted) || data.byteLength !== size)
      throw new NetworkError(
        `input ${spec.name}: ${data.constructor?.name} of ${data.length}; expected ${wanted.name} of ` +
          `${size / wanted.BYTES_PER_ELEMENT} (${spec.dtype} [${spec.shape.join(", ")}])`,
      );
    this.#bytes().set(new Uint8Array(data.buffer, data.byteOffset, data.byteLength), this.#inputs[at]);
  }

  #pointers(given) {
    const words = [
      ...this.#inputs.map((memory, at) => (given && (given[at] === undefined || given[at] === null) ? 0 : memory)),
      ...this.#outputs,
    ];
    const place = this.#borrow(4 * words.length);
    const view = this.#view();
    words.forEach((word, at) => view.setUint32(place + 4 * at, word, true));
    return place;
  }

  #start(name, given, ...before) {
    const place = this.#pointers(given);
    try {
      this.#check(name, this.#instance, ...before, place, place + 4 * this.#inputs.length);
    } finally {
      this.#exports.free(place);
    }
  }

  #runSized(given) {
    const borrowed = [];
    const numbers = (count) => {
      borrowed.push(this.#borrow(8 * Math.max(count, 1)));
      return borrowed[borrowed.length - 1];
    };
    try {
      const shapes = this.inputs.map((spec, at) => {
        const shape = given[at]?.shape ?? spec.shape;
        if (shape.length !== spec.shape.length) throw new NetworkError(`input ${spec.name} has ${spec.shape.length} axes`);
        const place = numbers(shape.length);
        shape.forEach((size, axis) => this.#view().setBigInt64(place + 8 * axis, BigInt(size), true));
        return place;
      });
      const table = numbers(shapes.length);
      shapes.forEach((place, at) => this.#view().setUint32(table + 4 * at, place, true));
      const sizes = numbers(this.sizes.length);
      this.#check("sizes_of", table, sizes);
      const shapeOf = (isOutput, at, { shape }) => {
        const place = numbers(shape.length);
        this.#check("shape_of", isOutput, at, sizes, place);
        return shape.map((_, axis) => Number(this.#view().getBigInt64(place + 8 * axis, true)));
      };
      const bytes = (spec, shape) => shape.reduce((all, one) => all * one, ARRAYS[spec.dtype].BYTES_PER_ELEMENT);
      this.inputs.forEach((spec, at) => this.#write(spec, at, given[at], bytes(spec, shapeOf(0, at, spec))));
      this.#start("run_sized", given, sizes);
      return Object.fromEntries(
        this.outputs.map((spec, at) => {
          const shape = shapeOf(1, at, spec);
          return [spec.name, { data: this.#read(this.#outputs[at], spec.dtype, bytes(spec, shape)), shape }];
        }),
      );
    } finally {
      borrowed.forEach((memory) => this.#exports.free(memory));
    }
  }

  // -- the module's memory --

  #view() {
    return new DataView(this.#memory.buffer); // memory that grew has another buffer
  }

  #bytes() {
    return new Uint8Array(this.#memory.buffer);
  }

  #read(address, dtype, size) {
    return new ARRAYS[dtype](this.#memory.buffer.slice(address, address + size));
  }

  #text(address) {
    if (!address) return "";
    const bytes = this.#bytes();
    return new TextDecoder().decode(bytes.slice(address, bytes.indexOf(0, address)));
  }

  #borrow(size) {
    const memory = this.#exports.malloc(size);
    if (!memory) throw new NetworkError("no memory");
    return memory;
  }

  /** Aligned memory that the object owns. */
  #allocate(size) {
    const memory = this.#borrow(size + ALIGNMENT);
    this.#owned.push(memory);
    return Math.ceil(memory / ALIGNMENT) * ALIGNMENT;
  }

  // -- the functions of tvmflow.h --

  #readApi(address) {
    const view = this.#view();
    const size = view.getUint32(address + 4, true);
    let offset = 0;
    for (const name of MEMBERS) {
      if (WIDE.has(name)) offset = Math.ceil(offset / 8) * 8;
      if (offset >= size) break;
      this.#api[name] = WIDE.has(name) ? view.getFloat64(address + offset, true) : view.getUint32(address + offset, true);
      offset += WIDE.has(name) ? 8 : 4;
    }
    if (this.#api.abi_version !== ABI_VERSION)
      throw new NetworkError(`a network of ABI ${this.#api.abi_version}; this module runs ${ABI_VERSION}`);
  }

  #call(name, ...parameters) {
    const index = this.#api[name];
    if (!index) throw new NetworkError(`the network has no function ${name}`);
    return this.#table.get(index)(...parameters);
  }

  #check(name, ...parameters) {
    const status = this.#call(name, ...parameters);
    if (status) {
      const why = this.#text(this.#call("last_error"));
      throw new NetworkError(`${name}: ${why || STATUS[status] || status}`);
    }
  }

  #readTensor(read, at) {
    const place = this.#borrow(20);
    try {
      this.#check(read, at, place);
      const view = this.#view();
      const [name, shape, ndim, dtype, size] = [0, 4, 8, 12, 16].map((offset) => view.getUint32(place + offset, true));
      const sizes = Array.from({ length: ndim }, (_, axis) => Number(view.getBigInt64(shape + 8 * axis, true)));
      return { name: this.#text(name), shape: sizes, dtype: DTYPES[dtype], size };
    } finally {
      this.#exports.free(place);
    }
  }

  #readState(at) {
    const place = this.#borrow(8);
    try {
      this.#check("state_of", at, place, place + 4);
      const view = this.#view();
      return { input: view.getUint32(place, true), output: view.getUint32(place + 4, true) };
    } finally {
      this.#exports.free(place);
    }
  }

  #readSize(at) {
    const place = this.#borrow(12);
    try {
      this.#check("size_of", at, place);
      const view = this.#view();
      const [name, buckets, count] = [0, 4, 8].map((offset) => view.getUint32(place + offset, true));
      return {
        name: this.#text(name),
        buckets: Array.from({ length: count }, (_, i) => Number(view.getBigInt64(buckets + 8 * i, true))),
      };
    } finally {
      this.#exports.free(place);
    }
  }
}
