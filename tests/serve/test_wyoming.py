"""Wyoming, with its own client library."""

import asyncio
import json

import numpy as np
import pytest
from wyoming.asr import Transcribe, Transcript
from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.client import AsyncTcpClient
from wyoming.info import Describe, Info

from tests.decode.streams import sound
from tests.serve.serving import expected, pcm16


async def transcribe(server, samples, model=None, rate=16000, channels=1):
    async with AsyncTcpClient("127.0.0.1", server.wyoming_port) as client:
        await client.write_event(Transcribe(name=model).event())
        await client.write_event(AudioStart(rate, 2, channels).event())
        for part in np.array_split(samples, 10):
            await client.write_event(AudioChunk(rate, 2, channels, pcm16(part).tobytes()).event())
        await client.write_event(AudioStop().event())
        events = []
        while not events or events[-1].type != "transcript-stop":
            events.append(await client.read_event())
            assert events[-1] is not None
        return events


def test_describe(server):
    async def call():
        async with AsyncTcpClient("127.0.0.1", server.wyoming_port) as client:
            await client.write_event(Describe().event())
            return Info.from_event(await client.read_event())

    (program,) = asyncio.run(call()).asr
    assert program.supports_transcript_streaming
    assert [model.name for model in program.models] == ["plain", "early"]


@pytest.mark.parametrize("model", [None, "early"])
def test_a_transcript_as_it_grows(server, models, model):
    samples = pcm16(sound(0, 2.0)).astype(np.float32) / 32768
    _, text = expected(models / (model or "plain"), pcm16(samples).astype(np.float32) / 32768)
    events = asyncio.run(transcribe(server, samples, model))
    kinds = [event.type for event in events]
    assert (kinds[0], kinds[-2:]) == ("transcript-start", ["transcript", "transcript-stop"])
    assert Transcript.from_event(events[-2]).text == text
    assert "".join(e.data["text"] for e in events if e.type == "transcript-chunk") == text


def test_two_channels_of_another_rate(server, models):
    samples = pcm16(sound(1, 2.0)).astype(np.float32) / 32768
    both = np.stack([samples, samples], 1)
    _, text = expected(models / "plain", pcm16(samples).astype(np.float32) / 32768, 8000)
    events = asyncio.run(transcribe(server, both, None, 8000, 2))
    assert Transcript.from_event(events[-2]).text == text


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"{\n", "Expecting"),
        (b"[]\n", "an event is a JSON object"),
        (
            b'{"type": "audio-chunk", "payload_length": 99999999999}\n',
            "has 99999999999 bytes, expected at most",
        ),
        (
            b'{"type": "audio-start", "data": {"rate": 16000, "width": 3, "channels": 1}}\n',
            "audio of 3 bytes",
        ),
        (
            b'{"type": "audio-start", "data": {"rate": 5, "width": 2, "channels": 1}}\n',
            "a sample rate of 5 Hz",
        ),
        (b"x" * 100_000, ""),
    ],
)
def test_what_is_no_event(server, line, problem):
    async def call():
        reader, writer = await asyncio.open_connection("127.0.0.1", server.wyoming_port)
        writer.write(line)
        return await asyncio.wait_for(reader.read(), 10)

    header, _, data = asyncio.run(call()).partition(b"\n")
    assert json.loads(header)["type"] == "error"
    assert problem in json.loads(data)["text"]
    assert server.empties()
