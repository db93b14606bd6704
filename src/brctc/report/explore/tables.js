// Numbers as tables and as a row of large ones.

function fill(element, ...children) {
  element.replaceChildren(...children);
  return element;
}

function make(name, text, attributes = {}) {
  const element = document.createElement(name);
  if (text !== undefined) element.textContent = text;
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}

/** Headings, then rows of cells; the first of each row is its heading. */
function fillTable(element, headings, rows) {
  const head = make("thead");
  head.append(fill(make("tr"), ...headings.map((text) => make("th", text, { scope: "col" }))));
  const body = make("tbody");
  for (const [first, ...cells] of rows) {
    body.append(fill(make("tr"), make("th", first, { scope: "row" }), ...cells.map((text) => make("td", text))));
  }
  fill(element, head, body);
}

/** Each number below what it is. */
function fillNumbers(element, numbers) {
  const parts = numbers.map(([title, value]) =>
    fill(make("div"), make("b", value), make("span", title, { class: "soft" })),
  );
  fill(element, ...parts);
}

/** The mean frame of shares (T) that sum to one, from 1. */
function meanFrame(shares) {
  return shares.reduce((sum, share, t) => sum + share * (t + 1), 0);
}

function mean(values) {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}

/** [title, value] of the loss and of where it puts the tokens, beside plain CTC. */
function summary(found, plain, { tokens, event }) {
  const chosen = found.weights.flatMap((weight, u) => (weight ? [u] : []));
  const frameOf = (result) => mean(chosen.map((u) => meanFrame(result.shares[u]))).toFixed(1);
  const whose = tokens === "last" ? "the last token's" : "the tokens'";
  return [
    ["loss", decimals(found.loss)],
    ["loss of plain CTC", decimals(plain.loss)],
    [
      `mean frame of ${whose} ${event}: by P_u(τ) → by r_u P_u(τ)`,
      `${frameOf(plain)} → ${Number.isFinite(found.loss) ? frameOf(found) : "none"}`,
    ],
  ];
}

function decimals(value) {
  return Number.isFinite(value) ? value.toFixed(4).replace("-", "−") : short(value);
}

/** What is known of each token at a frame. */
function frameRows(posterior, found, t) {
  return posterior.targets.map((label, u) => {
    const [group, risk] = [found.logGroups[u][t], found.risks[u][t]];
    const exists = group > -Infinity;
    const weighed = exists && found.weights[u] > 0;
    return [
      `${u + 1}  ${posterior.classes[label]}`,
      short(found.peaks[u]),
      exists ? short(Math.exp(group), 4) : "0",
      exists ? decimals(group) : "no path",
      weighed ? decimals(risk) : "",
      weighed ? short(Math.exp(risk), 4) : "",
      weighed ? short(Math.exp(group + risk), 4) : "",
      weighed ? short(found.shares[u][t], 4) : "",
    ];
  });
}

const FRAME_HEADINGS = [
  "token", "peak", "P_u(τ)", "log P_u(τ)", "log r_u(τ)", "r_u(τ)", "r_u P_u(τ)", "share of its sum",
];

/** Every path of a small lattice with its part of the objective, without and with the risk. */
function pathRows(posterior, found, event) {
  const U = posterior.targets.length;
  const total = posterior.lattice.logLikelihood;
  return allPaths(posterior).map((path) => {
    const logP = path.reduce((sum, label, t) => sum + posterior.logProbs[t][label], 0);
    const at = eventsOf(path, event);
    const share = found.weights.reduce((sum, weight, u) => {
      const inside = Math.exp(logP + found.risks[u][at[u] - 1] - found.logObjectives[u]);
      return weight && logP > -Infinity ? sum + weight * inside : sum;
    }, 0);
    const letters = path.map((label) => (label ? posterior.classes[label] : "–")).join(" ");
    const events = Array.from({ length: U }, (_, u) => String(at[u]));
    return [letters, ...events, short(Math.exp(logP), 4), short(Math.exp(logP - total), 4), short(share, 4)];
  });
}

function pathHeadings(posterior, event) {
  const events = posterior.targets.map((label) => `${posterior.classes[label]} ${event}s at`);
  return ["path", ...events, "probability", "share, plain CTC", "share, weighed"];
}

/** The frame, from 1, where each token of a path starts or ends. */
function eventsOf(path, event) {
  const isAt = event === "start" ? (t) => path[t] !== path[t - 1] : (t) => path[t] !== path[t + 1];
  return path.flatMap((label, t) => (label && isAt(t) ? [t + 1] : []));
}
