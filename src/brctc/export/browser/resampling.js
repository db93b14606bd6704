// Samples at another rate, as brctc resamples files and streams: by scipy's resample_poly.

const HALF_WIDTH = 10, BETA = 5; // of its filter, in samples of the lower rate, and of its Kaiser window

export class Resampling {
  constructor(given, wanted) {
    const common = divisor(given, wanted);
    this.up = wanted / common;
    this.down = given / common;
    if (this.up === this.down) return;
    const most = Math.max(this.up, this.down);
    this.half = HALF_WIDTH * most;
    this.taps = lowPass(this.half, most, this.up);
    this.samples = new Float32Array(0); // those that outputs to come may need
    this.first = 0; // which one the first of them is
    this.count = 0;
    this.made = 0;
  }

  // The samples that the next ones complete.
  push(samples) {
    if (this.up === this.down) return samples;
    this.#keep(samples);
    this.count += samples.length;
    // output m stands at m * down between inputs, which stand at multiples of up; it needs `half` around
    return this.#make(Math.floor((this.count * this.up - 1 - this.half) / this.down) + 1);
  }

  // The last samples: behind the end there is silence.
  finish() {
    if (this.up === this.down) return new Float32Array(0);
    this.#keep(new Float32Array(Math.ceil(2 * this.half / this.up) + 2));
    return this.#make(Math.ceil(this.count * this.up / this.down));
  }

  #keep(samples) {
    const kept = new Float32Array(this.samples.length + samples.length);
    kept.set(this.samples);
    kept.set(samples, this.samples.length);
    this.samples = kept;
  }

  #make(until) {
    const { up, down, half, taps } = this, found = new Float32Array(Math.max(0, until - this.made));
    for (let i = 0; i < found.length; i++, this.made++) {
      const place = this.made * down;
      let sum = 0;
      for (let k = Math.max(0, Math.ceil((place - half) / up)); k * up <= place + half; k++) {
        sum += this.samples[k - this.first] * taps[place - k * up + half];
      }
      found[i] = sum;
    }
    const needed = Math.max(0, Math.ceil((this.made * down - half) / up));
    if (needed > this.first) {
      this.samples = this.samples.slice(needed - this.first);
      this.first = needed;
    }
    return found;
  }
}

const divisor = (a, b) => b ? divisor(b, a % b) : a;

// A sinc under a Kaiser window, whose sum is `gain`.
function lowPass(half, most, gain) {
  const taps = Float64Array.from({ length: 2 * half + 1 }, (_, i) => {
    const x = Math.PI * (i - half) / most, along = (i - half) / half;
    return (x ? Math.sin(x) / x : 1) * bessel(BETA * Math.sqrt(Math.max(0, 1 - along * along)));
  });
  const scale = gain / taps.reduce((a, b) => a + b);
  return Float32Array.from(taps, (tap) => tap * scale);
}

// The modified Bessel function of the first kind, of order 0.
function bessel(x) {
  let term = 1, sum = 1;
  for (let k = 1; term > 1e-16 * sum; k++) sum += term *= (x / (2 * k)) ** 2;
  return sum;
}
