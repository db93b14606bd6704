"""Losses of a stage, as in the paper."""

import pytest

from brctc.train.losses import CTCConfig, DecoderLossConfig, PeakFirstConfig

DECODERS = [
    pytest.param({}, id="ctc"),
    pytest.param({"attention": True}, id="attention"),
    pytest.param({"transducer": True}, id="transducer"),
]
NO_RISK = {}


def terms(decoders=(), middle=NO_RISK, final=NO_RISK, regularised=False):
    """Two CTCs as in the paper, with table 3's weights, and the losses of decoders by their names."""
    share, decoder_weight = {"attention": (0.3, 0.7), "transducer": (0.5, 1.0)}.get(
        next(iter(decoders), ""), (1.0, 0.0)
    )
    losses = {
        "middle": CTCConfig(on="middle", weight=0.3 * share, **middle),
        "final": CTCConfig(weight=0.7 * share, **final),
    }
    losses |= {name: DecoderLossConfig(of=name, weight=decoder_weight) for name in decoders}
    return losses | ({"peaks": PeakFirstConfig(weight=0.14 * share)} if regularised else {})


def online_terms(**final):
    return {
        "ctc": CTCConfig(weight=0.3, **final),
        "attention": DecoderLossConfig(of="attention", weight=0.7),
    }
