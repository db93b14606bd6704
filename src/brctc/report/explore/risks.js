// Risks to begin with. Those that come with brctc have its name for them; the others are formulas.

const RISKS = [
  { key: "none", title: "plain CTC", library: "none", formula: "0", tokens: "last", event: "end", factor: 10 },
  {
    key: "finish",
    title: "EarlyFinish",
    library: "EarlyFinish",
    formula: "-factor * frame / T",
    tokens: "last",
    event: "end",
    factor: 10,
  },
  {
    key: "emission",
    title: "EarlyEmission",
    library: "EarlyEmission",
    formula: "-factor * (frame - peak) / T",
    tokens: "each",
    event: "end",
    factor: 20,
  },
  {
    key: "late",
    title: "only ends behind the peak cost",
    formula: "-factor * max(frame - peak, 0) / T",
    tokens: "each",
    event: "end",
    factor: 20,
  },
  {
    key: "even",
    title: "starts spread evenly",
    formula: "-factor * abs(frame / T - token / (U + 1))",
    tokens: "each",
    event: "start",
    factor: 20,
  },
  {
    key: "wall",
    title: "a wall at 60% of the frames",
    formula: "log(frame <= 0.6 * T)",
    tokens: "each",
    event: "end",
    factor: 10,
  },
].map((risk) => ({ library: null, ...risk, tree: parseFormula(risk.formula) }));

/** The risk above that a setting is, whatever its factor; null if it is none. */
function findRisk({ tree, tokens, event }) {
  const written = JSON.stringify(tree);
  const same = (risk) =>
    JSON.stringify(risk.tree) === written &&
    (risk.key === "none" || (risk.tokens === tokens && risk.event === event));
  return RISKS.find(same) ?? null;
}
