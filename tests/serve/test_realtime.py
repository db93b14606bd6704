"""OpenAI's realtime transcription, by the messages as published."""

import asyncio
import base64
import json

import numpy as np
from websockets.asyncio.client import connect

from tests.decode.streams import sound
from tests.serve.serving import append, expected, pcm16

PATH = "/v1/realtime?intent=transcription"
PART = "conversation.item.input_audio_transcription."
FORMAT = {"type": "audio/pcm", "rate": 16000}
UPDATE = {
    "type": "session.update",
    "session": {"type": "transcription", "audio": {"input": {"format": FORMAT}}},
}


async def until(websocket, kind):
    """All events up to the first of a kind."""
    events = []
    async for message in websocket:
        events.append(json.loads(message))
        if events[-1]["type"] == kind:
            return events
    raise AssertionError(f"closed before {kind}: {websocket.close_reason}")


async def transcribe(server, samples, path=PATH, rate=16000):
    async with connect(server.url(path, "ws")) as websocket:
        (created,) = await until(websocket, "session.created")
        assert created["session"]["audio"]["input"]["format"] == {"type": "audio/pcm", "rate": 24000}
        update = json.loads(json.dumps(UPDATE))
        update["session"]["audio"]["input"]["format"]["rate"] = rate
        await websocket.send(json.dumps(update))
        (updated,) = await until(websocket, "session.updated")
        assert updated["session"]["audio"]["input"]["format"]["rate"] == rate
        for part in np.array_split(samples, 20):
            await websocket.send(append(part))
        await websocket.send('{"type": "input_audio_buffer.commit"}')
        first = await until(websocket, f"{PART}completed")
        for part in np.array_split(samples, 3):  # another utterance, from the beginning
            await websocket.send(append(part))
        await websocket.send('{"type": "input_audio_buffer.commit"}')
        return first, await until(websocket, f"{PART}completed")


def test_deltas_add_up_to_the_transcript(server, models):
    samples = sound(0, 2.0)
    _, text = expected(models / "plain", pcm16(samples).astype(np.float32) / 32768)
    items = set()
    for events in asyncio.run(transcribe(server, samples)):
        assert events[-1]["transcript"] == text
        assert "".join(e["delta"] for e in events if e["type"] == f"{PART}delta") == text
        kinds = [event["type"] for event in events]
        assert kinds[0] == "input_audio_buffer.speech_started"
        order = ["input_audio_buffer.speech_stopped", "input_audio_buffer.committed", f"{PART}completed"]
        assert kinds[-3:] == order
        (item,) = {event["item_id"] for event in events}
        items.add(item)
        assert len({event["event_id"] for event in events}) == len(events)
    assert len(items) == 2


def test_another_rate_and_model(server, models):
    samples = sound(1, 1.5)
    _, text = expected(models / "early", pcm16(samples).astype(np.float32) / 32768, 24000)
    (events, _) = asyncio.run(transcribe(server, samples, f"{PATH}&model=early", 24000))
    assert events[-1]["transcript"] == text


def test_a_bad_event_is_answered_and_the_stream_goes_on(server, models):
    odd = base64.b64encode(b"abc").decode()
    bad = [
        ("{", "not JSON"),
        ("[1]", "an event is a JSON object with a type"),
        ('{"type": "response.create"}', "'response.create' is no event that is known here"),
        ('{"type": "input_audio_buffer.append"}', "audio is missing"),
        ('{"type": "input_audio_buffer.append", "audio": "*"}', "audio is not base64"),
        (json.dumps({"type": "input_audio_buffer.append", "audio": odd}), "3 bytes, which are no PCM16"),
        ('{"type": "session.update", "session": {"input_audio_format": "g711_ulaw"}}', "'g711_ulaw' is not"),
        (json.dumps(UPDATE).replace("16000", "1"), "a sample rate of 1 Hz"),
        (json.dumps(UPDATE).replace("16000", '"x"'), "the sample rate is 'x'"),
    ]
    samples = sound(0, 1.5)

    async def call():
        async with connect(server.url(PATH, "ws")) as websocket:
            await until(websocket, "session.created")
            for message, problem in bad:
                await websocket.send(message)
                (event,) = await until(websocket, "error")
                assert problem in event["error"]["message"]
            await websocket.send(append(samples))
            await websocket.send('{"type": "input_audio_buffer.commit"}')
            return await until(websocket, f"{PART}completed")

    _, text = expected(models / "plain", pcm16(samples).astype(np.float32) / 32768, 24000)
    assert asyncio.run(call())[-1]["transcript"] == text
