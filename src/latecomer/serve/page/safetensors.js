// The safetensors format: eight bytes with the header's length, the header in JSON, and the numbers.

import { kind, size } from "./kinds.js";

/** The tensors of a file by their names: {dtype, shape, data}. */
export function readSafetensors(buffer) {
  const damaged = new Error("This is no safetensors file, or it is damaged.");
  if (buffer.byteLength < 8) throw damaged;
  const start = 8 + Number(new DataView(buffer).getBigUint64(0, true));
  if (start > buffer.byteLength) throw damaged;
  const { __metadata__, ...header } = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, start - 8)));
  const tensors = {};
  for (const [name, { dtype, shape, data_offsets: [from, to] }] of Object.entries(header)) {
    const found = kind("safetensors", dtype);
    if (!found) throw new Error(`${name} holds values of the kind ${dtype}, which this page cannot read.`);
    if (start + to > buffer.byteLength || to - from !== size(shape) * found.Kind.BYTES_PER_ELEMENT) throw damaged;
    tensors[name] = { dtype: found.dtype, shape, data: new found.Kind(buffer.slice(start + from, start + to)) };
  }
  return tensors;
}

/** A file of these tensors, in the order in which they are given. */
export function writeSafetensors(tensors) {
  const header = {}, parts = [];
  let offset = 0;
  for (const [name, { dtype, shape, data }] of Object.entries(tensors)) {
    const place = [offset, (offset += data.byteLength)];
    header[name] = { dtype: kind("dtype", dtype).safetensors, shape, data_offsets: place };
    parts.push(new Uint8Array(data.buffer, data.byteOffset, data.byteLength));
  }
  const text = new TextEncoder().encode(JSON.stringify(header));
  const start = 8 + text.length + (-text.length & 7);
  const file = new Uint8Array(start + offset).fill(32, 0, start); // spaces behind the header align the numbers
  new DataView(file.buffer).setBigUint64(0, BigInt(start - 8), true);
  file.set(text, 8);
  offset = start;
  for (const part of parts) {
    file.set(part, offset);
    offset += part.length;
  }
  return file;
}
