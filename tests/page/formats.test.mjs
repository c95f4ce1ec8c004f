// Run by tests/test_page.py: files that numpy and safetensors wrote are read, and what is written here they read.

import assert from "node:assert/strict";
import { readFileSync, writeFileSync } from "node:fs";
import { test } from "node:test";

const page = new URL("../../src/latecomer/serve/page/", import.meta.url);
const { readNpz } = await import(new URL("npz.js", page));
const { zip } = await import(new URL("zip.js", page));
const { readSafetensors, writeSafetensors } = await import(new URL("safetensors.js", page));
const { examples, labels } = await import(new URL("form.js", page));

const folder = process.env.FILES;
const bytes = (name) => new Uint8Array(readFileSync(`${folder}/${name}`)).slice().buffer;
const expected = JSON.parse(readFileSync(`${folder}/expected.json`));
const plain = (tensors) => Object.fromEntries(Object.entries(tensors).map(([name, { dtype, shape, data }]) => [name, [dtype, shape, Array.from(data, Number)]]));

for (const name of ["stored.npz", "deflated.npz", "long.npz"]) {
  test(`${name} is read`, async () => assert.deepEqual(plain(await readNpz(bytes(name))), expected));
}

for (const [name, sentence] of Object.entries(JSON.parse(readFileSync(`${folder}/refused.json`)))) {
  test(`${name} is refused`, () => assert.rejects(readNpz(bytes(name)), { message: new RegExp(sentence) }));
}

test("safetensors are read, and written as they were", () => {
  const tensors = readSafetensors(bytes("some.safetensors"));
  assert.deepEqual(plain(tensors), expected);
  writeFileSync(`${folder}/again.safetensors`, writeSafetensors(tensors));
});

test("safetensors that are cut short are refused", () => {
  for (const length of [4, 20, -1]) assert.throws(() => readSafetensors(bytes("some.safetensors").slice(0, length)), /damaged/);
});

test("an archive is written", async () => {
  const archive = zip({ "model.onnx": new Uint8Array([1, 2, 3]), "naïve.txt": new Uint8Array() });
  writeFileSync(`${folder}/model.zip`, new Uint8Array(await archive.arrayBuffer()));
});

const form = { dtype: "uint8", stored: [2, 2, 1], classes: 3 };
const grey = { dtype: "uint8", shape: [2, 2, 2], data: new Uint8Array(8) };

test("grey images may leave out the channel", () => assert.deepEqual(examples(form, grey).shape, [2, 2, 2, 1]));
test("other numbers are made the form's", () => {
  const whole = { dtype: "int32", shape: [1, 2], data: Int32Array.of(5, 6) };
  assert.deepEqual(examples({ dtype: "int64", stored: [2] }, whole).data, BigInt64Array.of(5n, 6n));
});
test("examples of another form are refused", () => {
  assert.throws(() => examples(form, { ...grey, dtype: "float32" }), /float32 \[2,2,1\]|float32 \[2,2\]/);
  assert.throws(() => examples(form, { ...grey, shape: [1, 4, 2] }), /uint8 \[4,2,1\]/);
  assert.throws(() => examples({ dtype: "float32", stored: [1] }, { dtype: "float32", shape: [1, 1], data: Float32Array.of(NaN) }), /NaN/);
});
test("labels are classes of the form, or unknown", () => {
  assert.deepEqual(labels(form, null, 2), Int32Array.of(-1, -1));
  assert.deepEqual(labels(form, { shape: [2], data: BigInt64Array.of(-1n, 2n) }, 2), Int32Array.of(-1, 2));
  for (const wrong of [3, -2, 0.5, NaN]) {
    assert.throws(() => labels(form, { shape: [1], data: Float64Array.of(wrong) }, 1), /is no label here/);
  }
  assert.throws(() => labels(form, { shape: [1, 1], data: Int32Array.of(0) }, 1), /one label/);
});
