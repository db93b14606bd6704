"""An untrained online model that talks a lot, and its streams."""

from itertools import pairwise

import numpy as np
import torch

from brctc.data import FeatureConfig, TokenConfig, Tokenizer, extract_features, pad
from brctc.models import EmformerConfig, Model, System, SystemConfig
from tests.data.sounds import RATE, noise

SECONDS = 3.21


def make_model(seed=0, subsampling=4, dither=0.0, encoder=None):
    torch.manual_seed(seed)
    sizes = {"dim": 16, "heads": 2, "feed_forward_dim": 24, "subsampling_channels": 3}
    contexts = {"chunk_frames": 4, "left_context_frames": 4, "right_context_frames": 2, "memory_size": 2}
    encoder = encoder or EmformerConfig(subsampling=subsampling, layers=2, **contexts, **sizes)
    tokenizer = Tokenizer.train(["one two", "six"], TokenConfig(kind="char"))
    features = FeatureConfig(num_bins=16, dither=dither)
    system = System(SystemConfig(encoder=encoder), features.num_bins, {"transcript": tokenizer.size})
    known = torch.from_numpy(extract_features(noise(2.0, 9), features))
    system.set_statistics(known.mean(0), known.std(0))
    return Model(system.eval(), {"transcript": tokenizer}, features, None, {})


def sound(seed=0, seconds=SECONDS):
    """Noise that changes every 30 ms, and stays what it is for longer in between."""
    generator = np.random.default_rng(seed)
    levels = np.repeat(generator.choice([0.01, 0.1, 1.0], round(seconds / 0.03) + 1), round(0.03 * RATE))
    samples = noise(seconds, seed)
    return samples * levels[: len(samples)].astype(np.float32)


def runs(model, samples):
    """(token, first frame, last frame) from the offline path itself, frame by frame."""
    features = torch.from_numpy(extract_features(samples, model.features))
    with torch.inference_mode():
        path = model.system.encode(pad([features])).logits().values[0].argmax(-1).tolist()
    borders = [0] + [t for t in range(1, len(path)) if path[t] != path[t - 1]] + [len(path)]
    return [(path[a], a, b - 1) for a, b in pairwise(borders) if path[a]]


def stream(recognizer, samples, size):
    """Everything that pushes of one size, and the flush, have said."""
    fired = []
    for first in range(0, len(samples), size):
        fired += recognizer.push(samples[first : first + size])
    return fired + recognizer.flush()


def said(tokens):
    return [(token.token, token.first_frame, token.last_frame) for token in tokens]
