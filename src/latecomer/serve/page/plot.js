// Drawings: a client among the members, and an estimate with its interval.

function shape(tag, attributes, ...inside) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...inside);
  return element;
}

/** Members as dots, those nearest to this client coloured, the client as a diamond; all places are pairs of numbers. */
export function plot(members, nearest, place) {
  const [width, height, edge] = [320, 240, 18];
  const all = [...members, place];
  const scale = (axis, size) => {
    const values = all.map((one) => one[axis]), low = Math.min(...values), high = Math.max(...values);
    return (one) => edge + ((one[axis] - low) / (high - low || 1)) * (size - 2 * edge);
  };
  const [right, up] = [scale(0, width), scale(1, height)];
  const near = new Set(nearest);
  const dots = members.map((one, id) => {
    const spot = { cx: right(one), cy: height - up(one), r: 5, class: near.has(id) ? "member near" : "member" };
    return shape("circle", spot, shape("title", {}, `member ${id}`));
  });
  const [x, y] = [right(place), height - up(place)];
  const diamond = `M${x} ${y - 11}L${x + 9} ${y}L${x} ${y + 11}L${x - 9} ${y}Z`;
  const you = shape("path", { d: diamond, class: "you" }, shape("title", {}, "you"));
  const label = `${members.length} members as dots, you as a diamond; ${near.size} members nearest to you are coloured`;
  return shape("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label }, ...dots, you);
}

/** Percent with their interval, as a bar. */
export function range(percent, low, high) {
  const bar = (from, to, kind) => shape("rect", { x: 3 * from, width: 3 * (to - from), height: 12, class: kind });
  const bars = [bar(0, 100, "range"), bar(low, high, "reach"), bar(percent - 0.6, percent + 0.6, "guess")];
  const label = "the estimate and its interval, between 0 and 100 %";
  return shape("svg", { viewBox: "0 0 300 12", role: "img", "aria-label": label }, ...bars);
}
