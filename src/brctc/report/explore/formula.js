// Formulas of a log-risk: read into a tree, and computed. Nothing of them is ever run as code.
//
// A tree is {kind: "number", value}, {kind: "name", name} or {kind: "call", name, parts}, operators being
// calls too. Precedence is Python's, "^" its "**": -x^2 is -(x^2).

const NAMES = new Map([
  ["frame", "where the token ends or starts, from 1"],
  ["T", "frames of the utterance"],
  ["token", "which token, from 1"],
  ["U", "tokens of the utterance"],
  ["peak", "the frame of the token's largest group"],
  ["factor", "the factor above"],
]);

const LONGEST_FORMULA = 500; // characters: what is nested deeper than a stack is longer

// as C's pow and torch's: JavaScript has NaN for 1 ^ inf
const power = (base, exponent) =>
  base === 1 || (base === -1 && Math.abs(exponent) === Infinity) ? 1 : base ** exponent;

const OPERATORS = new Map([
  ["+", (a, b) => a + b],
  ["-", (a, b) => a - b],
  ["*", (a, b) => a * b],
  ["/", (a, b) => a / b],
  ["^", power],
  ["negative", (a) => -a],
  ["<", (a, b) => Number(a < b)],
  ["<=", (a, b) => Number(a <= b)],
  [">", (a, b) => Number(a > b)],
  [">=", (a, b) => Number(a >= b)],
  ["==", (a, b) => Number(a === b)],
  ["!=", (a, b) => Number(a !== b)],
]);
const COMPARISONS = ["<", "<=", ">", ">=", "==", "!="];

const FUNCTIONS = new Map([
  ["min", { compute: Math.min, least: 2, most: Infinity, example: "min(a, b)" }],
  ["max", { compute: Math.max, least: 2, most: Infinity, example: "max(a, b)" }],
  ["abs", { compute: Math.abs, least: 1, most: 1, example: "abs(a)" }],
  ["exp", { compute: Math.exp, least: 1, most: 1, example: "exp(a)" }],
  ["log", { compute: Math.log, least: 1, most: 1, example: "log(a)" }],
  ["sqrt", { compute: Math.sqrt, least: 1, most: 1, example: "sqrt(a)" }],
  [
    "clamp",
    {
      compute: (a, low, high) => Math.min(Math.max(a, low), high),
      least: 3,
      most: 3,
      example: "clamp(a, lowest, highest)",
    },
  ],
]);

/** What is wrong with a formula, or with what it says of a group: a sentence to show. */
class FormulaError extends Error {}

/** The words of a formula: {kind: "number" | "name" | "sign" | "end", text, at}, `at` counted from 1. */
function wordsOf(text) {
  const number = /((?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)/.source;
  const name = /([A-Za-z_]\w*)/.source;
  const sign = /(\*\*|[<>=!]=|[-+*/^<>(),])/.source;
  const pattern = new RegExp(`\\s*(?:${number}|${name}|${sign})`, "y");
  const words = [];
  let at = 0;
  while (text.slice(at).trim() !== "") {
    pattern.lastIndex = at;
    const found = pattern.exec(text);
    if (!found) {
      const start = at + text.slice(at).search(/\S/);
      const [character] = text.slice(start);
      const hint = character === "=" ? ': to compare, write "=="' : "";
      throw new FormulaError(`"${character}" at position ${start + 1} is not part of a formula${hint}.`);
    }
    const word = found[1] ?? found[2] ?? found[3];
    const kind = found[1] !== undefined ? "number" : found[2] !== undefined ? "name" : "sign";
    const start = pattern.lastIndex - word.length + 1;
    words.push({ kind, text: word === "**" ? "^" : word, at: start });
    at = pattern.lastIndex;
  }
  words.push({ kind: "end", text: "", at: text.length + 1 });
  return words;
}

/** The tree of a formula; a FormulaError says what cannot be read. */
function parseFormula(text) {
  if (text.length > LONGEST_FORMULA) {
    throw new FormulaError(`The formula has ${text.length} characters, at most ${LONGEST_FORMULA} are read.`);
  }
  const reader = new Reader(wordsOf(text));
  if (reader.word.kind === "end") throw new FormulaError("Type a formula, such as -factor * frame / T.");
  const tree = reader.comparison();
  reader.expectEnd();
  return tree;
}

/** Recursive descent; each method reads what binds at least as strongly as its name says. */
class Reader {
  constructor(words) {
    this.words = words;
    this.place = 0;
  }

  get word() {
    return this.words[this.place];
  }

  take(...signs) {
    if (this.word.kind !== "sign" || !signs.includes(this.word.text)) return null;
    return this.words[this.place++].text;
  }

  comparison() {
    const left = this.sum();
    const sign = this.take(...COMPARISONS);
    if (sign === null) return left;
    const tree = call(sign, left, this.sum());
    if (this.word.kind === "sign" && COMPARISONS.includes(this.word.text)) {
      throw new FormulaError("Comparisons do not chain: write (a < b) * (b < c) for a < b < c.");
    }
    return tree;
  }

  sum() {
    return this.chain(["+", "-"], () => this.product());
  }

  product() {
    return this.chain(["*", "/"], () => this.signed());
  }

  chain(signs, next) {
    let tree = next();
    for (let sign = this.take(...signs); sign !== null; sign = this.take(...signs)) {
      tree = call(sign, tree, next());
    }
    return tree;
  }

  signed() {
    if (this.take("-")) return call("negative", this.signed());
    if (this.take("+")) return this.signed();
    const base = this.atom();
    return this.take("^") ? call("^", base, this.signed()) : base;
  }

  atom() {
    const word = this.word;
    if (word.kind === "number") {
      this.place++;
      return { kind: "number", value: Number(word.text) };
    }
    if (word.kind === "name") {
      this.place++;
      return this.named(word);
    }
    if (this.take("(")) {
      const tree = this.comparison();
      this.close();
      return tree;
    }
    throw new FormulaError(this.missing());
  }

  named(word) {
    if (FUNCTIONS.has(word.text)) return this.applied(word.text);
    if (!NAMES.has(word.text)) throw new FormulaError(unknown(word.text));
    if (this.word.text === "(") {
      throw new FormulaError(`"${word.text}" is not a function: to multiply, write ${word.text} * (...).`);
    }
    return { kind: "name", name: word.text };
  }

  applied(name) {
    const { least, most, example } = FUNCTIONS.get(name);
    if (!this.take("(")) throw new FormulaError(`"${name}" is a function: write ${example}.`);
    const parts = [];
    if (!this.take(")")) {
      do parts.push(this.comparison());
      while (this.take(","));
      this.close();
    }
    if (parts.length < least || parts.length > most) {
      throw new FormulaError(`"${name}" has ${parts.length} values in it: write ${example}.`);
    }
    return call(name, ...parts);
  }

  close() {
    if (this.take(")")) return;
    if (this.word.kind === "end") throw new FormulaError('A ")" is missing at the end.');
    throw new FormulaError(this.surplus());
  }

  expectEnd() {
    if (this.word.kind === "end") return;
    if (this.word.text === ")") {
      throw new FormulaError(`The ")" at position ${this.word.at} has no "(" in front of it.`);
    }
    throw new FormulaError(this.surplus());
  }

  missing() {
    const before = this.words[this.place - 1];
    const found = this.word.kind === "end" ? "the end" : `"${this.word.text}" at position ${this.word.at}`;
    return before
      ? `A number or a name is missing between "${before.text}" and ${found}.`
      : `A formula cannot begin with "${this.word.text}".`;
  }

  surplus() {
    const { text, at } = this.word;
    return `"${text}" at position ${at} was not expected: is there an operator missing in front of it?`;
  }
}

function call(name, ...parts) {
  return { kind: "call", name, parts };
}

/** Every name of a tree, and none twice. */
function namesIn(tree, found = new Set()) {
  if (tree.kind === "name") found.add(tree.name);
  if (tree.kind === "call") tree.parts.forEach((part) => namesIn(part, found));
  return found;
}

/** The value of a tree where names have these values. */
function compute(tree, values) {
  if (tree.kind === "number") return tree.value;
  if (tree.kind === "name") return values[tree.name];
  const parts = tree.parts.map((part) => compute(part, values));
  return (OPERATORS.get(tree.name) ?? FUNCTIONS.get(tree.name).compute)(...parts);
}

function unknown(word) {
  const all = [...NAMES.keys(), ...FUNCTIONS.keys()];
  const near = all.find((name) => name.toLowerCase() === word.toLowerCase()) ?? all.find((name) => similar(name, word));
  const hint = near ? `did you mean "${near}"?` : `there are ${[...NAMES.keys()].join(", ")}.`;
  return `There is no "${word}": ${hint}`;
}

/** Whether one letter more, less or other makes one word of the other. */
function similar(a, b) {
  if (Math.min(a.length, b.length) < 3 || Math.abs(a.length - b.length) > 1) return false;
  let start = 0;
  while (start < a.length && a[start] === b[start]) start++;
  const rests = [a.slice(start), b.slice(start)];
  const [longer, shorter] = rests.sort((x, y) => y.length - x.length);
  return longer.slice(1) === (longer.length > shorter.length ? shorter : shorter.slice(1));
}
