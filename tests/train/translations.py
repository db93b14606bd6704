"""Tiny systems of translation: numbers as words, German to English, as text and as noises with texts."""

from pathlib import Path

import numpy as np

from brctc.data import Row, write_manifest
from brctc.train import Recipe, parse_recipe
from tests.data.sounds import noise, write
from tests.train.tiny import ATTENTION, ENCODER, decoder_loss

WORDS = {"eins": "one", "zwei": "two", "drei": "three", "vier": "four"}
TEXT = "translation"
EARLY = {"kind": "early-finish", "factor": 5}
SMALL = {
    "optimiser": {"peak_rate": 3e-3, "warmup_steps": 3},
    "checkpoints": {"every_steps": 4, "keep": 3, "average": 2},
    "monitor": {"dev_utterances": 4, "tensorboard": False},
    "decode": {"method": "attention", "beam": 3, "ctc_weight": 0.3},
}


def sentences(count: int, seed: int) -> list[tuple[str, str]]:
    """German, and English with the words in the other order."""
    rng = np.random.default_rng(seed)
    chosen = [rng.choice(list(WORDS), rng.integers(1, 5)).tolist() for _ in range(count)]
    return [(" ".join(words), " ".join(WORDS[word] for word in reversed(words))) for words in chosen]


def write_pairs(folder: Path) -> dict[str, str]:
    """Manifests of texts, by split."""
    manifests = {}
    for seed, (split, count) in enumerate({"train": 40, "dev": 8, "test": 8}.items()):
        rows = [
            Row(f"{split}-{i}", german, translation=english)
            for i, (german, english) in enumerate(sentences(count, seed))
        ]
        write_manifest(folder / f"{split}.tsv", rows)
        manifests[split] = str(folder / f"{split}.tsv")
    return manifests


def mt_recipe(folder: Path, **changes) -> Recipe:
    """Two stages of a LegoNN system, the second one trimmed."""
    ctc = {"kind": "ctc", "text": TEXT, "infeasible": "skip"}
    final, said = ctc | {"weight": 0.21}, decoder_loss("attention", 0.7)
    middle = ctc | {"on": "middle", "weight": 0.09, "risk": EARLY}
    content = {
        "corpus": {
            "kind": "text-pairs",
            "manifests": write_pairs(folder),
            "prepared": str(folder / "prepared"),
        },
        "tokens": {"source": {"kind": "word"}, TEXT: {"kind": "word"}},
        "model": {
            "encoder": {
                "kind": "legonn",
                "dim": 16,
                "heads": 2,
                "feed_forward_dim": 32,
                "first_layers": 1,
                "second_layers": 1,
                "dropout": 0.1,
            },
            "heads": {TEXT: {}},
            "decoders": {"attention": ATTENTION | {"text": TEXT}},
            "normalisation": "none",
            "output": TEXT,
        },
        "batch": {"tokens": 60},
        "stages": {
            "first": {
                "steps": 12,
                "losses": {"middle": middle, "final": final | {"risk": EARLY}, "attention": said},
            },
            "second": {
                "steps": 8,
                "inherit": "whole",
                "losses": {"middle": middle, "final": final, "attention": said},
                "trim": {"text": TEXT, "margin": 1, "threshold": 0.5},
            },
        },
        **SMALL,
    }
    return parse_recipe(content | changes)


def write_speech(folder: Path) -> dict[str, str]:
    """Manifests of noises, a second and more, with what they are said to say, and its translation."""
    manifests = {}
    for seed, (split, count) in enumerate({"train": 16, "dev": 4, "test": 4}.items()):
        rows = []
        for i, (german, english) in enumerate(sentences(count, seed)):
            seconds = 0.5 + 0.25 * len(german.split())
            path = write(folder / f"{split}-{i}.wav", noise(seconds, 100 * seed + i))
            rows.append(Row(f"{split}-{i}", german, path, seconds, translation=english))
        write_manifest(folder / f"{split}.tsv", rows)
        manifests[split] = str(folder / f"{split}.tsv")
    return manifests


def st_recipe(folder: Path, **changes) -> Recipe:
    """Transcription first; then a translation encoder and its decoder, fresh, behind the trimming."""
    middle = {"kind": "ctc", "on": "middle", "weight": 0.09, "risk": EARLY}
    final = {"kind": "ctc", "on": "final", "weight": 0.21}
    speech = ENCODER | {"subsampling": 4, "subsampling_channels": 4}
    content = {
        "corpus": {
            "kind": "manifests",
            "manifests": write_speech(folder),
            "prepared": str(folder / "prepared"),
            "speeds": [1.0],
        },
        "features": {"num_bins": 20},
        "tokens": {"transcript": {"kind": "word"}, TEXT: {"kind": "word"}},
        "augment": {"num_time_masks": 5, "time_mask_length": 1000, "time_mask_share": 0.05},
        "model": {
            "encoder": speech,
            "upper_encoders": {TEXT: {"on": "final", "encoder": ENCODER}},
            "heads": {"transcript": {}, TEXT: {"on": TEXT}},
            "decoders": {"said": ATTENTION, "meant": ATTENTION | {"text": TEXT, "on": TEXT}},
            "output": TEXT,
        },
        "batch": {"seconds": 6},
        "stages": {
            "first": {
                "steps": 6,
                "losses": {
                    "middle": middle,
                    "final": final | {"risk": EARLY},
                    "said": decoder_loss("said", 0.7),
                },
            },
            "second": {
                "steps": 6,
                "inherit": "whole",
                "losses": {
                    "middle": middle,
                    "final": final,
                    "translation": {"kind": "ctc", "on": TEXT, "text": TEXT, "weight": 0.21},
                    "meant": decoder_loss("meant", 0.49),
                },
                "trim": {"margin": 1, "threshold": 0.5},
            },
        },
        **SMALL,
    }
    return parse_recipe(content | changes)
