"""An untrained online model, and a split in which it says all words where it should."""

import torch

from brctc.data import FeatureConfig, Prepared, PreparedWriter, TokenConfig, Tokenizer, WordTime, fbank
from brctc.decode import Recognizer
from brctc.models import EmformerConfig, Model, System, SystemConfig
from tests.data.sounds import noise
from tests.decode.test_streaming import sound

FEATURES = FeatureConfig(num_bins=16)
SMALL = {"dim": 16, "heads": 2, "feed_forward_dim": 24, "subsampling_channels": 3}
DRIFT_S, LENGTH_S = 0.3, 0.25


def make_model(encoder, tokens="word"):
    torch.manual_seed(2)
    tokenizer = Tokenizer.train(["one two six"], TokenConfig(kind=tokens))
    system = System(SystemConfig(encoder=encoder), FEATURES.num_bins, tokenizer.size)
    known = torch.from_numpy(fbank(noise(2.0, 9), FEATURES))
    system.set_statistics(known.mean(0), known.std(0))
    with torch.no_grad():
        system.encoder.ctc.bias[1] = -100  # it shall say words that it knows
        system.encoder.ctc.bias[0] += 0.5
    return Model(system.eval(), tokenizer, FEATURES, None, {})


def online_model(tokens="word"):
    contexts = {"chunk_frames": 4, "left_context_frames": 4, "right_context_frames": 2, "memory_size": 2}
    return make_model(EmformerConfig(layers=2, **contexts, **SMALL), tokens)


def online_split(folder, model):
    """What the model says of ten noises, each word 300 ms before the middle of its last frame; the last two
    utterances have no times."""
    recognizer = Recognizer(model)
    features = [fbank(sound(seed, 4.0 + 0.37 * seed), FEATURES) for seed in range(10)]
    with PreparedWriter(folder, "test", feature_dim=16, frame_shift_s=0.01, feature_config=FEATURES) as out:
        for n, found in enumerate(features):
            stored = found.astype("float16").astype("float32")
            (result,) = recognizer.recognize([("", stored)], "ctc-greedy")
            starts = [(time.word, time.end_s - 0.02 - DRIFT_S) for time in result.word_times]
            times = [WordTime(word, start_s, start_s + LENGTH_S) for word, start_s in starts]
            text = result.text if n else f"six {result.text}"  # the first one has an error
            out.add(f"u{n}", text, stored, None, times if n < 8 else None)
    return Prepared(folder, "test")
