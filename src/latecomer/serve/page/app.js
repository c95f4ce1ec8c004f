// The page: what a person does, and what they see.

import { onChange, requests, resources } from "./watch.js"; // first, so that it sees every request
import { Client } from "./client.js";
import { examples, labels, some, split, words } from "./form.js";
import { dropped, isImage, readImages } from "./images.js";
import { readNpz } from "./npz.js";
import { plot, range } from "./plot.js";
import { zip } from "./zip.js";

const SHOWN = 60; // predictions that are drawn
const ELSEWHERE = {
  train: "A client of this method trains its model, and browsers cannot train.",
  fit: "A client of this method trains in turns with the server, and browsers cannot train.",
}; // by rule

let client, data, model, descriptor, entropy;

// small things

const at = (id) => document.getElementById(id);
const percent = (value) => `${value.toFixed(1)}\u00a0%`;
const plural = (count, word) => `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;

function make(tag, attributes, ...inside) {
  const element = Object.assign(document.createElement(tag), attributes);
  element.append(...inside);
  return element;
}

/** Does what a person asked for; what goes wrong is said in one place. */
async function attempt(action) {
  at("problem").textContent = "";
  try {
    await action();
  } catch (error) {
    at("status").textContent = "";
    at("problem").textContent = error.message;
  }
}

/** A word on what is being done; the browser draws it before the work begins. */
async function say(text) {
  at("status").textContent = text;
  await new Promise((resolve) => setTimeout(resolve));
}

function download(name, blob) {
  const url = URL.createObjectURL(blob);
  make("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}

// the server

async function connect() {
  client = new Client(at("key").value);
  await client.open();
  const { method, rule, recipe: { task }, weights, version } = client.facts;
  const size = `${plural(weights, "weight")}, ${task.classes} classes`;
  const learned = `Method ${method}, learned from ${plural(task.members, "member")}`;
  at("facts").textContent = `${learned}: ${size}. Bundle ${version.slice(0, 12)}.`;
  at("form").textContent = `The models take ${words(task)}.`;
  at("why").hidden = !(rule in ELSEWHERE);
  if (rule in ELSEWHERE) {
    const common = client.has("common.safetensors");
    const offer = common ? "Here you can try the model that all clients share; yours may be better." : "";
    const line = `latecomer.join("${location.origin}", mine["x"], mine["y"]).save("mine")`;
    const program = `import latecomer, numpy\nmine = numpy.load("mine.npz")\n${line}`;
    at("why").replaceChildren(`${ELSEWHERE[rule]} ${offer} On a machine with Python:`, make("pre", {}, program));
    at("make").textContent = "Try the common model";
  }
  at("make").disabled = !data || !offered();
}

const offered = () => !(client.facts.rule in ELSEWHERE) || client.has("common.safetensors");

// the data

/** Examples and labels from what a person chose: one .npz, or images. */
async function read(files) {
  if (!client.facts) throw new Error("The server has not said yet what its models take.");
  const table = files.find((file) => file.name.endsWith(".npz"));
  if (!table && !files.some(isImage)) throw new Error("Choose an .npz, images, or a folder of images.");
  const { arrays, names } = table
    ? { arrays: await readNpz(await table.arrayBuffer()) }
    : await readImages(client.form, files, at("resize").checked);
  if (!arrays.x) throw new Error(`${table.name} has no array x; it has ${Object.keys(arrays).join(", ") || "none"}.`);
  const x = examples(client.form, arrays.x);
  return { x, y: labels(client.form, arrays.y, x.shape[0]), name: (label) => names?.[label] ?? String(label) };
}

async function take(files) {
  at("make").disabled = true;
  for (const id of ["standing", "predictions"]) at(id).hidden = true;
  data = await read(files);
  const counts = new Map();
  for (const label of data.y) if (label >= 0) counts.set(label, (counts.get(label) ?? 0) + 1);
  const known = data.y.filter((label) => label >= 0).length;
  const classes = [...counts].sort(([a], [b]) => a - b).map(([label, count]) => `${data.name(label)} (${count})`);
  const told = known ? `${plural(known, "label")}: class ${classes.join(", ")}` : "no labels";
  at("found").textContent = `Found ${plural(data.y.length, "example")} and ${told}.`;
  at("make").disabled = !offered();
}

// the model

async function personalise() {
  const { rule, inputs, needs_labels: needed } = client.facts, started = performance.now();
  const own = rule === "describe" || rule === "generate";
  if (own && needed && data.y.every((label) => label < 0)) {
    throw new Error("This method makes a model of examples and their labels; there are no labels in your data.");
  }
  const given = split(data, inputs);
  descriptor = entropy = null;
  if (rule === "describe") {
    await say("Describing your data, in this browser…");
    descriptor = await client.describe(given);
    await say(`Asking for the model of ${plural(descriptor.length, "number")}…`);
    model = await client.modelFor(descriptor);
  } else if (rule === "generate") {
    await say("Making your model, in this browser…");
    model = await client.modelOf(given);
  } else {
    await say("Fetching the model for all…");
    model = await client.common();
  }
  await stand(given.x);
  at("predictions-title").textContent = own ? "What your model says" : "What the model for all says";
  at("alone").hidden = !descriptor;
  await show(data, own ? "on the data that it was made of" : "on your data");
  const seconds = ((performance.now() - started) / 1000).toFixed(1);
  say(`${own ? "Your model" : "The model for all, not one of your own,"} is ready, after ${seconds} s.`);
}

/** Where this client stands among the members, if the server has a gate. */
async function stand(x) {
  at("standing").hidden = true;
  const { gate, noise } = client.facts;
  if (!descriptor || !gate || noise) return; // no noise would protect the entropy
  entropy = await model.entropy(x);
  const { covered, accuracy, low, high, place, nearest, advice } = await client.coverage(descriptor, entropy);
  const between = covered ? `between ${percent(low)} and ${percent(high)}` : "but nothing is promised";
  const near = nearest.map(([member]) => member);
  at("plot").replaceChildren(plot(gate.places, near, place));
  at("verdict").replaceChildren(
    make("p", { className: `verdict ${covered ? "yes" : "no"}` }, covered ? "Covered by the members" : "Unlike anyone"),
    make("p", {}, `About ${percent(accuracy)} of your model's predictions should be right, ${between}.`),
    range(accuracy, low, high),
    make("p", {}, `Advice: ${advice.replace("unlike anyone: ", "")}.`),
  );
  at("standing").hidden = false;
}

async function show({ x, y, name }, where) {
  await say("Predicting…");
  const guesses = await model.predict(x);
  const known = y.filter((label) => label >= 0).length, right = y.filter((label, i) => label === guesses[i]).length;
  const scored = known ? `${percent((100 * right) / known)} of ${plural(known, "label")} are right` : "Predictions";
  const first = y.length > SHOWN ? ` The first ${SHOWN} of ${y.length} examples:` : "";
  at("score").textContent = `${scored}, ${where}.${first}`;
  at("grid").dataset.guesses = guesses.join(); // all of them, for programs
  at("grid").replaceChildren(...guesses.slice(0, SHOWN).map((guess, i) => {
    const wrong = y[i] >= 0 && y[i] !== guess;
    const caption = make("figcaption", {}, name(guess), ...(wrong ? [make("small", {}, ` is ${name(y[i])}`)] : []));
    return make("figure", { className: wrong ? "wrong" : "" }, ...picture(some(x, i, 1)), caption);
  }));
  at("predictions").hidden = false;
  say("");
}

/** A thumbnail of one example, if it is an image. */
function picture({ dtype, shape: [, height, width, channels], data: values }) {
  if (dtype !== "uint8") return [];
  const image = new ImageData(width, height);
  for (let i = 0; i < height * width; i++) {
    const colour = [0, 1, 2].map((channel) => values[i * channels + Math.min(channel, channels - 1)]);
    image.data.set([...colour, 255], 4 * i);
  }
  const canvas = make("canvas", { width, height });
  canvas.getContext("2d").putImageData(image, 0, 0);
  return [canvas];
}

// what left this browser

function account() {
  const bodies = requests.filter(({ sent }) => sent);
  const meant = [{ descriptor }, { descriptor, entropy }].map((message) => JSON.stringify(message));
  const strange = bodies.filter(({ body }) => !meant.includes(body)).length;
  const bytes = bodies.reduce((sum, { sent }) => sum + sent, 0);
  const sure = entropy === null ? "" : "and, for the gate, how sure your model is of your examples";
  const what = strange ? `${strange} with something else than your descriptor` : `your descriptor ${sure}`.trim();
  const told = `${plural(bytes, "byte")} in ${plural(bodies.length, "request")}: ${what}; nothing else.`;
  const key = client?.key ? " Your key goes with each request." : "";
  at("sum").textContent = (bodies.length ? told : "Nothing of your data.") + key;
  at("requests").replaceChildren(...requests.map(({ method, path, status, sent, body }) => {
    const details = sent ? [make("details", {}, make("summary", {}, "all that was sent"), make("pre", {}, body))] : [];
    const cells = [[method], [path, ...details], [status], [sent.toLocaleString("en")]];
    return make("tr", { className: sent ? "sent" : "" }, ...cells.map((cell) => make("td", {}, ...cell)));
  }));
  const loaded = resources.map(({ name }) => new URL(name)), asked = new Set(requests.map(({ path }) => path));
  const parts = loaded.filter(({ pathname }) => !asked.has(pathname)).length;
  const foreign = [...loaded, ...requests].filter(({ origin }) => origin !== location.origin).length;
  at("loaded").textContent =
    `The browser's own count: ${plural(loaded.length, "resource")} loaded, ${parts} of them parts of this page and ` +
    `the rest as listed; ${foreign || "none"} from another server, which the page's security policy forbids.`;
}

// what a person does

function chosen(id, action) {
  at(id).addEventListener("change", () => attempt(async () => {
    const files = [...at(id).files];
    at(id).value = ""; // else the same file could not be chosen twice
    await action(files);
  }));
}

chosen("files", take);
chosen("folder", take);
chosen("others", async (files) => show(await read(files), "on other examples"));
at("make").addEventListener("click", () => attempt(personalise));
at("key").addEventListener("change", () => attempt(connect));
at("save").addEventListener("click", () => download("model.zip", zip(model.files)));
at("alone").addEventListener("click", () => attempt(async () => {
  download("model.onnx", new Blob([await client.standalone(descriptor)]));
}));
for (const type of ["dragover", "dragleave", "drop"]) {
  at("drop").addEventListener(type, (event) => {
    event.preventDefault();
    at("drop").classList.toggle("over", type === "dragover");
    if (type === "drop") attempt(async () => take(await dropped(event.dataTransfer.items)));
  });
}
onChange(account);
account();
attempt(connect);
