"""Whole files, by OpenAI's form."""

import io
import json

import numpy as np
import pytest
import soundfile

from brctc.decode import Recognizer
from brctc.models import ConformerConfig, load_model, save_model
from tests.data.sounds import noise, write
from tests.decode.streams import make_model, sound
from tests.serve.serving import expected, serving


def encoded(samples, rate=16000, kind="FLAC"):
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=kind)
    return file.getvalue()


@pytest.fixture(scope="module")
def file(models, tmp_path_factory):
    """A file of some segments, and what it says."""
    data = encoded(sound(0, 25.0) / 4)
    samples, _ = soundfile.read(io.BytesIO(data), dtype="float32")
    segments, text = expected(models / "plain", samples)
    assert len(segments) > 1
    return data, segments, text


def test_formats(server, file):
    data, segments, text = file
    found = server.post({"file": ("a.flac", data), "model": "plain"})
    assert (found.status, json.loads(found.data)) == (200, {"text": text})
    found = server.post({"file": ("a.flac", data), "model": "plain", "response_format": "text"})
    assert found.data.decode() == text + "\n"
    fields = [
        ("file", ("a.flac", data)),
        ("model", "plain"),
        ("response_format", "verbose_json"),
        *(("timestamp_granularities[]", name) for name in ("word", "segment", "token")),
    ]
    found = json.loads(server.post(fields).data)
    assert (found["text"], found["duration"]) == (text, 25.0)
    assert [(s["text"], s["end"]) for s in found["segments"]] == [
        (s.text, pytest.approx(s.end_s, abs=1e-3)) for s in segments
    ]
    for name, times in (("word", "word_times"), ("token", "token_times")):
        wanted = [time for segment in segments for time in getattr(segment, times)]
        assert [entry[name] for entry in found[f"{name}s"]] == [time[0] for time in wanted]
        assert [entry["start"] for entry in found[f"{name}s"]] == pytest.approx(
            [time.start_s for time in wanted], abs=1e-3
        )


def test_another_rate_and_two_channels(server, models):
    samples = noise(2.0, 4, 8000)
    data = encoded(np.stack([samples, -samples / 2], 1), 8000, "WAV")
    mixed, _ = soundfile.read(io.BytesIO(data), dtype="float32", always_2d=True)
    _, text = expected(models / "early", mixed.mean(1), 8000)
    found = server.post({"file": ("a.wav", data), "model": "early"})
    assert json.loads(found.data) == {"text": text}


@pytest.mark.parametrize(
    ("fields", "status", "message"),
    [
        ({}, 400, "there is no file in the form"),
        ({"file": ("talk.wav", b"no audio")}, 400, "talk.wav: not readable as audio"),
        ({"file": ("talk.wav", b"")}, 400, "talk.wav: the file is empty"),
        ({"file": ("a", b"x"), "response_format": "srt"}, 400, "response_format is 'srt', expected one"),
        ({"file": ("a", b"x"), "timestamp_granularities[]": "bar"}, 400, "timestamp_granularities has 'bar'"),
        ({"file": ("a", b"x"), "model": "nobody"}, 404, "there is no model 'nobody'"),
        ({"file": ("a", b"x"), "stream": "true"}, 400, "/v1/realtime streams"),
    ],
)
def test_refusals(server, fields, status, message):
    found = server.post(fields or {"model": "plain"})
    assert found.status == status
    assert message in json.loads(found.data)["error"]["message"]
    assert "/tmp" not in found.data.decode()


def test_a_model_that_takes_no_streams(tmp_path):
    """It serves files; what is too large or too long is refused."""
    small = {"dim": 16, "heads": 2, "feed_forward_dim": 24, "subsampling_channels": 3, "kernel_size": 3}
    model = make_model(encoder=ConformerConfig(first_layers=1, second_layers=1, **small))
    save_model(tmp_path / "offline", model.system, model.tokenizers, model.features)
    path = write(tmp_path / "a.flac", sound(2, 2.0) / 4)
    (wanted,) = Recognizer(load_model(tmp_path / "offline")).recognize([path])
    limits = ("--max-seconds", 3, "--max-file-bytes", 200_000)
    with serving(tmp_path, "offline", *limits) as server:
        fields = {"file": ("a.flac", path.read_bytes()), "response_format": "verbose_json"}
        found = json.loads(server.post({**fields, "timestamp_granularities[]": "word"}).data)
        assert found["text"] == wanted.text
        assert [word["word"] for word in found["words"]] == [word.word for word in wanted.word_times]
        found = server.post({"file": ("a.flac", encoded(noise(3.1)))})
        assert (found.status, json.loads(found.data)["error"]["message"]) == (413, "more than 3 s of audio")
        found = server.post({"file": ("a.wav", encoded(noise(10.0), kind="WAV"))})
        assert (found.status, json.loads(found.data)["error"]["message"]) == (413, "more than 200000 bytes")
        assert json.loads(server.get("/v1/models").data)["data"][0]["streams"] is False
