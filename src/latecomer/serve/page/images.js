// Image files, or a folder of them: subfolders are labels. Decoded here, by the browser.

const IMAGE = /\.(png|jpe?g|gif|bmp|webp|avif)$/i;

export const isImage = (file) => IMAGE.test(file.name);

/** Arrays x and y, and the names of the classes where folders have names; `resize` makes other sizes fit. */
export async function readImages(form, files, resize) {
  const [height, width, channels] = form.stored;
  if (form.dtype !== "uint8") throw new Error("This server's models do not look at images.");
  const pictures = files.filter(isImage).sort((a, b) => (path(a) < path(b) ? -1 : 1));
  if (!pictures.length) throw new Error("There is no image in this folder.");
  const [y, names] = number(pictures.map(folder), form.classes);
  const size = height * width * channels;
  const x = new Uint8Array(pictures.length * size);
  for (const [i, file] of pictures.entries()) x.set(await pixels(file, height, width, channels, resize), i * size);
  const shape = [y.length, ...form.stored];
  return { arrays: { x: { dtype: "uint8", shape, data: x }, y: { shape: [y.length], data: y } }, names };
}

const path = (file) => file.path ?? file.webkitRelativePath;

/** The subfolder that a file is in; the folder itself, which holds everything, is no label. */
const folder = (file) => path(file).split("/").slice(1, -1).pop() ?? "";

/** Labels, -1 where there is no subfolder; names count by the alphabet, which only works if all classes are there. */
function number(folders, classes) {
  const names = [...new Set(folders)].filter(Boolean).sort();
  if (names.every((name) => /^\d+$/.test(name))) return [folders.map((name) => (name ? Number(name) : -1)), null];
  if (names.length === classes) return [folders.map((name) => names.indexOf(name)), names];
  throw new Error(
    `Subfolders must be named after the classes, 0 to ${classes - 1}, or there must be one for each of them; ` +
      `these are ${names.slice(0, 5).join(", ")}.`,
  );
}

async function pixels(file, height, width, channels, resize) {
  let bitmap;
  try {
    bitmap = await createImageBitmap(file, { colorSpaceConversion: "none", premultiplyAlpha: "none" });
  } catch {
    throw new Error(`${file.name} cannot be read as an image.`);
  }
  if (!resize && (bitmap.width !== width || bitmap.height !== height)) {
    const sizes = `${bitmap.height} × ${bitmap.width} pixels; the models take ${height} × ${width}`;
    throw new Error(`${file.name} has ${sizes}. Tick “resize images” to make it fit.`);
  }
  const context = new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true });
  context.imageSmoothingQuality = "high";
  context.drawImage(bitmap, 0, 0, width, height);
  bitmap.close();
  const { data } = context.getImageData(0, 0, width, height);
  const out = new Uint8Array(height * width * channels);
  for (let i = 0; i < height * width; i++) {
    const [red, green, blue] = data.subarray(4 * i, 4 * i + 3);
    if (channels === 1) out[i] = Math.round(0.299 * red + 0.587 * green + 0.114 * blue);
    else out.set([red, green, blue], i * channels);
  }
  return out;
}

/** All files that were dropped, with their paths; folders are walked through. */
export async function dropped(items) {
  const entries = [...items].map((item) => item.webkitGetAsEntry()).filter(Boolean); // before anything is awaited
  return (await Promise.all(entries.map((entry) => walk(entry, "")))).flat();
}

async function walk(entry, above) {
  const here = above ? `${above}/${entry.name}` : entry.name;
  if (entry.isFile) {
    const file = await new Promise((resolve, reject) => entry.file(resolve, reject));
    return [Object.assign(file, { path: here })];
  }
  const reader = entry.createReader(), files = [];
  for (;;) {
    const some = await new Promise((resolve, reject) => reader.readEntries(resolve, reject)); // 100 at a time
    if (!some.length) return files;
    files.push(...(await Promise.all(some.map((child) => walk(child, here)))).flat());
  }
}
