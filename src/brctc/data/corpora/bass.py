"""Lines of the game "Beneath a Steel Sky": English speech, with its English text and German translation.

The folder has manifest.tsv, whose column `split` says what is for training, development and test.
"""

from typing import ClassVar, Literal

from brctc.data.corpora.base import CORPORA
from brctc.data.corpora.split_column import SplitColumnConfig


@CORPORA.register
class BassConfig(SplitColumnConfig):
    """Spoken lines of a game with their translations; its own splits, the test set if it is there."""

    title: ClassVar[str] = "Beneath a Steel Sky"
    small_scale: ClassVar[bool] = True
    splits: ClassVar[tuple[str, ...]] = ("train", "dev", "test")
    columns: ClassVar[tuple[str, ...]] = ("translation",)

    kind: Literal["bass"] = "bass"
