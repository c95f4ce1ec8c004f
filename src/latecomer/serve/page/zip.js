// Zip archives, read and written: .npz files are zip archives, and so is the model that is downloaded.

const END = 0x06054b50, ENTRY = 0x02014b50, LOCAL = 0x04034b50;
const LONGEST_COMMENT = 65535;

const CRC = Uint32Array.from({ length: 256 }, (_, byte) => {
  for (let bit = 0; bit < 8; bit++) byte = byte & 1 ? 0xedb88320 ^ (byte >>> 1) : byte >>> 1;
  return byte;
});

function crc32(bytes) {
  let crc = -1;
  for (let i = 0; i < bytes.length; i++) crc = CRC[(crc ^ bytes[i]) & 255] ^ (crc >>> 8);
  return ~crc >>> 0;
}

async function inflate(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** The files of an archive by their names, as bytes; sizes and places are those of its directory, at the end. */
export async function unzip(buffer) {
  const view = new DataView(buffer);
  let end = buffer.byteLength - 22;
  const first = Math.max(0, end - LONGEST_COMMENT);
  while (end >= first && view.getUint32(end, true) !== END) end--;
  if (end < first) throw new Error("This is no zip archive, or it is cut short.");
  const files = {};
  try {
    let place = view.getUint32(end + 16, true);
    for (let left = view.getUint16(end + 10, true); left > 0; left--) {
      if (view.getUint32(place, true) !== ENTRY) throw new RangeError("no entry");
      const [method, crc, packed, size] = [view.getUint16(place + 10, true), view.getUint32(place + 16, true),
        view.getUint32(place + 20, true), view.getUint32(place + 24, true)];
      const [named, extra, comment] = [28, 30, 32].map((offset) => view.getUint16(place + offset, true));
      const name = new TextDecoder().decode(new Uint8Array(buffer, place + 46, named));
      const local = view.getUint32(place + 42, true);
      if (packed === 0xffffffff || local === 0xffffffff) throw new Error(`${name} is too large for a browser.`);
      if (method !== 0 && method !== 8) throw new Error(`${name} is packed in a way that browsers cannot read.`);
      const start = local + 30 + view.getUint16(local + 26, true) + view.getUint16(local + 28, true);
      const stored = new Uint8Array(buffer, start, packed);
      const bytes = method === 8 ? await inflate(stored) : stored.slice();
      if (bytes.length !== size || crc32(bytes) !== crc) throw new RangeError("another checksum");
      files[name] = bytes;
      place += 46 + named + extra + comment;
    }
  } catch (error) {
    if (error instanceof RangeError || error instanceof TypeError) throw new Error("This archive is damaged.");
    throw error;
  }
  return files;
}

/** An archive of these files, stored as they are. */
export function zip(files) {
  const parts = [], directory = [];
  let offset = 0;
  for (const [name, bytes] of Object.entries(files)) {
    const label = new TextEncoder().encode(name);
    const facts = [20, 0x800, 0, 0, 0x21, crc32(bytes), bytes.length, bytes.length, label.length, 0];
    parts.push(record([4, 2, 2, 2, 2, 2, 4, 4, 4, 2, 2], [LOCAL, ...facts]), label, bytes);
    const entry = [ENTRY, 20, ...facts, 0, 0, 0, 0, offset];
    directory.push(record([4, 2, 2, 2, 2, 2, 2, 4, 4, 4, 2, 2, 2, 2, 2, 4, 4], entry), label);
    offset += 30 + label.length + bytes.length;
  }
  const length = directory.reduce((sum, part) => sum + part.byteLength, 0), count = directory.length / 2;
  const end = record([4, 2, 2, 2, 2, 4, 4, 2], [END, 0, 0, count, count, length, offset, 0]);
  return new Blob([...parts, ...directory, end], { type: "application/zip" });
}

function record(sizes, values) {
  const view = new DataView(new ArrayBuffer(sizes.reduce((sum, size) => sum + size)));
  let place = 0;
  values.forEach((value, i) => {
    if (sizes[i] === 2) view.setUint16(place, value, true);
    else view.setUint32(place, value, true);
    place += sizes[i];
  });
  return new Uint8Array(view.buffer);
}
