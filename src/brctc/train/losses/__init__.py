"""The terms of an objective, one file each. Importing this package registers those built in."""

from brctc.train.losses.base import LOSSES, AnyLoss, Forward, Loss, LossConfig
from brctc.train.losses.consistency import ConsistencyConfig, consistency_loss
from brctc.train.losses.ctc import CTCConfig, ctc_loss
from brctc.train.losses.decoder import DecoderLossConfig
from brctc.train.losses.peak_first import PeakFirstConfig, peak_first_loss

__all__ = [
    "AnyLoss",
    "CTCConfig",
    "ConsistencyConfig",
    "DecoderLossConfig",
    "Forward",
    "LOSSES",
    "Loss",
    "LossConfig",
    "PeakFirstConfig",
    "consistency_loss",
    "ctc_loss",
    "peak_first_loss",
]
