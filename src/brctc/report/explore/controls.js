// The page: what is set, and what follows from it.

const at = (id) => document.getElementById(id);
const data = JSON.parse(at("data").textContent);
const GREY = "#8c919b";
const HEIGHTS = { "posterior-chart": 90, "groups-chart": 132, "risk-chart": 94, "gradient-chart": 132 };
const PLAIN = parseFormula("0");

const posteriors = data.posteriors.map((posterior) => ({
  ...posterior,
  scores: posterior.scores.map((row) => row.map((value) => value ?? -Infinity)),
  T: posterior.scores.length,
  U: posterior.targets.length,
  plain: {}, // plain CTC, by the event of its groups
}));
const state = {
  posterior: posteriors[data.first],
  ...RISKS.find(({ key }) => key === "finish"),
  gradient: "logits",
  chosen: null, // the token that is shown alone
  frame: 1,
  cursors: {}, // of each chart: marks a frame
  shown: null, // the last setting that could be computed, and what was found
};

function start() {
  fill(at("posterior"), ...posteriors.map(({ key, title }) => make("option", title, { value: key })));
  const own = make("option", "a formula of your own", { value: "own" });
  fill(at("risk"), ...RISKS.map(({ key, title }) => make("option", title, { value: key })), own);
  fill(at("names"), ...[...NAMES].flatMap(([name, what]) => [make("dt", name), make("dd", what)]));
  choosePosterior(state.posterior.key);
  listen();
  openAddress();
}

function openAddress() {
  readAddress();
  choosePosterior(state.posterior.key);
  showControls();
  update();
}

function listen() {
  at("controls").addEventListener("submit", (event) => event.preventDefault());
  at("posterior").addEventListener("change", (event) => {
    choosePosterior(event.target.value);
    update();
  });
  at("risk").addEventListener("change", (event) => {
    const risk = RISKS.find(({ key }) => key === event.target.value);
    if (risk) Object.assign(state, { ...risk, factor: state.factor });
    showControls();
    if (!risk) at("formula").focus();
    update();
  });
  at("factor-range").addEventListener("input", (event) => {
    at("factor").value = event.target.value;
    readFactor();
  });
  at("factor").addEventListener("input", readFactor);
  for (const name of ["tokens", "event"]) {
    for (const radio of document.getElementsByName(name)) {
      radio.addEventListener("change", () => {
        state[name] = radio.value;
        update();
      });
    }
  }
  at("formula").addEventListener("input", (event) => {
    state.formula = event.target.value;
    update();
  });
  at("gradient").addEventListener("change", (event) => {
    state.gradient = event.target.value;
    showCharts();
  });
  at("frame").addEventListener("input", (event) => chooseFrame(Number(event.target.value)));
  window.addEventListener("resize", showCharts);
  window.addEventListener("hashchange", openAddress);
}

/** What cannot be read is said below its field, and the last picture stays, faded. */
function say(field, message) {
  at(`${field}-message`).textContent = message;
  at(field).setAttribute("aria-invalid", String(message !== ""));
  const isStale = state.shown.formula !== state.formula || at("factor").getAttribute("aria-invalid") === "true";
  at("results").classList.toggle("stale", isStale);
}

function readFactor() {
  const text = at("factor").value.trim();
  const isNumber = text !== "" && Number.isFinite(Number(text));
  say("factor", isNumber ? "" : "The factor must be a number.");
  if (!isNumber) return;
  state.factor = Number(text);
  at("factor-range").value = text;
  update();
}

function choosePosterior(key) {
  const found = posteriors.find((posterior) => posterior.key === key) ?? posteriors[0];
  state.posterior = found.lattice ? found : Object.assign(found, readPosterior(found));
  state.chosen = null;
  state.frame = Math.ceil(found.T / 2);
  at("frame").max = found.T;
}

function showControls() {
  at("formula").value = state.formula;
  at("factor").value = state.factor;
  at("factor-range").value = state.factor;
  for (const name of ["tokens", "event"]) {
    for (const radio of document.getElementsByName(name)) radio.checked = radio.value === state[name];
  }
}

/** Computes and shows everything; if the formula says nothing, the last one that did, or plain CTC. */
function update() {
  let message = "";
  for (const formula of [state.formula, state.shown?.formula, "0"]) {
    try {
      state.shown = explore(formula);
      break;
    } catch (error) {
      if (!(error instanceof FormulaError)) throw error;
      message ||= error.message;
    }
  }
  showAll();
  if (!message && state.shown.found.loss === Infinity) {
    message = "The risk forbids every path of a token: the loss is infinite, and there is no gradient.";
  }
  say("formula", message);
  writeAddress();
}

function explore(formula) {
  const { posterior, tokens, event, factor } = state;
  const tree = parseFormula(formula ?? "");
  const found = criterion(posterior, { tree, tokens, event, factor });
  const plain = (posterior.plain[event] ??= criterion(posterior, { tree: PLAIN, tokens, event, factor }));
  return { posterior, formula, tree, tokens, event, factor, found, plain };
}

function showAll() {
  const { posterior, found, plain, event } = state.shown;
  const risk = findRisk(state.shown);
  at("posterior").value = posterior.key;
  at("posterior-note").textContent = posterior.note;
  at("risk").value = risk && state.shown.formula === state.formula ? risk.key : "own";
  at("gradient").disabled = !posterior.fromLogits;
  fillNumbers(at("numbers"), summary(found, plain, state.shown));
  showTokens();
  showCharts();
  const paths = allPaths(posterior);
  at("paths").hidden = paths === null;
  if (paths) fillTable(at("path-table"), pathHeadings(posterior, event), pathRows(posterior, found, event));
  at("python").textContent = pythonOfLoss(posterior, state.shown, risk ? risk.library : null);
  at("python-posterior").value = pythonOfPosterior(posterior);
}

/** A class has one colour, in all pictures. */
function colourOf(label) {
  const first = [...new Set(state.posterior.targets)].indexOf(label);
  return first < 0 ? GREY : data.colours[first % data.colours.length];
}

function showTokens() {
  const { chosen, posterior } = state;
  const buttons = posterior.targets.map((label, u) => {
    const button = make("button", posterior.classes[label], { type: "button", "aria-pressed": String(u === chosen) });
    button.style.setProperty("--colour", colourOf(label));
    button.addEventListener("click", () => {
      state.chosen = state.chosen === u ? null : u;
      showTokens();
      showCharts();
      at("tokens").children[u].focus();
    });
    return button;
  });
  fill(at("tokens"), ...buttons);
}

function title(id, text, detail) {
  fill(at(id), make("b", text), make("span", ` ${detail}`, { class: "soft" }));
}

function showCharts() {
  const { posterior, found, plain, event } = state.shown;
  const { chosen } = state;
  const kind = posterior.fromLogits ? state.gradient : "logProbs";
  at("gradient").value = kind;
  const isOther = (u) => chosen !== null && u !== chosen;
  const weighed = posterior.targets.flatMap((_, u) => (found.weights[u] ? [u] : []));
  const tokenLine = (values, u, more) => {
    return { values, colour: colourOf(posterior.targets[u]), faded: isOther(u), ...more };
  };

  const probabilities = posterior.logProbs.map((row) => Array.from(row, Math.exp));
  const others = posterior.classes.length > 1 + new Set(posterior.targets).size ? "; dotted: all other classes" : "";
  title("posterior-title", "Posterior", `of each class; dashed: the blank${others}`);
  show("posterior-chart", classLines((c) => probabilities.map((row) => row[c]), false), { hideSmall: true, top: 1 });

  const shares = plain.shares.map((row, u) => tokenLine(row, u, { kind: "plain" }));
  const after = weighed.map((u) => tokenLine(found.shares[u], u, { area: true }));
  title(
    "groups-title",
    "Path groups",
    `share of the paths on which a token ${event}s at a frame; thin: P_u(τ), thick: with the risk, r_u P_u(τ)`,
  );
  show("groups-chart", [...shares, ...after], { hideSmall: true });

  const risks = weighed.map((u) =>
    tokenLine(found.risks[u].map((value, t) => (found.logGroups[u][t] > -Infinity ? value : NaN)), u, {}),
  );
  title("risk-title", "Risk", "of the groups that have paths; left: log r_u(τ) in nats, right: r_u(τ)");
  show("risk-chart", risks, { rightTick: (value) => `×${short(Math.exp(value), 2)}` });

  const pull = (result, c) => result.gradient[kind].map((row) => -row[c]);
  const what = kind === "logits" ? "the logits" : "log_probs";
  const apart = kind === "logProbs"; // there the blank would dwarf the tokens
  const blank = `dashed: the blank${apart ? ", scale at the right" : ""}${others}; thin: plain CTC`;
  title("gradient-title", "Pull of the loss", `minus its gradient with respect to ${what}; ${blank}`);
  const thin = classLines((c) => pull(plain, c), apart).filter(({ kind }) => kind === "");
  const both = [...thin.map((line) => ({ ...line, kind: "plain" })), ...classLines((c) => pull(found, c), apart)];
  show("gradient-chart", both, {});
  showFrame();
}

/** A line for every class; that of the blank has a scale of its own if `apart`. */
function classLines(valuesOf, apart) {
  const { posterior, chosen } = state;
  return posterior.classes.map((_, c) => ({
    values: valuesOf(c),
    colour: colourOf(c),
    kind: c === 0 ? "blank" : posterior.targets.includes(c) ? "" : "others",
    right: apart && c === 0,
    faded: chosen !== null && c !== posterior.targets[chosen],
  }));
}

function show(id, lines, options) {
  const label = at(id.replace("chart", "title")).textContent;
  const { T } = state.shown.posterior;
  state.cursors[id] = chart(at(id), lines, { T, height: HEIGHTS[id], label, onFrame: chooseFrame, ...options });
}

function chooseFrame(frame) {
  if (frame === state.frame) return;
  state.frame = frame;
  showFrame();
}

function showFrame() {
  const { posterior, found, event } = state.shown;
  const { frame } = state;
  Object.values(state.cursors).forEach((mark) => mark(frame));
  at("frame").value = frame;
  at("frame-number").textContent = `${frame} of ${posterior.T}`;
  at("frame-heading").textContent = `Tokens that ${event} at frame ${frame}`;
  fillTable(at("frame-table"), FRAME_HEADINGS, frameRows(posterior, found, frame - 1));
}

const IN_ADDRESS = ["formula", "tokens", "event", "factor"];
let writing = 0;

/** The setting goes into the address, so that it can be sent to others; not at every move of a slider. */
function writeAddress() {
  clearTimeout(writing);
  writing = setTimeout(() => {
    const parts = { posterior: state.posterior.key };
    for (const name of IN_ADDRESS) parts[name] = state[name];
    history.replaceState(null, "", `#${new URLSearchParams(parts)}`);
  }, 300);
}

/** What an address does not say, or says wrongly, stays as it is. */
function readAddress() {
  const said = new URLSearchParams(location.hash.slice(1));
  const known = { tokens: ["last", "each"], event: ["start", "end"] };
  for (const name of ["tokens", "event"]) {
    if (known[name].includes(said.get(name))) state[name] = said.get(name);
  }
  if (said.has("formula")) state.formula = said.get("formula");
  const factor = Number(said.get("factor") ?? NaN);
  if (Number.isFinite(factor)) state.factor = factor;
  state.posterior = posteriors.find(({ key }) => key === said.get("posterior")) ?? state.posterior;
}

start();
