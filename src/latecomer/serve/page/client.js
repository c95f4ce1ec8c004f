// A client of this server, in the browser: its data are looked at here, and a descriptor is all that it sends.

import { some } from "./form.js";
import { writeSafetensors } from "./safetensors.js";

const RUNTIME = new URL(".", import.meta.url).href; // onnxruntime-web's files lie beside this one
const WITHOUT = "This server has no onnxruntime-web, so its page cannot run models; there, `make page` fetches it.";
const AT_ONCE = 256; // examples that are predicted together

let loaded; // onnxruntime-web, when it was first needed
async function runtime() {
  loaded ??= import(`${RUNTIME}ort.wasm.min.mjs`).catch(() => { throw new Error(WITHOUT); });
  const ort = await loaded;
  ort.env.wasm.wasmPaths = RUNTIME;
  ort.env.wasm.numThreads = 1; // more would need headers that isolate the page, and gain nothing
  return ort;
}

/** A graph, ready to run; its weights lie in the file `place`. */
class Graph {
  static async open(graph, place, weights) {
    const ort = await runtime();
    const externalData = weights ? [{ path: place, data: weights }] : [];
    return Object.assign(new Graph(), { ort, session: await ort.InferenceSession.create(graph, { externalData }) });
  }

  /** Its outputs from its inputs, both by name; all are {dtype, shape, data}. */
  async run(given) {
    const feeds = {}, outputs = {};
    for (const name of this.session.inputNames) {
      const { dtype, shape, data } = given[name];
      feeds[name] = new this.ort.Tensor(dtype, data, shape);
    }
    for (const [name, { type, dims, data }] of Object.entries(await this.session.run(feeds))) {
      outputs[name] = { dtype: type, shape: [...dims], data };
    }
    return outputs;
  }
}

/** A model that predicts: the graph that all models share, a file of weights, and what grew with the client's data. */
class Model {
  constructor(graph, files, grown) {
    Object.assign(this, { graph, files, grown });
  }

  /** A row of logits for every example. */
  async logits(x) {
    const rows = [];
    for (let start = 0; start < x.shape[0]; start += AT_ONCE) {
      const { logits } = await this.graph.run({ ...this.grown, x: some(x, start, AT_ONCE) });
      for (let row = 0; row < logits.shape[0]; row++) rows.push(some(logits, row, 1).data);
    }
    return rows;
  }

  /** The class of every example. */
  async predict(x) {
    return (await this.logits(x)).map((row) => row.indexOf(Math.max(...row)));
  }

  /** How unsure it is of these examples: the mean entropy of its predictions. */
  async entropy(x) {
    const each = (await this.logits(x)).map((row) => {
      const powers = Array.from(row, (score) => Math.exp(score - Math.max(...row)));
      const sum = powers.reduce((a, b) => a + b);
      return powers.reduce((total, power) => total - (power && (power / sum) * Math.log(power / sum)), 0);
    });
    return each.reduce((a, b) => a + b) / each.length;
  }
}

export class Client {
  constructor(key) {
    this.key = key;
    this.files = {};
  }

  /** What the server offers; kept, because digests stand in it. */
  async open() {
    this.facts = await (await this.request("/v1/bundle")).json();
    this.form = this.facts.recipe.task;
  }

  has(name) {
    return `public/${name}` in this.facts.files;
  }

  /** The numbers that describe a client's data; they are made here. */
  async describe(data) {
    return Array.from((await this.encode(data)).descriptor.data);
  }

  /** The model that the server makes of a descriptor. */
  async modelFor(descriptor) {
    return this.model(await whole(await this.post("/v1/models", { descriptor }, "application/octet-stream")));
  }

  /** The model that this browser makes of a client's data: nothing is sent. */
  async modelOf(data) {
    const leaves = await this.encode(data);
    const names = Object.keys(JSON.parse(this.facts.header)); // in the order in which model.onnx expects them
    const pick = (chosen) => Object.fromEntries(chosen.map((name) => [name, leaves[name]]));
    return this.model(writeSafetensors(pick(names)), pick(Object.keys(leaves).filter((name) => !names.includes(name))));
  }

  /** The model that everybody gets. */
  async common() {
    return this.model(await this.file("common.safetensors"));
  }

  /** The model in one file, with its weights inside; made by the server. */
  async standalone(descriptor) {
    return whole(await this.post("/v1/models", { descriptor }, "application/onnx"));
  }

  /** What the gate says of a descriptor, and of how unsure the model is that was made of it. */
  async coverage(descriptor, entropy) {
    return (await this.post("/v1/coverage", { descriptor, entropy }, "application/json")).json();
  }

  async encode(data) {
    const weights = this.has("encoder.safetensors") ? await this.file("encoder.safetensors") : null;
    this.encoder ??= await Graph.open(await this.file("encoder.onnx"), "encoder.safetensors", weights);
    const count = this.facts.noise;
    return this.encoder.run({ ...data, noise: { dtype: "float64", shape: [count], data: normal(count) } });
  }

  async model(weights, grown = {}) {
    const graph = await this.file("model.onnx");
    const files = { "model.onnx": graph, "model.safetensors": weights };
    if (Object.keys(grown).length) files["grown.safetensors"] = writeSafetensors(grown);
    return new Model(await Graph.open(graph, "model.safetensors", weights), files, grown);
  }

  /** One of the bundle's public files, whose digest is checked. */
  async file(name) {
    if (!this.has(name)) throw new Error(this.facts.why[name] ?? `This server's bundle has no ${name}.`);
    this.files[name] ??= await whole(await this.request(`/v1/files/${name}`), this.facts.files[`public/${name}`]);
    return this.files[name];
  }

  async post(path, message, accept) {
    const headers = { Accept: accept, "Content-Type": "application/json", "X-Latecomer-Bundle": this.facts.version };
    return this.request(path, { method: "POST", body: JSON.stringify(message) }, headers);
  }

  async request(path, options = {}, headers = {}) {
    if (this.key) headers = { ...headers, Authorization: `Bearer ${this.key}` };
    const answer = await fetch(path, { ...options, headers });
    if (answer.ok) return answer;
    const problem = await answer.json().catch(() => ({}));
    throw new Error(problem.detail ?? `The server answered ${answer.status} to ${path}.`);
  }
}

/** All bytes of an answer, if they have the promised digest; where there is no TLS, browsers compute none. */
async function whole(answer, promised) {
  const bytes = new Uint8Array(await answer.arrayBuffer());
  if (!crypto.subtle) return bytes;
  const found = [...new Uint8Array(await crypto.subtle.digest("SHA-256", bytes))];
  const digests = [
    found.map((byte) => byte.toString(16).padStart(2, "0")).join(""),
    `sha-256=:${btoa(String.fromCharCode(...found))}:`,
  ];
  if (!digests.includes(promised ?? answer.headers.get("Repr-Digest"))) {
    throw new Error("What the server sent is not what it promised: its SHA-256 is another. Reload the page.");
  }
  return bytes;
}

/** Standard normal numbers that nobody can guess, by Box and Muller. */
function normal(count) {
  const uniform = () => {
    const [high, low] = crypto.getRandomValues(new Uint32Array(2));
    return (high * 2 ** 21 + (low >>> 11) + 1) / 2 ** 53; // above 0, up to 1
  };
  const one = () => Math.sqrt(-2 * Math.log(uniform())) * Math.cos(2 * Math.PI * uniform());
  return Float64Array.from({ length: count }, one);
}
