"""docs/export.md, command after command: exports say what their models say, here and in sherpa-onnx."""

import json
import re
import shutil

import pytest
import soundfile

from brctc.decode import Recognizer
from brctc.export.web import INSTALLED, RUNTIME_FILES
from tests.cli.commands import brctc
from tests.documents import EXPORT, ROOT, blocks
from tests.export.small import ONLINE, TRIM, recordings, save, small_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The page's models and files, and what each of its commands has said."""
    folder = tmp_path_factory.mktemp("export")
    save(small_model(trim=TRIM, seed=2), folder / "exp" / "mine")
    save(small_model(ONLINE), folder / "exp" / "online")
    recordings(folder)
    (folder / INSTALLED).mkdir(parents=True)
    for name in RUNTIME_FILES:
        (folder / INSTALLED / name).touch()
    shutil.copy(folder / "u2.wav", folder / "talk.wav")
    prepare = ("prepare", "test.tsv", "--out", "data/prepared/mine", "--jobs", 1)
    assert brctc(folder, *prepare).code == 0
    said = {}
    for line in "".join(blocks(EXPORT, "bash")).splitlines():
        found = brctc(folder, *line.split()[1:])
        assert found.code == 0, found.err
        said[line] = found.out
    return folder, said


def said_by(said, *words):
    (line,) = [line for line in said if all(word in line for word in words)]
    return said[line]


def test_graphs_are_compared_before_they_are_written(folder):
    folder, said = folder
    shown = said_by(said, "export exp/mine")
    assert re.search(r"^3000 frames: [\d.]+e-0[5-9]$", shown, re.M), shown
    assert "5 utterances of 3 to 400 frames" in shown
    assert "torch" in shown
    about = json.loads((folder / "mine-onnx" / "export.json").read_text())
    assert 0 < about["check"]["worst"] < 1e-4
    assert about["trim"] == TRIM.model_dump()
    assert set(about["files"]) == {"model.onnx", "tokens.txt"}
    shown = said_by(said, "--int8")
    assert re.search(r"int8: [\d.]+ MB of [\d.]+ \(\d+%\), the same best class in [\d.]+%", shown)


def test_nothing_of_this_machine_is_written(folder):
    folder, _ = folder
    strange = [b".py", str(folder).encode(), str(ROOT).encode(), b"site-packages", b"/home/", b"/tmp/"]
    for exported in ("mine-onnx", "online-int8", "online-page", "online-sherpa"):
        for path in (folder / exported).iterdir():
            content = path.read_bytes()
            assert not [word for word in strange if word in content], path


def test_decoding_says_the_same(folder):
    folder, said = folder
    (expected,) = Recognizer.from_directory(folder / "exp" / "mine").recognize(
        [folder / "talk.wav"], method="ctc-beam", beam=3
    )
    (found,) = Recognizer.from_directory(folder / "mine-onnx").recognize(
        [folder / "talk.wav"], method="ctc-beam", beam=3
    )
    assert said_by(said, "decode").rstrip("\n") == f"talk\t{expected.text}"
    assert expected.text
    assert (found.tokens, found.frames, found.factor) == (expected.tokens, expected.frames, expected.factor)
    assert found.factor < 1
    assert found.score == pytest.approx(expected.score, abs=1e-3)


def test_evaluation_measures_the_same(folder):
    folder, _ = folder
    first, second = json.loads((folder / "evaluation.json").read_text())["systems"]
    assert first["parameters"] == second["parameters"]
    assert first["down_sampling"] == second["down_sampling"]
    assert first["scores"] == second["scores"]


def test_streams_say_the_same_here_and_in_sherpa_onnx(folder, monkeypatch):
    """The page's snippet, as it stands."""
    folder, said = folder
    (expected,) = Recognizer.from_directory(folder / "exp" / "online").recognize([folder / "talk.wav"])
    assert len(expected.tokens) > 5
    *tokens, text = said_by(said, "stream").splitlines()
    assert text == f"talk\t{expected.text}"
    assert len(tokens) == len(expected.tokens)
    monkeypatch.chdir(folder)
    (snippet,) = blocks(EXPORT, "python")
    namespace: dict = {}
    exec(compile(snippet, "export.md", "exec"), namespace)
    recognizer, stream = namespace["recognizer"], namespace["stream"]
    frames = [round(second / 0.04) for second in recognizer.timestamps(stream)]
    words = [piece.strip(" ▁") for piece in recognizer.tokens(stream)]
    assert namespace["text"].split() == words
    # where one hears the end and the other one silence, an untrained model says other things
    known = frames_before_the_end(folder)
    here, there = (
        [(word, at) for word, at in zip(*said, strict=True) if at < known]
        for said in ((expected.text.split(), expected.frames), (words, frames))
    )
    assert there == here
    assert len(here) > 5


def frames_before_the_end(folder) -> int:
    """Encoder frames of talk.wav that no window with its last features is needed for."""
    sizes = json.loads((folder / "online-sherpa" / "export.json").read_text())["streaming"]["sizes"]
    chunk, _, hop, window = sizes
    features = soundfile.info(folder / "talk.wav").frames // 160
    return ((features - 3 - window) // hop + 1) * chunk
