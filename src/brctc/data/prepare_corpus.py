"""Preparing all splits of a corpus, and noticing what has become of them since."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from brctc.data.checks import LengthCheck
from brctc.data.corpora.base import CorpusConfig
from brctc.data.features import FeatureConfig
from brctc.data.prepare import Summary, prepare_split
from brctc.data.source import Source

SplitProgress = Callable[[str, int, int], object]
"""Called with the split, the items done and the items in all."""


def origin_of(corpus: CorpusConfig, features: FeatureConfig | None) -> dict[str, Any]:
    """What splits are made from, as plain data."""
    content = corpus.model_dump(mode="json", exclude={"prepared"})
    return {"corpus": content, "features": None if features is None else features.model_dump(mode="json")}


def prepare_corpus(
    corpus: CorpusConfig,
    features: FeatureConfig | None = None,
    *,
    check: LengthCheck | None = None,
    jobs: int | None = 1,
    sources: Mapping[str, Source] | None = None,
    progress: SplitProgress | None = None,
) -> dict[str, Summary]:
    """Prepares all splits of a corpus; those that are there as they would be made are kept.

    Args:
        corpus: what to prepare, and where.
        features: how features are made of audio; the defaults are the paper's.
        check: whether texts fit into their frames; training asks for it.
        jobs: processes, as of `prepare_split`.
        sources: the corpus's own, where the caller has them already.
        progress: called after every shard.
    """
    if corpus.input != "audio" and features is not None:
        raise ValueError(f"{corpus.kind} is not audio: it has no features to choose")
    if corpus.input == "audio":
        features = features or FeatureConfig()
    skip_bad = bool(getattr(corpus, "skip_bad", False))
    summaries = {}
    for split, source in (sources or corpus.sources()).items():
        tell = None if progress is None else _named(progress, split)
        summaries[split] = prepare_split(
            source,
            Path(corpus.prepared),
            split,
            corpus.storage(split, features),
            check=check,
            origin=origin_of(corpus, features),
            skip_bad=skip_bad,
            jobs=jobs,
            progress=tell,
        )
    return summaries


def _named(progress: SplitProgress, split: str) -> Callable[[int, int], object]:
    return lambda done, total: progress(split, done, total)
