"""Manifests, features, augmentation, tokens, batches and the corpora built in (the extra `asr`)."""

from brctc.config import Config
from brctc.data import extras  # noqa: F401
from brctc.data.audio import AudioError, load_audio
from brctc.data.augment import SPEEDS, AugmentConfig, SpecAugmentConfig, spec_augment, trim_tail
from brctc.data.batching import Batch, make_batch, plan_batches
from brctc.data.corpora import (
    CORPORA,
    DigitStringsConfig,
    GridConfig,
    HandwritingConfig,
    prepare_corpus,
)
from brctc.data.features import FbankStream, FeatureConfig, fbank, num_samples_heard
from brctc.data.manifest import (
    PreparationError,
    Problem,
    Row,
    WordTime,
    read_manifest,
    write_manifest,
)
from brctc.data.microphone import record
from brctc.data.prepare import prepare_manifest
from brctc.data.prepared import (
    Prepared,
    PreparedWriter,
    Summary,
    Utterance,
    feature_statistics,
)
from brctc.data.reference_times import (
    Aligner,
    AlignmentError,
    ReferenceTimes,
    find_reference_times,
)
from brctc.data.tokens import TokenConfig, Tokenizer

__all__ = [
    "Aligner",
    "AlignmentError",
    "AudioError",
    "AugmentConfig",
    "Batch",
    "CORPORA",
    "Config",
    "DigitStringsConfig",
    "FbankStream",
    "FeatureConfig",
    "GridConfig",
    "HandwritingConfig",
    "PreparationError",
    "Prepared",
    "PreparedWriter",
    "Problem",
    "ReferenceTimes",
    "Row",
    "SPEEDS",
    "SpecAugmentConfig",
    "Summary",
    "TokenConfig",
    "Tokenizer",
    "Utterance",
    "WordTime",
    "fbank",
    "feature_statistics",
    "find_reference_times",
    "load_audio",
    "make_batch",
    "num_samples_heard",
    "plan_batches",
    "prepare_corpus",
    "prepare_manifest",
    "read_manifest",
    "record",
    "spec_augment",
    "trim_tail",
    "write_manifest",
]
