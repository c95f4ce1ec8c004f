"use strict";
// What is drawn: every figure is traces, a layout, a caption, a summary to be read aloud, and the same as a table.

// After Okabe and Ito, whose colours most people tell apart; three times as bright or dark as the ground at least.
const palettes = {
  light: ["#0072b2", "#d55e00", "#00805d", "#b5578f", "#2b8cc4", "#a87000", "#5b3f94", "#6b5426", "#b2182b"],
  dark: ["#4ea3dc", "#ff8a3d", "#2fc79a", "#e79cc6", "#8fd0f5", "#f0b429", "#b79be6", "#c9aa62", "#f0747c"],
};
const dashes = ["solid", "dash", "dot", "dashdot", "longdash"];
const symbols = ["circle", "diamond", "square", "triangle-up"];
const marks = ["circle", "diamond", "x", "square"]; // member, latecomer covered or not, validator
const many = 2000; // points; more than that SVG draws too slowly
let able; // whether there is WebGL; asked once, and only by who needs it
const webgl = () => (able ??= Boolean(document.createElement("canvas").getContext("webgl")));

const percent = (value) => (value === null || value === undefined ? "no score" : `${value.toFixed(1)} %`);
const signed = (value) => `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(1)}`;
const amount = (value) => value.toLocaleString("en", { maximumSignificantDigits: 3 });
const clipped = (text, most = 22) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
const around = (deviation) => (deviation === null ? "" : ` ± ${deviation.toFixed(1)}`);

function style(place) {
  const palette = palettes[dark() ? "dark" : "light"];
  const [color, dash, symbol] = [palette, dashes, symbols].map((some) => some[place % some.length]);
  return { color, line: { color, width: 2.2, dash }, marker: { color, size: 6, symbol } };
}

// A run's line and its mark, as the figures have them.
function swatch(place) {
  const { color, line, marker } = style(place);
  const lengths = { solid: "", dash: "7 4", dot: "2 3", dashdot: "7 3 2 3", longdash: "11 4" };
  const outlines = { circle: "M18 2a5 5 0 1 0 .01 0", diamond: "M18 1l6 6l-6 6l-6-6z", square: "M13.5 2.5h9v9h-9z", "triangle-up": "M18 1.5l5.5 10h-11z" };
  const make = (tag, given) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    Object.entries(given).forEach((one) => made.setAttribute(...one));
    return made;
  };
  const drawn = make("svg", { width: 36, height: 14, viewBox: "0 0 36 14", "aria-hidden": "true" });
  drawn.append(make("path", { d: "M1 7H35", stroke: color, "stroke-width": 2.5, "stroke-dasharray": lengths[line.dash] }));
  drawn.append(make("path", { d: outlines[marker.symbol], fill: color }));
  return drawn;
}

function layout(x, y, more = {}) {
  const seen = getComputedStyle(document.body);
  const ground = seen.getPropertyValue("background-color");
  const axis = { gridcolor: "rgba(128,128,128,.22)", zeroline: false, linecolor: "rgba(128,128,128,.5)", automargin: true };
  const title = (text) => ({ text, standoff: 10, font: { size: 12.5 } });
  return {
    paper_bgcolor: "transparent", plot_bgcolor: "transparent", hovermode: "closest", showlegend: false,
    font: { family: "system-ui, sans-serif", size: 12.5, color: seen.color }, margin: { l: 52, r: 14, t: 12, b: 44 },
    hoverlabel: { bgcolor: ground, bordercolor: seen.color, font: { color: seen.color, size: 12.5 }, align: "left" },
    xaxis: { ...axis, title: title(x) }, yaxis: { ...axis, title: title(y) }, ...more,
  };
}

const whose = (given, chosen) => `${given.groups[chosen.group]}, ${given.among[chosen.among]}`;

function differences(given, all, chosen) {
  const base = given.runs[given.baseline];
  const runs = all.filter((run) => run.place !== given.baseline && run.differences[chosen.group]?.[chosen.among]?.[0] !== null);
  if (given.runs.length < 2 || !runs.length) return null;
  const names = runs.map((run) => run.name);
  const told = runs.map((run) => {
    const [mean, low, high, over] = run.differences[chosen.group][chosen.among];
    const range = low === null ? "no interval" : `95 % interval ${signed(low)} to ${signed(high)}, over ${over}`;
    return `${run.name}: ${signed(mean)} points\n${range}`;
  });
  const traces = runs.map((run, k) => {
    const [mean, low, high] = run.differences[chosen.group][chosen.among];
    const { color, marker } = style(run.place);
    const bars = { type: "data", symmetric: false, array: [high === null ? 0 : high - mean], arrayminus: [low === null ? 0 : mean - low], thickness: 2, width: 5, color };
    return { x: [mean], y: [k], error_x: bars, type: "scatter", mode: "markers", marker: { ...marker, size: 10 }, told: [told[k]] };
  });
  const drawn = layout(plain(`points more than ${clipped(base.name)}`), "");
  Object.assign(drawn.xaxis, { rangemode: "tozero", zeroline: true, zerolinewidth: 2, zerolinecolor: drawn.font.color });
  Object.assign(drawn.yaxis, { tickvals: names.map((_, k) => k), ticktext: names.map((name) => plain(clipped(name))), range: [names.length - 0.4, -0.6] });
  return {
    traces, layout: drawn, height: `${6 + 1.9 * names.length}rem`, summary: told.join("; ").replace(/\n/g, ", "),
    caption: `${whose(given, chosen)}: by how many points runs differ from ${base.name} on the same clients, with 95 % intervals. One that does not touch the line at zero is a difference.`,
    columns: ["run", "difference, points", "from", "to", "interval over"],
    rows: () => runs.map((run) => {
      const [mean, low, high, over] = run.differences[chosen.group][chosen.among];
      return [run.name, signed(mean), ...[low, high].map((end) => (end === null ? "–" : signed(end))), over];
    }),
  };
}

function curves(given, all, chosen) {
  const watched = (group) => all.filter((run) => run.curves[group]?.[chosen.among]?.length);
  const asked = chosen.group === "seen" ? "seen" : "unseen";
  const group = watched(asked).length ? asked : "seen";
  const titles = { rounds: "round", seconds: "seconds", megabytes: "MB sent, a seed" };
  const runs = watched(group);
  const traces = runs.flatMap((run) => {
    const points = run.curves[group][chosen.among];
    const x = run[chosen.against];
    const { color, line, marker } = style(run.place);
    const told = points.map(([mean, deviation], k) => `${run.name}\n${titles[chosen.against]} ${amount(x[k])}: ${percent(mean)}${around(deviation)}`);
    const course = { x, y: points.map(([mean]) => mean), type: "scatter", mode: x.length > 40 ? "lines" : "lines+markers", line, marker, told };
    const wide = points.flatMap(([mean, deviation], k) => (mean === null || deviation === null ? [] : [[x[k], mean - deviation, mean + deviation]]));
    if (!wide.length) return [course];
    const back = [...wide].reverse();
    const band = { x: [...wide, ...back].map((p) => p[0]), y: [...wide.map((p) => p[2]), ...back.map((p) => p[1])], fill: "toself", fillcolor: color, opacity: 0.16 };
    return [{ ...band, type: "scatter", mode: "lines", line: { width: 0 } }, course];
  });
  const bands = given.seeds > 1 ? "bands are one standard deviation over the seeds" : "one seed, so there are no bands";
  const instead = group === asked || !runs.length ? "" : " Latecomers were not watched while training (--watch-unseen), so these are the members.";
  const missing = all.length - runs.length;
  const lacking = !runs.length ? " No run has scores of them on the way; of latecomers --watch-unseen makes some." : missing ? ` ${missing} of the runs ${missing === 1 ? "has" : "have"} no scores of them on the way.` : "";
  return {
    traces, layout: layout(titles[chosen.against], "mean test accuracy, %"),
    caption: `${given.groups[group]}, ${given.among[chosen.among]}; ${bands}.${instead}${lacking}`,
    summary: runs.map((run) => `${run.name} ends at ${percent(run.curves[group][chosen.among].at(-1)[0])}`).join("; "),
    columns: ["run", titles[chosen.against], "mean, %", "standard deviation"],
    rows: () => runs.flatMap((run) => run.curves[group][chosen.among].map(([mean, deviation], k) => [run.name, amount(run[chosen.against][k]), mean ?? "–", deviation ?? "–"])),
  };
}

function spread(given, all, chosen) {
  const runs = all.filter((run) => run.quantiles[chosen.group]?.[chosen.among]?.length);
  const shares = Array.from({ length: 101 }, (_, k) => k);
  const reached = (run) => run.quantiles[chosen.group][chosen.among];
  const traces = runs.map((run) => {
    const told = reached(run).map((value, k) => `${run.name}\n${k ? `${k} % of the clients have at most` : "the worst client has"} ${percent(value)}`);
    return { x: reached(run), y: shares, type: "scatter", mode: "lines", line: { ...style(run.place).line, shape: "hv" }, told };
  });
  const line = { type: "line", xref: "paper", x0: 0, x1: 1, y0: 10, y1: 10, line: { color: "rgba(128,128,128,.8)", width: 1, dash: "dot" } };
  const some = [0, 10, 25, 50, 75, 90, 100];
  return {
    traces, layout: layout("test accuracy, %", "clients with at most this, %", { shapes: [line] }),
    caption: `${whose(given, chosen)}: further right is better; the dotted line is the worst tenth of the clients.`,
    summary: runs.map((run) => `half of ${run.name}'s reach ${percent(reached(run)[50])}, nine of ten ${percent(reached(run)[10])}`).join("; "),
    columns: ["run", "worst", "10 %", "25 %", "half", "75 %", "90 %", "best"],
    rows: () => runs.map((run) => [run.name, ...some.map((k) => percent(reached(run)[k]))]),
  };
}

function costs(given, all, chosen, unit, title) {
  const runs = all.filter((run) => (run.ends[chosen.group]?.[chosen.among]?.[0] ?? null) !== null);
  const end = (run) => run.ends[chosen.group][chosen.among];
  const name = unit === "megabytes" ? "MB" : "seconds";
  const told = runs.map((run) => `${run.name}\n${percent(end(run)[0])}${around(end(run)[1])} for ${amount(run.cost[unit])} ${name}`);
  const traces = runs.map((run, k) => {
    const { color, marker } = style(run.place);
    const bars = { type: "data", array: [end(run)[1] ?? 0], visible: end(run)[1] !== null, color };
    return { x: [run.cost[unit]], y: [end(run)[0]], error_y: bars, type: "scatter", mode: "markers", cliponaxis: false, marker: { ...marker, size: 12 }, told: [told[k]] };
  });
  const drawn = layout(title, "mean test accuracy, %");
  const most = Math.max(...runs.map((run) => run.cost[unit])) || 1;
  drawn.xaxis.range = [-0.04 * most, 1.06 * most]; // a run that sends nothing stands beside the axis, not on its numbers
  const bars = given.seeds > 1 ? "; bars are one standard deviation over the seeds" : "";
  return {
    traces, layout: drawn, summary: told.join("; ").replace(/\n/g, " "),
    caption: `${whose(given, chosen)}, in the selected round${bars}. Up and to the left is better.`,
    columns: ["run", name, "mean, %", "standard deviation"],
    rows: () => runs.map((run) => [run.name, amount(run.cost[unit]), end(run)[0], end(run)[1] ?? "–"]),
  };
}

function clients(given, chosen) {
  const { name } = given.runs[chosen.run];
  const shown = given.map?.places.find((place) => place.place === Number(chosen.run));
  if (!shown) {
    const none = `There is no map of ${name}.`;
    return { traces: [], layout: layout("", ""), caption: none, summary: none, columns: ["client"], rows: () => [] };
  }
  const [mark, { names }] = [shown.judged ?? given.map.marks, given.map];
  const scores = shown.scores[chosen.among];
  const own = (k) => (shown.own ? `\n${shown.own[k]}` : "");
  const describe = (k) => `${given.map.clients[k].replace("\n", `\n${names[mark[k]]}\n`)}${own(k)}\nscore ${percent(scores[k])}`;
  const type = shown.x.length > many && webgl() ? "scattergl" : "scatter";
  const worst = scores.reduce((least, score) => (score === null ? least : Math.min(least, score)), 90);
  const lowest = 10 * Math.floor(worst / 10); // colours from here on: from 0 on, most runs would be of one colour
  const crowding = shown.x.length > many ? 4 : shown.x.length > 500 ? 2 : 0;
  const groups = names.map((called, k) => ({ called, k, at: mark.flatMap((one, client) => (one === k ? [client] : [])) })).filter(({ at }) => at.length);
  const traces = groups.map(({ called, k, at }, first) => {
    const pick = (values) => at.map((client) => values[client]);
    const size = (k ? 10 : 7.5) - crowding;
    const bar = { title: { text: "score, %", font: { size: 12.5 } }, thickness: 12, len: 1, outlinewidth: 0 };
    const marker = { symbol: marks[k], size, opacity: k ? 0.95 : 0.7, color: pick(scores), cmin: lowest, cmax: 100, colorscale: "Viridis", showscale: first === 0, colorbar: bar };
    return { x: pick(shown.x), y: pick(shown.y), type, mode: "markers", name: called, marker: { ...marker, line: { width: 1, color: dark() ? "rgb(175,175,175)" : "rgb(115,115,115)" } }, told: at.map(describe) };
  });
  const counts = groups.map(({ called, at }) => `${at.length.toLocaleString("en")} × ${called}`).join("; ");
  const drawn = layout("first component", "second component", { showlegend: true, legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, itemsizing: "constant" } });
  return {
    traces, layout: drawn, summary: `${name}. ${counts}`,
    caption: `${name}, seed ${given.map.seed}: ${shown.source}, on two principal components with ${shown.explained} % of the variance; colour is the score ${given.among[chosen.among]}. ${counts}. ${shown.judged ? given.map.gate : given.map.covered}.`,
    columns: ["client", "what it is", "score"],
    rows: () => mark.map((one, k) => [given.map.clients[k].split("\n")[0], [names[one], ...given.map.clients[k].split("\n").slice(1)].join(", ") + own(k).replace(/\n/g, ", "), percent(scores[k])]),
  };
}
