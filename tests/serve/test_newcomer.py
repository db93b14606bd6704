"""A newcomer's path: train, export, sherpa-onnx, a server with its clients, the page. All hear the same."""

import asyncio
import base64
import json

import numpy as np
import pytest
import soundfile

from brctc.data.audio import load_audio
from tests.cli.commands import brctc
from tests.data.sounds import write, write_digits
from tests.serve.browser import CHROMIUM, browser
from tests.serve.serving import segments_of, serving, sherpa
from tests.serve.test_realtime import PART, UPDATE, connect, until

SMALL = (
    "corpus.source=audiomnist",
    "corpus.prepared=prepared",
    "corpus.train_strings=300",
    "corpus.dev_strings=8",
    "corpus.test_strings=8",
    "corpus.max_digits=4",
    "corpus.dev_speakers=1",
    "corpus.test_speakers=1",
    "model.encoder.dim=32",
    "model.encoder.feed_forward_dim=64",
    "model.encoder.layers=2",
    "model.encoder.subsampling_channels=4",
    "model.decoders=null",
    "stages.only.losses={ctc: {kind: ctc}}",
    "stages.only.steps=250",
    "checkpoints={every_steps: 125, keep: 2, average: 1}",
    "batch.seconds=40",
    "monitor={dev_utterances: 4, snapshot_steps: [], tensorboard: false}",
)
SAID = (3, 1, 4, 1, 5)


def say(folder):
    """Digits of a speaker of the training set, with pauses, and silence at the end."""
    parts = [np.zeros(3200, np.float32)]
    for digit in SAID:
        parts += [load_audio(folder / f"01/{digit}_01_0.wav", 16000), np.zeros(3200, np.float32)]
    return np.concatenate([*parts, np.zeros(16000, np.float32)])


def in_sherpa_onnx(folder, samples):
    """By its own Python API, told by export.json."""
    import sherpa_onnx

    about = json.loads((folder / "export.json").read_text())["sherpa"]
    kind, factory = about["factory"].split(".")
    files = {k: str(folder / v) for k, v in about["arguments"].items() if isinstance(v, str)}
    recognizer = getattr(getattr(sherpa_onnx, kind), factory)(**about["arguments"] | files)
    stream = recognizer.create_stream()
    stream.accept_waveform(16000, samples)
    stream.input_finished()
    while recognizer.is_ready(stream):
        recognizer.decode_stream(stream)
    return recognizer.get_result(stream).strip()


async def in_real_time(server, path):
    """By OpenAI's realtime transcription."""
    samples, _ = soundfile.read(path, dtype="int16")
    async with connect(server.url("/v1/realtime?intent=transcription", "ws")) as websocket:
        await until(websocket, "session.created")
        await websocket.send(json.dumps(UPDATE))
        await until(websocket, "session.updated")
        for part in np.array_split(samples, 20):
            audio = base64.b64encode(part.tobytes()).decode()
            await websocket.send(json.dumps({"type": "input_audio_buffer.append", "audio": audio}))
        await websocket.send('{"type": "input_audio_buffer.commit"}')
        return (await until(websocket, f"{PART}completed"))[-1]["transcript"]


async def on_a_page(url, path):
    async with browser(url, path) as page:
        await page.until("document.body?.dataset.state === 'ready'")
        await page.choose("#file", path)
        await page.until("document.body?.dataset.state === 'done'")
        return await page.run("document.querySelector('.text').innerText.trim()")


@pytest.mark.slow
def test_all_hear_the_same(tmp_path):
    write_digits(tmp_path / "audiomnist")
    path = write(tmp_path / "said.wav", say(tmp_path / "audiomnist"))
    samples, _ = soundfile.read(path, dtype="float32")  # of 16 bits: the same for all
    trained = brctc(tmp_path, "train", "digit-strings/online", "--out", "exp/online", "--set", *SMALL)
    assert trained.code == 0, trained.err
    decoded = brctc(tmp_path, "decode", "exp/online", path)
    text = decoded.out.rstrip("\n").partition("\t")[2]
    assert len(text.split()) >= 3, decoded.err  # it has learnt to say something
    for form in ("onnx", "sherpa"):
        exported = brctc(tmp_path, "export", "exp/online", "--out", form, "--for", form)
        assert exported.code == 0, exported.err
    heard = {"sherpa-onnx": in_sherpa_onnx(tmp_path / "sherpa", samples)}
    heard["onnx"] = brctc(tmp_path, "decode", "onnx", path).out.rstrip("\n").partition("\t")[2]
    with serving(tmp_path, "exp/online", "--pause-seconds", 5, "--silence-seconds", 5) as server:
        found = asyncio.run(sherpa(server, samples))
        heard["sherpa's client"] = " ".join(result["text"] for result in segments_of(found).values())
        posted = server.post({"file": ("said.wav", path.read_bytes()), "model": "online"})
        heard["OpenAI's form"] = json.loads(posted.data)["text"]
        heard["OpenAI's realtime"] = asyncio.run(in_real_time(server, path))
        if CHROMIUM:
            heard["the page"] = asyncio.run(on_a_page(server.url("/"), path))
    assert heard == dict.fromkeys(heard, text)
