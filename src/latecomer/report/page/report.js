"use strict";
// What stands on the page and what a person does with it; figures.js says what is drawn.

const parts = [...document.querySelectorAll("section.part")];
const data = JSON.parse(document.getElementById("data").textContent);
const system = matchMedia("(prefers-color-scheme: dark)");
const button = document.getElementById("theme");
const root = document.documentElement;
const dark = () => (root.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark";

// The only way from a run's words into a figure: Plotly reads tags, and what comes from a run is text and nothing else.
const plain = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;").replace(/\n/g, "<br>");

function tabulate(place, caption, columns, rows) {
  const add = (parent, tag, text, scope) => {
    const made = parent.appendChild(document.createElement(tag));
    if (text !== undefined) made.textContent = text;
    if (scope) made.scope = scope;
    return made;
  };
  const table = document.createElement("table");
  add(table, "caption", caption);
  const head = add(add(table, "thead"), "tr");
  columns.forEach((text) => add(head, "th", text, "col"));
  const body = add(table, "tbody");
  rows.forEach(([first, ...cells]) => {
    const row = add(body, "tr");
    add(row, "th", first, "row");
    cells.forEach((text) => add(row, "td", text));
  });
  place.replaceChildren(table);
}

function draw(part, key, figure) {
  const place = part.querySelector(`figure.${key}`);
  place.hidden = figure === null;
  if (figure === null) return;
  const { traces, layout, caption, summary, columns, rows } = figure;
  const plot = place.querySelector(".plot");
  place.querySelector("figcaption").textContent = caption;
  plot.setAttribute("aria-label", `${place.querySelector("h4").textContent}. ${summary}`);
  const values = place.querySelector("details");
  values.fill = () => values.open && tabulate(values.querySelector(".wide"), caption, columns, rows());
  values.fill(); // a table of 10,000 clients is made when somebody opens it
  if (figure.height) plot.style.height = figure.height;
  const shown = traces.map(({ told, ...trace }) => ({ ...trace, ...(told ? { hovertext: told.map(plain), hoverinfo: "text" } : { hoverinfo: "skip" }) }));
  plot.said = traces.map(({ told }) => told);
  Plotly.react(plot, shown, layout, { responsive: true, displaylogo: false, displayModeBar: false });
}

// Arrow keys do what a mouse does by pointing, and say it aloud: left and right along a curve, up and down to another.
function walk(plot) {
  let [curve, point] = [-1, -1];
  plot.addEventListener("keydown", (event) => {
    const step = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
    const curves = (plot.said ?? []).flatMap((told, k) => (told?.length ? [k] : []));
    if (event.key === "Escape") Plotly.Fx.unhover(plot);
    if (!step || !curves.length) return;
    event.preventDefault();
    if (!curves.includes(curve)) [curve, point] = [curves[0], 0];
    else {
      curve = curves[(curves.indexOf(curve) + step[0] + curves.length) % curves.length];
      const count = plot.said[curve].length;
      point = (Math.min(point, count - 1) + step[1] + count) % count;
    }
    Plotly.Fx.hover(plot, [{ curveNumber: curve, pointNumber: point }]);
    document.getElementById("said").textContent = plot.said[curve][point].replace(/\n/g, ", ");
  });
}

function legend(part, given) {
  const place = part.querySelector(".legend");
  given.hidden ??= new Set();
  place.replaceChildren(...given.runs.map((run, k) => {
    const key = document.createElement("button");
    key.type = "button";
    key.setAttribute("aria-pressed", String(!given.hidden.has(k)));
    key.append(swatch(k), run.name);
    key.addEventListener("click", () => {
      given.hidden.has(k) ? given.hidden.delete(k) : given.hidden.add(k);
      key.setAttribute("aria-pressed", String(!given.hidden.has(k)));
      show(part);
    });
    return key;
  }));
  place.hidden = given.runs.length < 2;
}

function show(part) {
  const given = data[part.dataset.part];
  const chosen = Object.fromEntries([...part.querySelectorAll("select")].map((select) => [select.name, select.value]));
  const runs = given.runs.map((run, place) => ({ ...run, place })).filter(({ place }) => !given.hidden.has(place));
  draw(part, "differences", differences(given, runs, chosen));
  draw(part, "curves", curves(given, runs, chosen));
  draw(part, "spread", spread(given, runs, chosen));
  draw(part, "bytes", costs(given, runs, chosen, "megabytes", "MB sent in training, a seed"));
  draw(part, "seconds", costs(given, runs, chosen, "seconds", "seconds of training, all seeds"));
  draw(part, "map", clients(given, chosen));
}

function paint() {
  button.setAttribute("aria-pressed", String(dark()));
  parts.forEach((part) => {
    legend(part, data[part.dataset.part]);
    show(part);
  });
}

button.addEventListener("click", () => {
  root.dataset.theme = dark() ? "light" : "dark";
  paint();
});
system.addEventListener("change", paint);
let before;
addEventListener("beforeprint", () => { // on paper the page is light, the figures too
  before = root.dataset.theme;
  root.dataset.theme = "light";
  paint();
});
addEventListener("afterprint", () => {
  if (before) root.dataset.theme = before;
  else delete root.dataset.theme;
  paint();
});
parts.forEach((part) => {
  part.querySelectorAll("select").forEach((select) => select.addEventListener("change", () => show(part)));
  part.querySelectorAll("details").forEach((values) => values.addEventListener("toggle", () => values.fill?.()));
  part.querySelectorAll(".plot").forEach(walk);
});
paint();
