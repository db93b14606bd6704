"""Read speech of many speakers in one manifest."""

from brctc.data import Prepared, prepare_corpus
from tests.data.pairs import corpus_of, write_table
from tests.data.sounds import noise, write

HEADER = "id\tspeaker\ttext\tpath\tduration\tstart_sample\tnum_samples\tsplit\tgender\tword_times"


def row(n: int, split: str) -> tuple[str, ...]:
    part = (f"{8000 * n}", "8000")
    return (f"s-{n}", f"s{n}", "so long", "audio/0.flac", "0.5", *part, split, "f", "so:0.1-0.2 long:0.2-0.4")


def test_splits(tmp_path):
    write(tmp_path / "mini" / "audio" / "0.flac", noise(4.0))
    splits = ["train", "train", "dev", "eval", "eval", "fig8"]
    write_table(tmp_path / "mini" / "manifest.tsv", [row(n, split) for n, split in enumerate(splits)], HEADER)
    corpus = corpus_of("librispeech-mini", tmp_path / "out", source=tmp_path / "mini")
    assert list(corpus.split_names()) == ["train", "dev", "eval", "fig8"]
    assert corpus.test_names() == ["eval"]  # what is looked at is not measured
    summaries = prepare_corpus(corpus)
    assert [summary.examples for summary in summaries.values()] == [6, 1, 2, 1]
    (seen,) = Prepared(tmp_path / "out", "fig8").examples
    assert (seen.id, seen.speaker, len(seen.word_times)) == ("s-5", "s5", 2)
