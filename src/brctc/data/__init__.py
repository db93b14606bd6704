"""Corpora, features, augmentation, tokens and batches (the extra `asr`)."""

from brctc.extras import check_extra

check_extra()

from brctc.data.alignments import import_reference_times, read_ctm_alignment, read_textgrids
from brctc.data.audio import AudioError, load_audio
from brctc.data.augment import AugmentConfig, SpecAugmentConfig, spec_augment, trim_tail
from brctc.data.batch import Batch, Example, Padded, pad
from brctc.data.checks import LengthCheck
from brctc.data.corpora import CORPORA, SPEEDS, AudioCorpusConfig, CorpusConfig
from brctc.data.features import FeatureConfig, FeatureStream, extract_features, num_samples_heard
from brctc.data.manifest import (
    PreparationError,
    Problem,
    Row,
    WordTime,
    read_manifest,
    write_manifest,
)
from brctc.data.microphone import record
from brctc.data.prepare import Summary, prepare_split
from brctc.data.prepare_corpus import prepare_corpus
from brctc.data.recordings import RowSource
from brctc.data.reference_times import (
    Aligner,
    AlignmentError,
    ReferenceTimes,
    find_reference_times,
)
from brctc.data.source import ExampleError, Loaded, Source, Storage
from brctc.data.split import Prepared
from brctc.data.tokens import TokenConfig, Tokenizer

__all__ = [
    "Aligner",
    "AlignmentError",
    "AudioCorpusConfig",
    "AudioError",
    "AugmentConfig",
    "Batch",
    "CORPORA",
    "CorpusConfig",
    "Example",
    "ExampleError",
    "FeatureStream",
    "FeatureConfig",
    "LengthCheck",
    "Loaded",
    "Padded",
    "PreparationError",
    "Prepared",
    "Problem",
    "ReferenceTimes",
    "Row",
    "RowSource",
    "SPEEDS",
    "Source",
    "SpecAugmentConfig",
    "Storage",
    "Summary",
    "TokenConfig",
    "Tokenizer",
    "WordTime",
    "extract_features",
    "find_reference_times",
    "import_reference_times",
    "load_audio",
    "num_samples_heard",
    "pad",
    "prepare_corpus",
    "prepare_split",
    "read_ctm_alignment",
    "read_manifest",
    "read_textgrids",
    "record",
    "spec_augment",
    "trim_tail",
    "write_manifest",
]
