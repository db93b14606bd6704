"""`brctc stream`: what it prints in a pipe and on a terminal, and what it refuses."""

import os
import pty
import re
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import numpy as np
import pytest
import torch
from rich.cells import cell_len

from brctc.cli import stream
from brctc.data import FeatureConfig, TokenConfig, Tokenizer, extract_features, load_audio
from brctc.decode import StreamingRecognizer
from brctc.models import ConformerConfig, EmformerConfig, System, SystemConfig, save_model
from tests.cli.commands import brctc
from tests.data.sounds import noise, write
from tests.data.test_microphone import Card


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two noises, one of another rate, an untrained online model, and one that is not online."""
    folder = tmp_path_factory.mktemp("stream")
    loud_and_quiet = noise(2.0) * np.repeat([0.01, 1, 0.1, 0.5, 0.03], 6400).astype(np.float32)
    write(folder / "u0.wav", loud_and_quiet)
    write(folder / "u1.wav", noise(0.8, 1, 8000), 8000)
    (folder / "notes.txt").write_text("no audio")
    small = {"dim": 16, "heads": 2, "feed_forward_dim": 16, "subsampling_channels": 4}
    tokenizer = Tokenizer.train(["one two six"], TokenConfig(kind="word"))
    torch.manual_seed(1)
    for name, encoder in (
        ("online", EmformerConfig(layers=1, chunk_frames=4, right_context_frames=2, **small)),
        ("offline", ConformerConfig(first_layers=1, second_layers=1, kernel_size=3, **small)),
    ):
        system = System(SystemConfig(encoder=encoder), 80, {"transcript": tokenizer.size})
        features = torch.from_numpy(extract_features(loud_and_quiet, FeatureConfig()))
        system.set_statistics(features.mean(0), features.std(0) / 2)
        with torch.no_grad():
            system.heads["transcript"].bias[1] = -100  # it shall say words that it knows
        save_model(folder / name, system, {"transcript": tokenizer}, FeatureConfig())
    return folder


def lines(found):
    return [line.split("\t") for line in found.out.splitlines()]


def check_lines(found, names):
    """The tokens of each file, then its text."""
    rest = lines(found)
    for name in names:
        tokens = [line[1:] for line in rest if line[0] == name and len(line) == 5]
        assert rest[: len(tokens) + 1] == [[name, *token] for token in tokens] + [
            [name, " ".join(piece for piece, *_ in tokens)]
        ]
        del rest[: len(tokens) + 1]
        for _, said_s, known_s, latency_ms in tokens:
            assert 1000 * (float(known_s) - float(said_s)) == pytest.approx(float(latency_ms), abs=11)
        assert f"{name}: latency " in found.err
        yield tokens
    assert rest == []


def test_fast_in_a_pipe(folder):
    found = brctc(folder, "stream", "online", "u0.wav", "u1.wav", "--fast")
    assert found.code == 0, found.err
    first, second = check_lines(found, ["u0", "u1"])
    assert len(first) > 2
    assert second
    decoded = brctc(folder, "decode", "online", "u0.wav", "u1.wav", "--method", "ctc")
    assert [line for line in lines(found) if len(line) == 2] == lines(decoded)
    # 4 frames of 40 ms and 2 behind them, but at the end of the audio; and a little computation
    assert all(0 <= float(latency_ms) <= 240 + 100 for *_, latency_ms in first)


def test_in_real_time(folder):
    found = brctc(folder, "stream", "online", "u0.wav")
    assert found.code == 0, found.err
    (tokens,) = check_lines(found, ["u0"])
    (fast,) = check_lines(brctc(folder, "stream", "online", "u0.wav", "--fast"), ["u0"])
    assert [token[:2] for token in tokens] == [token[:2] for token in fast]
    for (*_, known_s, _), (*_, heard_s, _) in zip(tokens, fast, strict=True):
        assert float(known_s) == pytest.approx(float(heard_s), abs=0.15)  # as the simulated clock says


def test_forced_colours_are_not_for_files(folder):
    plain = brctc(folder, "stream", "online", "u0.wav", "--fast")
    forced = brctc(folder, "stream", "online", "u0.wav", "--fast", FORCE_COLOR="1", TERM="xterm")
    (wanted,), (found,) = check_lines(plain, ["u0"]), check_lines(forced, ["u0"])
    assert [token[:2] for token in found] == [token[:2] for token in wanted]


@contextmanager
def terminal(monkeypatch, columns=80, lines=24):
    """stdout is a terminal, whose output is the list's only item at the end."""
    for name, value in (("TERM", "xterm"), ("COLUMNS", columns), ("LINES", lines)):
        monkeypatch.setenv(name, str(value))
    reader, writer = pty.openpty()
    shown = []
    with ThreadPoolExecutor(1) as pool, open(writer, "w") as out, monkeypatch.context() as patch:
        reading = pool.submit(read_all, reader)
        patch.setattr(sys, "stdout", out)
        yield shown
        out.close()
        shown.append(reading.result())


def read_all(reader):
    parts = []
    while True:
        try:
            parts.append(os.read(reader, 1 << 16))
        except OSError:  # the other side is closed
            os.close(reader)
            return b"".join(parts).decode()


def partial_texts(shown):
    """What was in bold, one after the other."""
    return re.findall("\x1b\\[1m(.*?)\x1b\\[0m", shown, flags=re.S)


def test_on_a_terminal(folder, monkeypatch):
    with terminal(monkeypatch) as shown:
        stream.Command(model=folder / "online", audio=(folder / "u0.wav",), fast=True).run()
    (text,) = shown
    assert text.startswith("file\ttoken")
    *_, final = text.splitlines()
    assert "u0\t" in final
    texts = partial_texts(text)
    assert len(texts) > 5  # the text so far, more than once
    assert final.endswith(texts[-1])


@pytest.mark.parametrize("word", ["seven", "七"])
def test_a_long_text_shows_its_end(monkeypatch, word):
    said = [f"{word} {number}" for number in range(100, 150)]
    with terminal(monkeypatch, columns=20, lines=4) as shown, stream.partial_text() as show:
        for count in range(1, 51):
            show(partial(" ".join, said[:count]))
    texts = partial_texts(shown[0])
    assert texts[49].endswith(f" {said[-1]}")
    assert all(cell_len(text) <= 20 for text in texts)


def test_lost_audio_is_told(folder, monkeypatch, capsys):
    class Stopped(Card):
        def read(self, block):
            if self.reads == 20:
                signal.raise_signal(signal.SIGINT)
            return super().read(block)

    monkeypatch.setitem(sys.modules, "sounddevice", Stopped(lost_before=(7, 8)))
    stream.Command(model=folder / "online", microphone=True).run()
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "listening; Ctrl-C ends it"
    for lost in said[1:3]:
        assert lost.startswith("audio was lost here (input overrun: slower than real time)")
        assert lost.endswith("latencies from now on include the gap")
    assert not any("lost" in line for line in said[3:])


def test_microphone_as_a_file_gives_it(folder, capsys):
    """The blocks come from a file, at once; then Ctrl-C."""
    recognizer = StreamingRecognizer.from_directory(folder / "online")
    samples = load_audio(folder / "u0.wav", recognizer.sample_rate)

    def blocks():
        yield from np.split(samples, 200)
        signal.raise_signal(signal.SIGINT)  # whatever is being done then
        yield samples[:0]
        raise AssertionError("it has been stopped")

    stream.listen(recognizer, blocks())
    found = capsys.readouterr()
    assert found.err.startswith("listening; Ctrl-C ends it\nmicrophone: latency ")
    *tokens, text = lines(found)
    assert {len(token) for token in tokens} == {5}
    assert text == ["microphone", recognizer.text]
    (decoded,) = lines(brctc(folder, "decode", "online", "u0.wav", "--method", "ctc"))
    assert decoded[1] == recognizer.text


def test_no_microphone(folder):
    """Here is none; what is missing for it is named."""
    found = brctc(folder, "stream", "online", "--microphone")
    assert found.code == 2
    extra = r"brctc needs sounddevice here: in its checkout, pip install '.\[mic\]'"
    library, device = "PortAudio library not found: .*libportaudio2", "there is no microphone that records"
    assert re.match(f"brctc stream: ({extra}|{library}|{device})", found.err)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("offline", "u0.wav"),
            "streams need a streaming encoder (kind: emformer), the system has a conformer",
        ),
        (("online", "nowhere.wav"), "nowhere.wav: no such file"),
        (("online", "notes.txt"), "notes.txt: not readable as audio"),
        (("online", "u0.wav", "nowhere.wav", "."), "nowhere.wav: no such file\n  .: is a directory"),
        (("online",), "give either AUDIO files or --microphone"),
        (("online", "u0.wav", "--microphone"), "give either AUDIO files or --microphone"),
        (("online", "--microphone"), "--fast is for files: a microphone has its own time"),
        (("nowhere", "u0.wav"), "nowhere holds no model"),
    ],
)
def test_refusals(folder, arguments, message):
    found = brctc(folder, "stream", *arguments, "--fast")
    assert (found.code, found.out) == (2, "")  # before anything plays
    assert found.err.startswith(f"brctc stream: {message}")
    assert "Traceback" not in found.err
