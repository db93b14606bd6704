"""A training that takes a second or two: real data, a real model, everything small."""

from pathlib import Path

from brctc.train import Recipe, parse_recipe

ENCODER = {
    "kind": "conformer",
    "subsampling": 1,
    "dim": 16,
    "heads": 2,
    "feed_forward_dim": 32,
    "first_layers": 1,
    "second_layers": 1,
    "kernel_size": 5,
    "positions": "sinusoidal",
}
EMFORMER = {
    "kind": "emformer",
    "subsampling": 1,
    "dim": 16,
    "heads": 2,
    "feed_forward_dim": 32,
    "layers": 2,
    "kernel_size": 5,
}
ATTENTION = {"kind": "attention", "layers": 1, "dim": 16, "heads": 2, "feed_forward_dim": 32}
TRANSDUCER = {"kind": "transducer", "prediction_dim": 16, "joint_dim": 16}
RISK = {"kind": "early-finish", "factor": [[0, 0], [4, 5]]}
MIDDLE = {"kind": "ctc", "on": "middle", "weight": 0.5}
FINAL = {"kind": "ctc", "on": "final", "weight": 0.5}
PLAIN = {"middle": MIDDLE, "final": FINAL}


def decoder_loss(name: str, weight: float = 1.0) -> dict:
    return {"kind": "decoder", "of": name, "weight": weight}


def tiny_recipe(folder: Path, **changes) -> Recipe:
    """Two stages of a CTC system on handwriting, 12 and 8 steps."""
    content = {
        "corpus": {
            "kind": "handwriting",
            "train_strings": 60,
            "dev_strings": 10,
            "test_strings": 5,
            "max_digits": 4,
            "prepared": str(folder / "prepared"),
        },
        "tokens": {"transcript": {"kind": "char"}},
        "augment": {"time_mask_length": 5, "frequency_mask_length": 2, "max_time_warp": 2},
        "model": {"encoder": ENCODER},
        "optimiser": {"peak_rate": 2e-3, "warmup_steps": 3},
        "batch": {"seconds": 6.0},
        "stages": {
            "first": {
                "steps": 12,
                "losses": {"middle": MIDDLE | {"risk": RISK}, "final": FINAL | {"risk": RISK}},
                "curriculum": {"max_labels": 2, "only_steps": 3, "share": 0.25},
            },
            "second": {
                "steps": 8,
                "inherit": "whole",
                "losses": {
                    "middle": MIDDLE | {"risk": {"kind": "early-finish", "factor": 5}},
                    "final": FINAL,
                },
                "trim": {},
            },
        },
        "checkpoints": {"every_steps": 3, "keep": 3, "average": 2},
        "monitor": {"dev_utterances": 4, "tensorboard": False},
    }
    return parse_recipe(content | changes)


def best_recipe(folder: Path, **changes) -> Recipe:
    """A stage of CTC alone, then one with an attention decoder; its best two checkpoints make the model.

    The rate is so high that the last checkpoints are not the best ones.
    """
    said = {"attention": decoder_loss("attention")}
    settings = {
        "model": {"encoder": ENCODER, "decoders": {"attention": ATTENTION}},
        "optimiser": {"peak_rate": 0.15, "warmup_steps": 3},
        "stages": {
            "first": {"steps": 6, "losses": PLAIN},
            "second": {"steps": 20, "inherit": "encoder", "losses": PLAIN | said},
        },
        "checkpoints": {"every_steps": 2, "keep": 3, "average": 2, "average_of": "best"},
        "monitor": {"dev_utterances": 10, "tensorboard": False},
    }
    return tiny_recipe(folder, **(settings | changes))
