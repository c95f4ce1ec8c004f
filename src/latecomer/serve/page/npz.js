// Arrays as numpy saves them: .npz, by savez or savez_compressed.

import { KINDS, kind, size } from "./kinds.js";
import { unzip } from "./zip.js";

/** The arrays of an .npz by their names: {dtype, shape, data}. */
export async function readNpz(buffer) {
  const files = Object.entries(await unzip(buffer));
  return Object.fromEntries(files.map(([name, bytes]) => [name.replace(/\.npy$/, ""), readNpy(name, bytes)]));
}

/** One array from the bytes of an .npy, version 1 or later. */
function readNpy(name, bytes) {
  const view = new DataView(bytes.buffer);
  if (bytes.length < 12 || view.getUint32(0) !== 0x934e554d || view.getUint16(4) !== 0x5059) {
    throw new Error(`${name} is no array of numpy.`);
  }
  const begin = bytes[6] === 1 ? 10 : 12; // the header's length has two bytes, or four
  const start = begin + (bytes[6] === 1 ? view.getUint16(8, true) : view.getUint32(8, true));
  const header = new TextDecoder("latin1").decode(bytes.subarray(begin, start));
  const descr = header.match(/'descr': *'([^']*)'/)?.[1] ?? "object";
  const lengths = header.match(/'shape': *\(([\d, ]*)\)/)?.[1];
  const found = kind("numpy", descr);
  if (!found) {
    const known = KINDS.map(({ dtype }) => dtype).join(", ");
    throw new Error(`${name} holds values of the kind ${descr}; this page reads ${known}.`);
  }
  if (/'fortran_order': *True/.test(header)) {
    throw new Error(`${name} is stored column by column; save numpy.ascontiguousarray of it.`);
  }
  const shape = lengths?.split(",").filter((length) => length.trim()).map(Number);
  if (!shape || bytes.length - start !== size(shape) * found.Kind.BYTES_PER_ELEMENT) {
    throw new Error(`${name} is damaged: it has not the size that its header says.`);
  }
  return { dtype: found.dtype, shape, data: new found.Kind(bytes.slice(start).buffer) };
}
