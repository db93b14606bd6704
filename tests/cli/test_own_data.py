"""docs/own-data.md, from its first line to its last, on a corpus of tones."""

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from brctc.data import Prepared, WordTime, read_manifest
from brctc.train import load_recipe
from tests.cli.commands import brctc
from tests.data.pairs import ENGLISH, GERMAN, write_lines, write_table
from tests.data.published import (
    write_aishell1,
    write_aishell2,
    write_iwslt14,
    write_librispeech,
    write_must_c,
    write_wenetspeech,
)
from tests.data.sounds import RATE, noise, write
from tests.documents import OWN_DATA, blocks

WORDS = {"low": 300, "middle": 700, "high": 1500}  # Hz
# what makes the page's recipes small enough; nothing else of its commands is changed
TINY = (
    "model.encoder.dim=16",
    "model.encoder.feed_forward_dim=16",
    "model.encoder.subsampling_channels=4",
    "batch.seconds=20",
    "checkpoints={every_steps: 3, keep: 1, average: 1}",
    "monitor={dev_utterances: 2, snapshot_steps: [0, 3], snapshot_utterances: 1, tensorboard: false}",
)
OFFLINE = (
    "model.encoder.first_layers=1",
    "model.encoder.second_layers=1",
    "stages.first.steps=3",
    "stages.second.steps=3",
)
ONLINE = ("model.encoder.layers=1", "stages.only.steps=3")
QUICK = ("--limit", "2", "--repeats", "1", "--beams", "2")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """recordings/<speaker>/<number>.wav and .txt"""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for speaker in ("anna", "berta", "carl", "dora"):
        for number in range(1, 5):
            words = rng.choice(list(WORDS), 2).tolist()
            seconds = np.arange(round(0.6 * RATE)) / RATE
            tones = np.concatenate([0.1 * np.sin(2 * np.pi * WORDS[word] * seconds) for word in words])
            path = write(tmp_path / "recordings" / speaker / f"{number:04d}.wav", tones.astype(np.float32))
            path.with_suffix(".txt").write_text(" ".join(words) + "\n")
            write_alignment(tmp_path, speaker, path.stem, words)
    write_translations(tmp_path)
    write_published(tmp_path)
    return tmp_path


def write_translations(folder: Path) -> None:
    """texts/<split>.tsv, talks/<split>.tsv with their audio, and Multi30k as it is published."""
    write(folder / "talks" / "a.wav", noise(3.0))
    pairs = [(f"s{n}", *pair) for n, pair in enumerate(zip(GERMAN, ENGLISH, strict=True))]
    for split in ("train", "dev", "test"):
        write_table(folder / "texts" / f"{split}.tsv", pairs)
        spoken = [(*pair, "a.wav", "3.0") for pair in pairs]
        write_table(folder / "talks" / f"{split}.tsv", spoken, "id\ttext\ttranslation\tpath\tduration")
    for stem in ("train", "val", "test_2016_flickr"):
        write_lines(folder / "multi30k" / f"{stem}.de", GERMAN)
        write_lines(folder / "multi30k" / f"{stem}.en", ENGLISH)


def write_published(folder: Path) -> None:
    """Corpora in their own layouts."""
    write_aishell1(folder / "aishell1" / "data_aishell")
    write_aishell2(folder / "aishell2")
    write_wenetspeech(folder / "wenetspeech")
    write_librispeech(folder / "LibriSpeech")
    write_must_c(folder / "must-c")
    for pair in ("de-en", "es-en"):
        write_iwslt14(folder / "iwslt14" / pair, pair)


def documented_commands() -> list[list[str]]:
    lines = [line for block in blocks(OWN_DATA, "bash") for line in block.splitlines()]
    return [shlex.split(line, comments=True) for line in lines if line]


def write_alignment(folder: Path, speaker: str, name: str, words: list[str]) -> None:
    """What pocketsphinx does not find, and other aligners would: when the tones are heard."""
    times = [(word, 0.6 * k) for k, word in enumerate(words)]
    (folder / "exp" / "tri3_ali").mkdir(parents=True, exist_ok=True)
    with (folder / "exp" / "tri3_ali" / "ctm").open("a") as file:
        file.writelines(f"{speaker}-{name} 1 {start_s:.2f} 0.60 {word} 1.00\n" for word, start_s in times)
    intervals = "\n".join(f'{start_s}\n{start_s + 0.6}\n"{word}"' for word, start_s in times)
    (folder / "aligned" / speaker).mkdir(parents=True, exist_ok=True)
    (folder / "aligned" / speaker / f"{name}.TextGrid").write_text(
        'File type = "ooTextFile"\nObject class = "TextGrid"\n\n0\n1.2\n<exists>\n1\n'
        f'"IntervalTier"\n"words"\n0\n1.2\n2\n{intervals}\n'
    )


@pytest.mark.slow
def test_from_a_folder_to_a_report(folder):
    write_manifests, recognize = blocks(OWN_DATA, "python")
    exec(compile(write_manifests, OWN_DATA.name, "exec"), {})
    for recipe in blocks(OWN_DATA, "yaml"):
        name = re.match(r"# (\S+\.yaml)\n", recipe)[1]
        (folder / name).write_text(recipe)
        load_recipe(Path(name))

    said = {}
    for program, *words in documented_commands():
        if program == "pip":
            continue
        assert program == "brctc"
        small = (*TINY, *(ONLINE if "online" in words[1] else OFFLINE))
        extra = {"train": ("--set", *small), "evaluate": QUICK}.get(words[0], ())
        found = brctc(folder, *words, *extra)
        assert found.code == 0, f"{words}: {found.err}"
        said[" ".join(words)] = found

    prepared = next(found for command, found in said.items() if command.startswith("prepare"))
    assert [line.split()[:2] for line in prepared.out.splitlines()[1:4]] == [
        ["train", "24"],
        ["dev", "4"],
        ["test", "4"],
    ]
    aligned = said["reference-times data/test.tsv --out data/test.tsv"]
    assert aligned.out.split()[5:7] == ["4", "0"]  # tones are no words
    assert aligned.out.count("no alignment found") == 4
    known = (WordTime("", 0.0, 0.6), WordTime("", 0.6, 1.2))
    for row in read_manifest(folder / "data" / "test.tsv"):  # imported
        assert tuple(time._replace(word="") for time in row.word_times) == known
    again = said["reference-times data/test.tsv --from-textgrids aligned --out data/test.tsv"]
    assert "distance from the 8 times that were known before" in again.out
    assert said["decode exp/early recordings/anna/0001.wav"].out.startswith("0001\t")
    with_references = said["decode exp/early --manifest data/test.tsv --jsonl results.jsonl"]
    assert "char error rate" in with_references.err
    assert "word error rate" in with_references.err
    assert len((folder / "results.jsonl").read_text().splitlines()) == 4
    assert len(list((folder / "subtitles").iterdir())) == 4
    assert json.loads((folder / "evaluation.json").read_text())["systems"][1]["trims"]
    page = (folder / "report.html").read_text()
    assert "<svg" in page
    assert "brctc report exp/plain exp/early" in page
    assert "brctc latency exp/online exp/online-early" in (folder / "latency.html").read_text()
    assert said["stream exp/online-early recordings/anna/0001.wav --fast"].out.startswith("0001\t")
    exec(compile(recognize, OWN_DATA.name, "exec"), {})
    texts = Prepared(folder / "data/prepared/texts", "test").examples[0].texts
    assert texts == {"source": GERMAN[0], "translation": ENGLISH[0]}
    for corpus, said_first in (("talks", GERMAN[0]), ("spoken", ENGLISH[0])):
        found = Prepared(folder / "data/prepared" / corpus, "dev").examples[0].texts
        assert found == {
            "transcript": said_first,
            "translation": {GERMAN[0]: ENGLISH[0], ENGLISH[0]: GERMAN[0]}[said_first],
        }
