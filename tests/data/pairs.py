"""Miniatures of corpora of sentences with their translations, and how they are prepared."""

from pathlib import Path

from brctc.data import CORPORA, Prepared, prepare_corpus

GERMAN = ("Ein Mann schläft.", "Zwei Hunde  laufen über Gras.", "Eine Frau liest „Faust“.")
ENGLISH = ("A man is sleeping.", "Two dogs are running on grass.", 'A woman reads "Faust".')


def write_table(path: Path, rows: list[tuple[str, ...]], header: str = "id\ttext\ttranslation") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in [header, *("\t".join(row) for row in rows)]))
    return path


def write_lines(path: Path, lines: tuple[str, ...]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def corpus_of(kind: str, prepared: Path, **options):
    return CORPORA.parse({"kind": kind, "prepared": str(prepared), **options})


def prepare(kind: str, prepared: Path, *, jobs: int = 1, **options):
    return prepare_corpus(corpus_of(kind, prepared, **options), jobs=jobs)


def texts_of(folder: Path, split: str) -> dict[str, tuple[str, str]]:
    """The source and the translation of every example."""
    examples = Prepared(folder, split).examples
    assert all(list(example.texts) == ["source", "translation"] for example in examples)
    return {example.id: (example.texts["source"], example.texts["translation"]) for example in examples}
