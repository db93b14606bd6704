// The Python that gives the loss of the page.

const BINDING = new Map([
  ["<", 1], ["<=", 1], [">", 1], [">=", 1], ["==", 1], ["!=", 1],
  ["+", 2], ["-", 2], ["*", 3], ["/", 3], ["negative", 4], ["^", 5],
]); // prettier-ignore
const ATOM = 6;
const LARGE = 1e6; // what is larger is written as a float: torch takes no long integers

// what a name is in `log_risk`, broadcastable to (N, U, T); groups.frame itself is always there
const DEFINITIONS = new Map([
  ["T", "T = groups.input_lengths[:, None, None].to(frame)"],
  ["token", "token = torch.arange(1, groups.targets.shape[1] + 1).to(frame)[:, None]"],
  ["U", "U = groups.target_lengths[:, None, None].to(frame)"],
  ["peak", "peak = groups.peak_frame[:, :, None].to(frame)"],
  ["factor", "factor = frame.new_tensor(self.factor)"],
]);

function pythonNumber(value) {
  if (Number.isNaN(value)) return "math.nan";
  if (Math.abs(value) === Infinity) return value > 0 ? "math.inf" : "-math.inf";
  if (Object.is(value, -0)) return "-0.0"; // Python's -0 is 0
  const text = String(value);
  return Number.isInteger(value) && Math.abs(value) >= LARGE && !text.includes("e") ? `${text}.0` : text;
}

function pythonFloat(value) {
  const text = pythonNumber(value);
  return /^-?\d+$/.test(text) ? `${text}.0` : text;
}

const isConstant = (tree) => namesIn(tree).size === 0;

/** Whether Python computes a constant as this page does: without functions, and without what it refuses. */
function isPlain(tree) {
  const value = compute(tree, {});
  if (!(Math.abs(value) < LARGE) || Object.is(value, -0)) return false;
  return tree.kind === "number" || (["+", "-", "*", "/", "negative"].includes(tree.name) && tree.parts.every(isPlain));
}

/** A tree as Python: its text, and how strongly its last operator binds. */
function pythonOf(tree) {
  if (tree.kind === "name") return { text: tree.name, binding: ATOM };
  if (tree.kind === "number" || (isConstant(tree) && !isPlain(tree))) {
    const value = compute(tree, {});
    return { text: pythonNumber(value), binding: value < 0 || Object.is(value, -0) ? BINDING.get("negative") : ATOM };
  }
  const { name, parts } = tree;
  if (!BINDING.has(name)) return { text: pythonCall(name, parts), binding: ATOM };
  const binding = BINDING.get(name);
  const within = (part, least) => {
    const { text, binding: own } = pythonOf(part);
    return own < least ? `(${text})` : text;
  };
  if (name === "negative") return { text: `-${within(parts[0], binding)}`, binding };
  if (name === "^") {
    const exponent = within(parts[1], BINDING.get("negative")); // x ** -1 and x ** y ** z need no parentheses
    return { text: `${within(parts[0], ATOM)} ** ${exponent}`, binding };
  }
  const text = `${within(parts[0], binding)} ${name} ${within(parts[1], binding + 1)}`;
  return binding === BINDING.get("<") ? { text: `(${text}).to(frame)`, binding: ATOM } : { text, binding };
}

function pythonCall(name, parts) {
  const inside = (part) => pythonOf(part).text;
  if (name === "clamp") {
    const [value, low, high] = parts;
    return isConstant(value) || !isConstant(low) || !isConstant(high)
      ? pythonCall("min", [call("max", value, low), high])
      : `torch.clamp(${parts.map(inside).join(", ")})`;
  }
  if (name !== "min" && name !== "max") return `torch.${name}(${parts.map(inside).join(", ")})`;
  if (parts.length > 2) return pythonCall(name, [call(name, ...parts.slice(0, -1)), parts[parts.length - 1]]);
  const constant = parts.findIndex(isConstant);
  if (constant < 0) return `torch.${name}imum(${parts.map(inside).join(", ")})`;
  const bound = name === "min" ? "max" : "min"; // the smaller of two is at most either
  return `torch.clamp(${inside(parts[1 - constant])}, ${bound}=${inside(parts[constant])})`;
}

/** A BayesRisk with the formula in it. */
function pythonClass({ formula, tree, tokens, event }) {
  const names = namesIn(tree);
  const definitions = [...DEFINITIONS].filter(([name]) => names.has(name)).map(([, line]) => line);
  const { text } = pythonOf(tree);
  const result = isConstant(tree) ? `frame.new_tensor(${text})` : text;
  const init = ["    def __init__(self, factor):", "        self.factor = factor", ""];
  return [
    "class Formula(brctc.BayesRisk):",
    `    """log r(u, tau) = ${formula.trim().replace(/\s+/g, " ")}"""`,
    "",
    `    tokens, event = "${tokens}", "${event}"`,
    "",
    ...(names.has("factor") ? init : []),
    "    def log_risk(self, groups):",
    "        frame = groups.frame",
    ...definitions.map((line) => `        ${line}`),
    `        return ${result}`,
    "",
    "",
  ];
}

/** The whole of it but for the posterior; `known` is a risk that comes with brctc, if it is one. */
function pythonOfLoss({ T, U, fromLogits }, setting, known) {
  const own = known === null;
  const factor = own && !namesIn(setting.tree).has("factor") ? "" : pythonFloat(setting.factor);
  const risk = own ? `Formula(${factor})` : known === "none" ? "" : `brctc.${known}(${factor})`;
  const options = [risk, 'reduction="sum"', ...(fromLogits ? ["from_logits=True"] : [])].filter(Boolean);
  const code = own ? pythonClass(setting) : [];
  const used = [...code, ""].join("\n");
  const imports = ["math", "torch"].filter((name) => used.includes(`${name}.`)).map((name) => `import ${name}`);
  const scores = fromLogits ? "logits" : "log_probs";
  return [
    ...imports,
    "import brctc",
    "",
    ...(own ? ["", ...code] : []),
    `criterion = brctc.BayesRiskCTCLoss(${options.join(", ")})`,
    `loss = criterion(${scores}, targets, input_lengths=[${T}], target_lengths=[${U}])`,
  ].join("\n");
}

/** The posterior, in double precision. */
function pythonOfPosterior({ scores, targets, fromLogits }) {
  const rows = scores.map((row) => `    [${Array.from(row, pythonNumber).join(", ")}],`);
  const isInfinite = scores.some((row) => row.some((value) => value === -Infinity));
  const name = fromLogits ? "logits" : "log_probs";
  return [
    ...(isInfinite ? ["import math"] : []),
    "import torch",
    "",
    `${name} = [`,
    ...rows,
    "]",
    `${name} = torch.tensor(${name}, dtype=torch.double)[:, None].requires_grad_()  # (T, N, C)`,
    `targets = torch.tensor([[${targets.join(", ")}]])  # (N, U)`,
  ].join("\n");
}
