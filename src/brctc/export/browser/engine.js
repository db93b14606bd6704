// What the page asks for models and streams, here of the model in this folder.

import { Recognizer } from "./recognizer.js";

let recognizer;

export const engine = {
  async models() {
    recognizer = await Recognizer.load();
    const name = new URL("./", import.meta.url).pathname.split("/").at(-2) || "model";
    return [{ id: decodeURIComponent(name), sample_rate: recognizer.sampleRate, whole: !recognizer.streams }];
  },

  async connect(model, rate, take, onEnd) {
    const stream = recognizer.stream(rate);
    const tell = (text, isFinal) => take({
      segment: 0, start_time: 0, text, is_final: isFinal,
      tokens: stream.tokens.map(({ piece }) => piece),
      timestamps: stream.tokens.map(({ frame }) => recognizer.firstS + (frame + 1) * recognizer.frameS),
    });
    let over = false;
    const end = (problem) => { if (!over) { over = true; onEnd(problem); } };
    const fail = (error) => end(error.message);
    return {
      send: (samples) => stream.push(samples).then((text) => tell(text, false)).catch(fail),
      end: () => stream.finish().then((text) => { tell(text, true); end(""); }).catch(fail),
    };
  },
};
