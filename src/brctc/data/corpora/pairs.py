"""What corpora of sentences with their translations have in common: which files a split is, and how they
are read."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Literal

from brctc.data.checks import row_problems
from brctc.data.corpora.base import CorpusConfig
from brctc.data.features import FeatureConfig
from brctc.data.manifest import Problem, Row, iterate_manifest, text_lines
from brctc.data.source import ExampleError, Loaded, Storage


class PairsConfig(CorpusConfig):
    """A folder of sentences with their translations."""

    input: ClassVar[Literal["audio", "columns", "text"]] = "text"

    source: Path
    """The folder of its files."""
    reverse: bool = False
    """Translate the other way round: from what is the translation into what is the text."""

    def split_names(self) -> Sequence[str]:
        return list(self.sources()) if self.source.is_dir() else ("train", "dev")  # prepared elsewhere

    def current_sources(self) -> Mapping[str, "PairSource"]:
        with suppress(ValueError):  # prepared elsewhere: nobody can tell
            return self.sources()
        return {}

    def sources(self) -> Mapping[str, "PairSource"]:
        raise NotImplementedError

    def storage(self, split: str, features: FeatureConfig | None) -> Storage:
        return Storage("text")


class PairSource:
    """The pairs of a split; how they are read is up to a subclass. They are light enough to be items."""

    def __init__(self, name: str, reverse: bool) -> None:
        self.name, self.reverse = name, reverse

    def items(self) -> Iterator[Row | Problem]:
        """Pairs as the files have them, not reversed, so that a problem names what is there."""
        raise NotImplementedError

    def digest(self) -> str:
        digest = hashlib.sha256(repr(self.reverse).encode())
        for item in self.items():
            known = (item.id, item.text, item.translation) if isinstance(item, Row) else tuple(item)
            digest.update(repr(known).encode())
        return digest.hexdigest()

    def size(self) -> int:
        return sum(1 for _ in self.items())

    def fingerprint(self, items: Sequence[Row]) -> str:
        return ""  # all that there is stands in the items

    def lacks_files(self) -> bool:
        return False

    def load(self, item: Row) -> Loaded:
        if problems := row_problems(item):
            raise ExampleError(*problems)
        assert item.translation is not None, "a pair has a translation"
        read, written = item.text, item.translation
        if self.reverse:
            read, written = written, read
        return Loaded(item.id, {"source": read, "translation": written})


class TablePairs(PairSource):
    """A TSV file with the columns id, text and translation."""

    def __init__(self, path: Path, reverse: bool) -> None:
        super().__init__(str(path), reverse)
        self.path = path

    def items(self) -> Iterator[Row | Problem]:
        for row in iterate_manifest(self.path):
            if isinstance(row, Problem):
                yield row
            elif row.translation is None:
                raise ValueError(f"{self.path} lacks the column 'translation'")
            else:
                yield Row(row.id, row.text, translation=row.translation)


class LinePairs(PairSource):
    """Two files with a sentence in each line, the second with the translations of the first."""

    def __init__(self, texts: Path, translations: Path, reverse: bool) -> None:
        super().__init__(f"{texts} and {translations.name}", reverse)
        self.texts, self.translations = texts, translations

    def items(self) -> Iterator[Row]:
        """A pair's id is the file's name and the number of its line, from 0."""
        check_equal_lines(self.texts, self.translations)
        pairs = zip(text_lines(self.texts), text_lines(self.translations), strict=True)
        for number, (text, translation) in enumerate(pairs):
            yield Row(f"{self.texts.stem}_{number:05d}", one_line(text), translation=one_line(translation))


def one_line(text: str) -> str:
    """Without white space around it, and a single space for any inside."""
    return " ".join(text.split())


def check_equal_lines(texts: Path, translations: Path) -> None:
    """Files with different numbers of lines are shifted against each other somewhere."""
    counts = [sum(1 for _ in path.open("rb")) for path in (texts, translations)]
    if counts[0] != counts[1]:
        raise ValueError(
            f"{texts} has {counts[0]} lines, {translations} has {counts[1]}: they are not translations "
            "line by line"
        )


def find_pairs(
    folder: Path, stem: str, languages: tuple[str, str] | None, reverse: bool
) -> PairSource | None:
    """STEM.tsv, or STEM.de and STEM.en for the languages de and en; None if there is nothing of it."""
    table = folder / f"{stem}.tsv"
    if table.is_file():
        return TablePairs(table, reverse)
    if languages is None:
        return None
    texts, translations = (folder / f"{stem}.{language}" for language in languages)
    there = [path.is_file() for path in (texts, translations)]
    if not any(there):
        return None
    if not all(there):
        missing, partner = (translations, texts) if there[0] else (texts, translations)
        raise ValueError(f"{missing}: No such file or directory; {partner.name} is there without it")
    return LinePairs(texts, translations, reverse)
