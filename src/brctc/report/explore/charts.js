// Lines over frames, as SVG. Texts go in as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";
const MARGIN = { left: 52, right: 58, top: 8, bottom: 18 };
const SEEN = 1e-3; // a share below this lies on the axis

function draw(name, attributes, text) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

/** Some round numbers between two, about `count` of them. */
function ticks(low, high, count) {
  if (!(high > low)) return [low];
  const rough = (high - low) / count;
  const ten = 10 ** Math.floor(Math.log10(rough));
  const step = ten * [1, 2, 2.5, 5, 10].find((round) => round * ten >= rough);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; i++) found.push(i * step);
  return found;
}

function short(value, digits = 3) {
  if (!Number.isFinite(value)) return Number.isNaN(value) ? "NaN" : value > 0 ? "∞" : "−∞";
  const size = Math.abs(value);
  const isLong = size !== 0 && (size < 1e-3 || size >= 1e5);
  const text = isLong ? value.toExponential(1) : Number(value.toPrecision(digits)).toString();
  return text.replace("-", "−").replace("e−", "e-");
}

/** The lowest and highest of all values that are numbers, 0 among them; never the same. */
function range(rows) {
  const all = rows.flatMap((row) => Array.from(row)).filter(Number.isFinite);
  const low = all.reduce((a, b) => Math.min(a, b), 0);
  const high = all.reduce((a, b) => Math.max(a, b), 0);
  return low === high ? [low, low + 1] : [low, high];
}

/** A path of steps, a frame wide each; interrupted where there is no number. */
function steps(values, x, y, isSeen) {
  let text = "";
  let drawing = false;
  values.forEach((value, t) => {
    if (!Number.isFinite(value) || !isSeen(values, t)) {
      drawing = false;
      return;
    }
    text += `${drawing ? "L" : "M"}${x(t + 0.5).toFixed(1)} ${y(value).toFixed(1)}H${x(t + 1.5).toFixed(1)}`;
    drawing = true;
  });
  return text;
}

/** Whether a frame or one beside it has something to see. */
const isAbove = (least) => (values, t) =>
  [t - 1, t, t + 1].some((near) => Math.abs(values[near] ?? 0) > least);

/** Draws lines into a place, in front of a grid, and calls `onFrame` with the frame that is pointed at; returns
 * a function that marks a frame.
 *
 * A line: {values (T), colour, area, kind: "" | "plain" | "blank" | "others", faded, right}; `right` has the
 * scale at the right. A scale ends at `top` at least, and a little above what it shows. */
function chart(place, lines, { T, height, label, top, rightTick, hideSmall, onFrame }) {
  const width = Math.max(320, place.clientWidth);
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  const [left, bottom] = [MARGIN.left, height - MARGIN.bottom];
  const x = (at) => left + ((at - 0.5) / T) * (width - left - MARGIN.right);
  const scale = (which) => {
    let [low, high] = range([[top ?? 0], ...lines.filter(which).map((line) => line.values)]);
    const room = 0.05 * (high - low);
    [low, high] = [low < 0 ? low - room : low, high > 0 ? high + room : high];
    return { low, high, y: (value) => bottom - ((value - low) / (high - low)) * (bottom - MARGIN.top) };
  };
  const main = scale((line) => !line.right);
  for (const value of ticks(main.low, main.high, 4)) {
    const at = main.y(value);
    svg.append(draw("line", { class: "grid", x1: left, x2: width - MARGIN.right, y1: at, y2: at }));
    svg.append(draw("text", { x: left - 6, y: at + 4, "text-anchor": "end" }, short(value)));
    if (rightTick) svg.append(draw("text", { x: width - MARGIN.right + 6, y: at + 4 }, rightTick(value)));
  }
  for (const value of ticks(1, T, Math.min(12, T)).filter((tick) => Number.isInteger(tick) && tick >= 1)) {
    svg.append(draw("text", { x: x(value), y: height - 4, "text-anchor": "middle" }, String(value)));
  }
  const other = lines.some((line) => line.right) ? scale((line) => line.right) : null;
  if (other) {
    for (const value of ticks(other.low, other.high, 3)) {
      svg.append(draw("text", { x: width - MARGIN.right + 6, y: other.y(value) + 4 }, short(value)));
    }
  }
  for (const line of lines) drawLine(svg, line, x, line.right ? other.y : main.y, hideSmall);
  const cursor = draw("line", { class: "cursor", y1: MARGIN.top, y2: bottom });
  svg.append(cursor);
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const at = ((event.clientX - box.left) * width) / box.width;
    onFrame(Math.min(T, Math.max(1, Math.round(((at - left) / (width - left - MARGIN.right)) * T + 0.5))));
  });
  place.replaceChildren(svg);
  return (frame) => {
    cursor.setAttribute("x1", x(frame));
    cursor.setAttribute("x2", x(frame));
  };
}

function drawLine(svg, { values, colour, area, kind, faded }, x, y, hideSmall) {
  const isSeen = hideSmall ? isAbove(SEEN * range([values])[1]) : () => true;
  const classes = [kind ?? "", faded ? "faded" : ""].join(" ");
  const text = steps(values, x, y, isSeen);
  const add = (d, names) => {
    const path = draw("path", { d, class: names });
    path.style.setProperty("--colour", colour);
    svg.append(path);
  };
  if (area) {
    const closed = text.replace(/M([\d.]+) ([\d.]+)/g, (_, at, high) => `V${y(0).toFixed(1)}H${at}V${high}`);
    if (closed) add(`M${x(0.5)} ${y(0).toFixed(1)}${closed}V${y(0).toFixed(1)}Z`, `area ${classes}`);
  }
  add(text, classes);
}
