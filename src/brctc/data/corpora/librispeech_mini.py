"""A few hours of LibriSpeech, small enough to train on a laptop: read speech of many speakers.

The folder has manifest.tsv: mini LibriSpeech's training set (28 speakers, 5.3 hours), and twelve other
speakers of dev-clean, six for `dev` and six for `eval`. The column `word_times` says when each word is read.
"""

from typing import ClassVar, Literal

from brctc.data.corpora.base import CORPORA
from brctc.data.corpora.split_column import SplitColumnConfig

LOOKED_AT = "fig8"
"""A split of one utterance, that of the paper's Fig. 8: for pictures, never measured."""


@CORPORA.register
class LibriSpeechMiniConfig(SplitColumnConfig):
    """Read English of many speakers, a few hours; the test set is `eval`."""

    title: ClassVar[str] = "LibriSpeech, 5 hours"
    small_scale: ClassVar[bool] = True
    splits: ClassVar[tuple[str, ...]] = ("train", "dev", "eval", LOOKED_AT)

    kind: Literal["librispeech-mini"] = "librispeech-mini"

    def test_names(self) -> list[str]:
        return [split for split in super().test_names() if split != LOOKED_AT]
