// An exported model in the browser: greedy CTC by onnxruntime-web, of whole recordings or of audio as it comes.

import * as ort from "./ort.wasm.min.mjs";
import { Filterbank } from "./filterbank.js";
import { Resampling } from "./resampling.js";

ort.env.wasm.wasmPaths = new URL("./", import.meta.url).href;
ort.env.wasm.numThreads = 1; // more need headers that a plain file server does not send

const WINDOW = 7; // feature frames under one frame behind the subsampling

export class Recognizer {
  // The model in a folder, by default beside this file.
  static async load(folder = new URL("./", import.meta.url)) {
    const found = await Promise.all([read(folder, "export.json"), read(folder, "tokens.txt")]);
    const [about, tokens] = [JSON.parse(found[0]), found[1]];
    const graph = new Uint8Array(await (await request(folder, about.graphs.encoder)).arrayBuffer());
    return new Recognizer(about, tokens, await ort.InferenceSession.create(graph));
  }

  constructor(about, tokens, session) {
    this.about = about;
    this.session = session;
    this.pieces = tokens.trimEnd().split("\n").map((line) => line.slice(0, line.lastIndexOf(" ")));
    this.sampleRate = about.features.sample_rate;
    this.streams = about.streaming !== null;
    const shift = about.features.frame_shift_ms / 1000, factor = about.system.encoder.subsampling;
    this.frameS = factor * shift;
    this.firstS = factor > 1 ? (WINDOW - factor) / 2 * shift : 0;
    this.factor = factor;
    this.turn = Promise.resolve(); // the runtime takes one call after the other
  }

  // A new audio, at its own rate.
  stream(sampleRate = this.sampleRate) {
    return new Stream(this, sampleRate);
  }

  // What is said in samples, floats from -1 to 1.
  async recognize(samples, sampleRate = this.sampleRate) {
    const stream = this.stream(sampleRate);
    for (let i = 0; i < samples.length; i += sampleRate) await stream.push(samples.subarray(i, i + sampleRate));
    return stream.finish();
  }

  run(inputs) {
    const found = this.turn.then(() => this.session.run(inputs));
    this.turn = found.catch(() => {});
    return found;
  }

  framesOut(features) {
    return this.factor > 1 ? Math.max(0, Math.floor((features - WINDOW) / this.factor) + 1) : features;
  }

  // The text of tokens: each is {token, piece, frame}.
  text(tokens) {
    return tokens.map(({ piece }) => piece).join("").replaceAll("\u2581", " ").replace(/^ /, "");
  }
}

// One audio. `tokens` is what was said so far; an offline model says it at the end.
class Stream {
  constructor(recognizer, sampleRate) {
    this.recognizer = recognizer;
    this.resampling = new Resampling(sampleRate, recognizer.sampleRate);
    this.filterbank = new Filterbank(recognizer.about.features);
    this.features = []; // frames that wait
    this.tokens = [];
    this.frames = 0;
    this.last = 0; // class of the last frame
    const streaming = recognizer.about.streaming;
    if (streaming) {
      [, , this.hop, this.window] = streaming.sizes; // chunk, right context, hop, window
      this.state = streaming.state.map(([shape, axis, integer]) => zeros(shape.toSpliced(axis, 0, 1), integer));
    }
    this.turn = Promise.resolve(); // one push after the other
  }

  get text() {
    return this.recognizer.text(this.tokens);
  }

  // Hears the next samples; the text is what is known then.
  push(samples) {
    this.#hear(this.filterbank.push(this.resampling.push(samples)));
    return this.#take(async () => {
      while (this.state && this.features.length >= this.window) await this.#step();
    });
  }

  // The audio ends here.
  finish() {
    this.#hear(this.filterbank.push(this.resampling.finish()));
    this.#hear(this.filterbank.finish());
    return this.#take(async () => {
      while (this.recognizer.framesOut(this.features.length)) await (this.state ? this.#step() : this.#whole());
    });
  }

  #hear(frames) {
    for (const frame of frames) this.features.push(frame);
  }

  #take(work) {
    this.turn = this.turn.then(work).then(() => this.text);
    return this.turn;
  }

  // The next chunk of a stream.
  async #step() {
    const { inputNames: names, outputNames } = this.recognizer.session;
    const heard = this.features.slice(0, this.window);
    const inputs = { [names[0]]: this.#tensor(heard, this.window), [names[1]]: length(heard.length) };
    this.state.forEach((part, i) => { inputs[names[2 + i]] = part; });
    const found = await this.recognizer.run(inputs);
    this.state = outputNames.slice(-this.state.length).map((name) => found[name]);
    this.features.splice(0, this.hop);
    const scores = found.log_probs;
    this.#decode(scores, Math.min(scores.dims[1], this.recognizer.framesOut(heard.length)));
  }

  // All of an utterance.
  async #whole() {
    const count = this.features.length;
    const found = await this.recognizer.run({ x: this.#tensor(this.features, count), x_lens: length(count) });
    this.features = [];
    this.#decode(found.log_probs, Number(found.log_probs_len.data[0]));
  }

  #tensor(frames, rows) {
    const bins = this.filterbank.bins, values = new Float32Array(rows * bins);
    frames.forEach((frame, i) => values.set(frame, i * bins));
    return new ort.Tensor("float32", values, [1, rows, bins]);
  }

  // The best class of every frame, repeats and blanks left out.
  #decode(scores, count) {
    const classes = scores.dims[2];
    for (let t = 0; t < count; t++, this.frames++) {
      const row = scores.data.subarray(t * classes, (t + 1) * classes);
      let token = 0;
      for (let c = 1; c < classes; c++) if (row[c] > row[token]) token = c;
      if (token && token !== this.last) {
        this.tokens.push({ token, piece: this.recognizer.pieces[token], frame: this.frames });
      }
      this.last = token;
    }
  }
}

const length = (count) => new ort.Tensor("int64", BigInt64Array.of(BigInt(count)), [1]);

function zeros(shape, integer) {
  const size = shape.reduce((a, b) => a * b, 1);
  const values = integer ? new BigInt64Array(size) : new Float32Array(size);
  return new ort.Tensor(integer ? "int64" : "float32", values, shape);
}

async function request(folder, name) {
  const found = await fetch(new URL(name, folder));
  if (!found.ok) throw new Error(`${name}: ${found.status} ${found.statusText}`);
  return found;
}

async function read(folder, name) {
  return (await request(folder, name)).text();
}
