// Bayes-risk CTC of one utterance, in double precision: path groups, loss and gradient.
//
// Axes: T frames, C classes, U tokens, S = 2U+1 states: even states are blanks, state 2u+1 is token u, all
// counted from 0. A table (A, B) is an array of A rows. Logarithms of what is impossible are -Infinity.

const PEAK_TOLERANCE = 1e-4; // kernels/ctc/groups.py has the same: nats below which two groups are tied

function logAdd(a, b) {
  const [high, low] = a < b ? [b, a] : [a, b];
  return low === -Infinity ? high : high + Math.log1p(Math.exp(low - high));
}

function logSum(values) {
  const high = values.reduce((a, b) => Math.max(a, b), -Infinity);
  if (high === -Infinity) return high;
  return high + Math.log(values.reduce((sum, value) => sum + Math.exp(value - high), 0));
}

function logSoftmax(row) {
  const total = logSum(row);
  return row.map((value) => value - total);
}

function table(rows, columns, fill = 0) {
  return Array.from({ length: rows }, () => new Float64Array(columns).fill(fill));
}

/** All paths of the targets, by the sums over their beginnings and endings. */
class Lattice {
  /** logProbs (T, C), targets (U) */
  constructor(logProbs, targets, blank = 0) {
    this.T = logProbs.length;
    this.U = targets.length;
    this.S = 2 * this.U + 1;
    this.classes = Array.from({ length: this.S }, (_, s) => (s % 2 ? targets[(s - 1) / 2] : blank));
    this.skips = this.classes.map((label, s) => s % 2 === 1 && s > 1 && label !== this.classes[s - 2]);
    this.emissions = logProbs.map((row) => Float64Array.from(this.classes, (label) => row[label]));
    this._forward();
    this._backward();
    this.logLikelihood = logSum(Array.from(this.alpha[this.T - 1]).slice(-2));
  }

  // alpha: beginnings that stand in s at t, with its emission. entering: those that come to s from another
  // state, without it.
  _forward() {
    const { T, S } = this;
    this.alpha = table(T, S, -Infinity);
    this.entering = table(T, S, -Infinity);
    for (let t = 0; t < T; t++) {
      for (let s = 0; s < S; s++) {
        const before = t > 0 ? this.alpha[t - 1] : null;
        if (before === null) this.entering[t][s] = s < 2 ? 0 : -Infinity;
        else if (s > 0) this.entering[t][s] = logAdd(before[s - 1], this.skips[s] ? before[s - 2] : -Infinity);
        const stays = before === null ? -Infinity : before[s];
        this.alpha[t][s] = logAdd(stays, this.entering[t][s]) + this.emissions[t][s];
      }
    }
  }

  // beta: endings from s at t, with its emission. leaving: those that go from s to another state or end,
  // without it: the paper's beta-hat without its subtraction.
  _backward() {
    const { T, S } = this;
    this.beta = table(T, S, -Infinity);
    this.leaving = table(T, S, -Infinity);
    for (let t = T - 1; t >= 0; t--) {
      for (let s = 0; s < S; s++) {
        const after = t < T - 1 ? this.beta[t + 1] : null;
        if (after === null) this.leaving[t][s] = s >= S - 2 ? 0 : -Infinity;
        else if (s < S - 1) {
          this.leaving[t][s] = logAdd(after[s + 1], this.skips[s + 2] ? after[s + 2] : -Infinity);
        }
        const stays = after === null ? -Infinity : after[s];
        this.beta[t][s] = logAdd(stays, this.leaving[t][s]) + this.emissions[t][s];
      }
    }
  }

  /** (U, T): log P_u(tau), the paths on which token u ends (or starts) at tau = t + 1. */
  groups(event) {
    const [inner, outer] = event === "end" ? [this.alpha, this.leaving] : [this.beta, this.entering];
    return Array.from({ length: this.U }, (_, u) =>
      Float64Array.from({ length: this.T }, (_, t) => inner[t][2 * u + 1] + outer[t][2 * u + 1]),
    );
  }

  /** (T, S): how much of the paths stands in each state, a part `given` (U, T) of them being those of each group.
   *
   * A group's paths are beginnings up to its event and endings from there, each in its own proportions: the
   * given mass flows backwards through the one and forwards through the other. */
  occupancy(given, event) {
    const { T, S } = this;
    const atEvent = table(T, S);
    given.forEach((row, u) => row.forEach((mass, t) => (atEvent[t][2 * u + 1] = mass)));
    const begins = table(T, S); // on the way from the beginning to the event
    const ends = table(T, S); // on the way from the event to the end
    for (let t = T - 1; t >= 0; t--) {
      for (let s = 0; s < S; s++) {
        const mass = event === "end" ? begins[t][s] + atEvent[t][s] : begins[t][s];
        const entered = event === "end" ? 0 : atEvent[t][s]; // at its start a token comes from another state
        begins[t][s] += atEvent[t][s];
        if (t === 0 || begins[t][s] === 0) continue;
        const others = this._before(t, s);
        spread(begins[t - 1], mass, [[s, this.alpha[t - 1][s]], ...others]);
        spread(begins[t - 1], entered, others);
      }
    }
    for (let t = 0; t < T - 1; t++) {
      for (let s = 0; s < S; s++) {
        const mass = event === "end" ? ends[t][s] : ends[t][s] + atEvent[t][s];
        const left = event === "end" ? atEvent[t][s] : 0; // at its end a token goes to another state
        if (mass + left === 0) continue;
        const others = this._after(t, s);
        spread(ends[t + 1], mass, [[s, this.beta[t + 1][s]], ...others]);
        spread(ends[t + 1], left, others);
      }
    }
    return begins.map((row, t) => row.map((mass, s) => mass + ends[t][s]));
  }

  _before(t, s) {
    const steps = this.skips[s] ? [1, 2] : s > 0 ? [1] : [];
    return steps.map((step) => [s - step, this.alpha[t - 1][s - step]]);
  }

  _after(t, s) {
    const steps = this.skips[s + 2] ? [1, 2] : s < this.S - 1 ? [1] : [];
    return steps.map((step) => [s + step, this.beta[t + 1][s + step]]);
  }
}

/** Adds a mass to states [s, logShare] of a row, in these proportions. */
function spread(row, mass, states) {
  if (mass === 0) return;
  const total = logSum(states.map(([, logShare]) => logShare));
  for (const [s, logShare] of states) row[s] += mass * Math.exp(logShare - total);
}

/** (U): tau', the frame of each token's largest group, from 1; the earliest of ties. */
function peakFrames(groups) {
  return groups.map((row) => {
    const least = row.reduce((a, b) => Math.max(a, b), -Infinity) - PEAK_TOLERANCE;
    return row.findIndex((value) => value >= least) + 1;
  });
}

/** (U, T): what a formula says of every group. */
function logRisks(tree, groups, factor) {
  const peaks = peakFrames(groups);
  return groups.map((row, u) =>
    row.map((_, t) =>
      compute(tree, { frame: t + 1, T: row.length, token: u + 1, U: groups.length, peak: peaks[u], factor }),
    ),
  );
}

/** Each group with its risk, and the objective: -sum_u w_u log sum_tau r(u, tau) P_u(tau).
 *
 * weights (U); logWeighed (U, T) is log r P; logObjectives (U) its sums; shares (U, T) what each group has of
 * its token's sum. */
function weigh(groups, risks, tokens) {
  const U = groups.length;
  const weights = groups.map((_, u) => (tokens === "each" ? 1 / U : Number(u === U - 1)));
  refuseRisk(groups, risks, weights);
  const logWeighed = groups.map((row, u) =>
    row.map((value, t) => (value === -Infinity ? value : value + risks[u][t])),
  );
  const logObjectives = logWeighed.map((row) => logSum(Array.from(row)));
  const loss = -weights.reduce((sum, weight, u) => (weight ? sum + weight * logObjectives[u] : sum), 0);
  const shares = logWeighed.map((row, u) =>
    row.map((value) => (logObjectives[u] === -Infinity ? 0 : Math.exp(value - logObjectives[u]))),
  );
  return { weights, logWeighed, logObjectives, shares, loss };
}

/** As the library does: a risk that is NaN or +inf where there are paths has no loss. */
function refuseRisk(groups, risks, weights) {
  groups.forEach((row, u) =>
    row.forEach((value, t) => {
      if (weights[u] && value > -Infinity && !(risks[u][t] < Infinity)) {
        const found = Number.isNaN(risks[u][t]) ? "not a number" : "+infinity";
        throw new FormulaError(`The log-risk is ${found} for token ${u + 1} at frame ${t + 1}.`);
      }
    }),
  );
}

/** A posterior with what does not depend on the risk. `scores` (T, C) are logits, or log_probs that are taken
 * as they are. */
function readPosterior(posterior) {
  const { scores, targets, fromLogits } = posterior;
  const logProbs = fromLogits ? scores.map(logSoftmax) : scores;
  return { ...posterior, logProbs, lattice: new Lattice(logProbs, targets) };
}

/** Path groups, loss and gradient of a posterior that was read; a setting is {tree, tokens, event, factor}.
 *
 * gradient.logProbs and gradient.logits (T, C) are the loss's; the second is null for log_probs. */
function criterion({ logProbs, lattice, fromLogits }, { tree, tokens, event, factor }) {
  const logGroups = lattice.groups(event);
  const risks = logRisks(tree, logGroups, factor);
  const weighed = weigh(logGroups, risks, tokens);
  const occupied = table(lattice.T, logProbs[0].length);
  if (Number.isFinite(weighed.loss)) {
    const given = weighed.shares.map((row, u) => row.map((share) => weighed.weights[u] * share));
    lattice.occupancy(given, event).forEach((row, t) =>
      row.forEach((mass, s) => (occupied[t][lattice.classes[s]] += mass)),
    );
  }
  const gradient = { logProbs: occupied.map((row) => row.map((mass) => (mass ? -mass : 0))), logits: null };
  if (fromLogits) {
    gradient.logits = occupied.map((row, t) => {
      const total = row.reduce((sum, mass) => sum + mass, 0);
      return row.map((mass, c) => total * Math.exp(logProbs[t][c]) - mass);
    });
  }
  return { logGroups, peaks: peakFrames(logGroups), risks, ...weighed, gradient };
}

/** Every path of a small lattice, as the classes of its frames; null if there are more than `most`. */
function allPaths({ scores, targets }, most = 24) {
  const C = scores[0].length;
  if (C ** scores.length > 5000) return null;
  const found = [];
  const walk = (path) => {
    if (path.length < scores.length) {
      for (let label = 0; label < C; label++) walk([...path, label]);
      return;
    }
    const said = path.filter((label, t) => label !== 0 && label !== path[t - 1]);
    if (said.join() === targets.join()) found.push(path);
  };
  walk([]);
  return found.length > most ? null : found;
}
