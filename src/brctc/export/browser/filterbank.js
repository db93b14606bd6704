// Log mel filterbanks as brctc.data.extract_features makes them: Kaldi's, with centred frames.

const PREEMPHASIS = 0.97, WINDOW_POWER = 0.85; // Kaldi's, and its "povey" window
const FLOOR = 1.1920928955078125e-7; // of the energy in a bin: float32's epsilon

const mel = (hz) => 1127 * Math.log1p(hz / 700);

// The filterbank of audio that comes bit by bit: all pushes and `finish` give the frames of the whole.
export class Filterbank {
  // `config`: `features` of export.json
  constructor(config) {
    const rate = config.sample_rate;
    this.bins = config.num_bins;
    this.shift = Math.round(rate * config.frame_shift_ms / 1000);
    this.length = Math.floor(rate * config.frame_length_ms / 1000);
    this.size = 2 ** Math.ceil(Math.log2(this.length));
    this.window = Float64Array.from({ length: this.length }, (_, i) =>
      (0.5 - 0.5 * Math.cos(2 * Math.PI * i / (this.length - 1))) ** WINDOW_POWER);
    const half = rate / 2, high = config.high_hz > 0 ? config.high_hz : half + config.high_hz;
    this.filters = melFilters(this.bins, this.size, rate, config.low_hz, high);
    this.transform = new Fourier(this.size);
    this.samples = new Float32Array(0); // those that windows to come may need
    this.first = 0; // which one the first of them is
    this.count = 0;
    this.frames = 0;
  }

  // The frames that the next samples complete: arrays of `bins` numbers.
  push(samples) {
    const kept = new Float32Array(this.samples.length + samples.length);
    kept.set(this.samples);
    kept.set(samples, this.samples.length);
    this.samples = kept;
    this.count += samples.length;
    const made = [];
    while (this.#start(this.frames) + this.length <= this.count) made.push(this.#frame());
    // at the beginning and the end, windows see samples mirrored: as many as a window has are kept
    const needed = Math.min(this.#start(this.frames), this.count) - this.length;
    if (needed > this.first) {
      this.samples = this.samples.slice(needed - this.first);
      this.first = needed;
    }
    return made;
  }

  // The last frames, whose windows reach beyond the end.
  finish() {
    const total = Math.floor((this.count + Math.floor(this.shift / 2)) / this.shift), made = [];
    while (this.frames < total) made.push(this.#frame());
    return made;
  }

  #start(frame) {
    return frame * this.shift + Math.floor(this.shift / 2) - Math.floor(this.length / 2);
  }

  #sample(place) {
    while (place < 0 || place >= this.count) place = place < 0 ? -1 - place : 2 * this.count - 1 - place;
    return this.samples[place - this.first];
  }

  #frame() {
    const start = this.#start(this.frames++), { re, im } = this.transform;
    let mean = 0;
    for (let i = 0; i < this.length; i++) mean += re[i] = this.#sample(start + i);
    mean /= this.length;
    for (let i = 0; i < this.length; i++) re[i] -= mean;
    for (let i = this.length - 1; i > 0; i--) re[i] = (re[i] - PREEMPHASIS * re[i - 1]) * this.window[i];
    re[0] *= (1 - PREEMPHASIS) * this.window[0];
    re.fill(0, this.length);
    im.fill(0);
    this.transform.run();
    return Float32Array.from(this.filters, ({ first, weights }) => {
      let energy = 0;
      weights.forEach((weight, i) => { energy += weight * (re[first + i] ** 2 + im[first + i] ** 2); });
      return Math.log(Math.max(energy, FLOOR));
    });
  }
}

// Triangles that are even in mel: each with its first frequency and the weights from there on.
function melFilters(bins, size, rate, low, high) {
  const [from, until] = [mel(low), mel(high)], step = (until - from) / (bins + 1);
  return Array.from({ length: bins }, (_, bin) => {
    const left = from + bin * step, centre = left + step, right = centre + step, weights = [];
    let first = 0;
    for (let i = 0; i < size / 2; i++) {
      const place = mel(i * rate / size);
      if (place <= left || place >= right) continue;
      if (!weights.length) first = i;
      weights.push(place <= centre ? (place - left) / (centre - left) : (right - place) / (right - centre));
    }
    return { first, weights };
  });
}

// A Fourier transform in place, of a size that is a power of two.
class Fourier {
  constructor(size) {
    this.size = size;
    this.re = new Float64Array(size);
    this.im = new Float64Array(size);
    this.cos = Float64Array.from({ length: size / 2 }, (_, i) => Math.cos(2 * Math.PI * i / size));
    this.sin = Float64Array.from({ length: size / 2 }, (_, i) => -Math.sin(2 * Math.PI * i / size));
  }

  run() {
    const { size, re, im, cos, sin } = this;
    for (let i = 0, j = 0; i < size - 1; i++) {
      if (i < j) [re[i], re[j], im[i], im[j]] = [re[j], re[i], im[j], im[i]];
      let bit = size >> 1;
      for (; j & bit; bit >>= 1) j ^= bit;
      j |= bit;
    }
    for (let half = 1; half < size; half *= 2) {
      const stride = size / (2 * half);
      for (let start = 0; start < size; start += 2 * half) {
        for (let k = 0; k < half; k++) {
          const a = start + k, b = a + half, c = cos[k * stride], s = sin[k * stride];
          const x = re[b] * c - im[b] * s, y = re[b] * s + im[b] * c;
          re[b] = re[a] - x; im[b] = im[a] - y;
          re[a] += x; im[a] += y;
        }
      }
    }
  }
}
