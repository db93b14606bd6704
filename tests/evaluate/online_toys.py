"""An untrained online model, and a split in which it says all words where it should."""

from pathlib import Path

import torch

from brctc.data import FeatureConfig, TokenConfig, Tokenizer, WordTime, extract_features
from brctc.decode import Recognizer
from brctc.models import EmformerConfig, Model, System, SystemConfig, save_model
from tests.data.sounds import noise
from tests.data.splits import write_split
from tests.decode.test_streaming import sound

FEATURES = FeatureConfig(num_bins=16)
SMALL = {"dim": 16, "heads": 2, "feed_forward_dim": 24, "subsampling_channels": 3}
DRIFT_S, LENGTH_S = 0.3, 0.25


def make_model(encoder, tokens="word", text="one two six"):
    torch.manual_seed(2)
    tokenizer = Tokenizer.train([text], TokenConfig(kind=tokens))
    system = System(SystemConfig(encoder=encoder), FEATURES.num_bins, {"transcript": tokenizer.size})
    known = torch.from_numpy(extract_features(noise(2.0, 9), FEATURES))
    system.set_statistics(known.mean(0), known.std(0))
    with torch.no_grad():
        system.heads["transcript"].bias[1] = -100  # it shall say words that it knows
        system.heads["transcript"].bias[0] += 0.5
    return Model(system.eval(), {"transcript": tokenizer}, FEATURES, None, {})


def store(model: Model, folder: Path) -> Path:
    save_model(folder, *(getattr(model, name) for name in model.__dataclass_fields__))
    return folder


def online_model(tokens="word", text="one two six"):
    contexts = {"chunk_frames": 4, "left_context_frames": 4, "right_context_frames": 2, "memory_size": 2}
    return make_model(EmformerConfig(layers=2, **contexts, **SMALL), tokens, text)


def online_split(folder, model):
    """What the model says of ten noises, each word 300 ms before the middle of its last frame; the last two
    utterances have no times."""
    recognizer = Recognizer(model)
    features = [extract_features(sound(seed, 4.0 + 0.37 * seed), FEATURES) for seed in range(10)]
    examples = {}
    for n, found in enumerate(features):
        stored = found.astype("float16").astype("float32")
        (result,) = recognizer.recognize([("", stored)], "ctc-greedy")
        starts = [(time.word, time.end_s - 0.02 - DRIFT_S) for time in result.word_times]
        times = [WordTime(word, start_s, start_s + LENGTH_S) for word, start_s in starts]
        text = result.text if n else f"six {result.text}"  # the first one has an error
        examples[f"u{n}"] = text, stored, times if n < 8 else None
    return write_split(folder, "test", examples, feature_config=FEATURES)
