// What this server's models are fed with, and whether a person's data are of that form.

import { kind } from "./kinds.js";

const FLOATS = ["float32", "float64", "bool"]; // a flag is a number, as in Python

/** In words, for a person. */
export function words({ dtype, stored }) {
  return dtype === "uint8" ? `images, ${stored.join(" × ")} (height, width, channels)` : `${dtype} [${stored}]`;
}

/** Examples {dtype, shape, data} as the graphs take them; grey images may leave out the one channel. */
export function examples(form, { dtype, shape, data }) {
  if (dtype === "uint8" && shape.length === 3) shape = [...shape, 1];
  const [count, ...one] = shape;
  if (!count) throw new Error("There are no examples in this file.");
  const alike = form.dtype === "uint8" ? dtype === "uint8" : FLOATS.includes(dtype) === FLOATS.includes(form.dtype);
  if (!alike || one.join() !== form.stored.join()) {
    throw new Error(`These examples are ${dtype} [${one}]; the server's models take ${words(form)}.`);
  }
  if (FLOATS.includes(dtype) && !data.every(Number.isFinite)) throw new Error("Some values are NaN or infinite.");
  return { dtype: form.dtype, shape, data: form.dtype === dtype ? data : cast(data, kind("dtype", form.dtype).Kind) };
}

/** Labels for `count` examples as int32, -1 where they are unknown: everywhere, if there is no array. */
export function labels(form, array, count) {
  if (!array) return new Int32Array(count).fill(-1);
  const { shape, data } = array;
  if (shape.join() !== String(count)) {
    throw new Error(`There must be one label for each of ${count} examples; y has the shape [${shape}].`);
  }
  const wrong = data.find((label) => !(label >= -1 && label < form.classes && Number.isInteger(Number(label))));
  if (wrong !== undefined) {
    throw new Error(`${wrong} is no label here: the classes are 0 to ${form.classes - 1} (-1: unknown).`);
  }
  return cast(data, Int32Array);
}

/** What the encoder is given; where it asks for held-out examples, that is every fifth labelled one of each class. */
export function split({ x, y }, inputs) {
  const seen = new Map(), all = [...y.keys()];
  const held = new Set(inputs.includes("held_x") ? all.filter((i) => {
    seen.set(y[i], (seen.get(y[i]) ?? 0) + 1);
    return y[i] >= 0 && seen.get(y[i]) % 5 === 0;
  }) : []);
  const [rest, apart] = [all.filter((i) => !held.has(i)), [...held]];
  const pick = (rows) => Int32Array.from(rows, (i) => y[i]);
  const own = { x: at(x, rest), y: { dtype: "int32", shape: [rest.length], data: pick(rest) } };
  return { ...own, held_x: at(x, apart), held_y: { dtype: "int32", shape: [apart.length], data: pick(apart) } };
}

/** The examples at these places. */
function at({ dtype, shape: [all, ...one], data }, rows) {
  const size = data.length / all, found = new data.constructor(rows.length * size);
  rows.forEach((row, i) => found.set(data.subarray(row * size, (row + 1) * size), i * size));
  return { dtype, shape: [rows.length, ...one], data: found };
}

/** A part of the examples: as many as `count`, from `start` on. */
export function some({ dtype, shape: [all, ...one], data }, start, count) {
  const size = data.length / all, stop = Math.min(all, start + count);
  return { dtype, shape: [stop - start, ...one], data: data.subarray(start * size, stop * size) };
}

function cast(data, Kind) {
  const convert = Kind === BigInt64Array ? BigInt : Number;
  return Kind.from(data, (value) => convert(value));
}
