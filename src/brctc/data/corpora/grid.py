"""GRID: connected English commands such as "bin blue at f two now", with the corpus's own word times."""

from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from brctc.config import Config
from brctc.data.augment import SPEEDS, Speed
from brctc.data.corpora.strings import Size
from brctc.data.features import FeatureConfig
from brctc.data.manifest import read_manifest
from brctc.data.prepare import Progress, prepare_manifest
from brctc.data.prepared import Summary
from brctc.data.tokens import TokenConfig


class GridConfig(Config):
    """Where the sentences are and how they are divided; training gets what dev and test leave."""

    source: Path
    """A manifest, or the folder of one (manifest.tsv)."""
    dev_sentences: Size = 50
    test_sentences: Size = 150
    speeds: tuple[Speed, ...] = SPEEDS
    """Speeds at which each training sentence is stored."""
    features: FeatureConfig = FeatureConfig()
    seed: Annotated[int, Field(ge=0)] = 0


def prepare(out_dir: str | Path, config: GridConfig, progress: Progress | None = None) -> dict[str, Summary]:
    """Writes the splits train, dev and test."""
    rows = read_manifest(config.source / "manifest.tsv" if config.source.is_dir() else config.source)
    held_out = config.dev_sentences + config.test_sentences
    if len(rows) <= held_out:
        raise ValueError(f"{config.source} has {len(rows)} sentences, dev and test alone take {held_out}")
    order = [rows[i] for i in np.random.default_rng(config.seed).permutation(len(rows))]
    parts = {
        "train": order[held_out:],
        "dev": order[: config.dev_sentences],
        "test": order[config.dev_sentences : held_out],
    }
    done = 0
    summaries = {}
    for split, chosen in parts.items():
        before = done

        def advance(here: int, _: int, before: int = before) -> None:
            if progress is not None:
                progress(before + here, len(rows))

        summaries[split] = prepare_manifest(
            chosen,
            out_dir,
            split,
            config.features,
            tokens=TokenConfig(kind="word"),
            speeds=config.speeds if split == "train" else (1.0,),
            progress=advance,
        )
        done += len(chosen)
    return summaries
