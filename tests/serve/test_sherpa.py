"""sherpa's protocol: the text of a stream is what it is without a server."""

import asyncio
import json
from contextlib import suppress

import numpy as np
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.data.sounds import noise
from tests.decode.streams import sound
from tests.serve.serving import expected, segments_of, sherpa, text_of


def said(segments):
    return [(s.number, s.text, [t.piece for t in s.tokens], s.reason) for s in segments]


def test_a_stream_says_what_it_says_without_a_server(server, models):
    samples = np.concatenate([sound(0, 2.0), np.zeros(32000, np.float32), sound(1, 22.0)])
    wanted, text = expected(models / "plain", samples)
    assert len(wanted) > 1
    found = asyncio.run(sherpa(server, samples))
    last = segments_of(found)
    assert all(result["is_final"] for result in last.values())
    assert [(n, r["text"], r["tokens"], r["reason"]) for n, r in last.items()] == said(wanted)
    assert text_of(found) == text
    for segment, result in zip(wanted, last.values(), strict=True):
        fired = [token.fired_s - segment.start_s for token in segment.tokens]
        assert result["timestamps"] == pytest.approx(fired, abs=1e-3)
        assert [w["word"] for w in result["words"]] == [w.word for w in segment.word_times]
    partial = [result for result in found if not result["is_final"]]
    assert partial
    for result in partial:  # the text only grows
        assert last[result["segment"]]["text"].startswith(result["text"])


@pytest.mark.parametrize("rate", [8000, 44100])
def test_another_rate(server, models, rate):
    samples = noise(3.0, 2, rate)
    _, text = expected(models / "plain", samples, rate)
    assert text_of(asyncio.run(sherpa(server, samples, f"/?sample_rate={rate}"))) == text


def test_many_at_once(server, models):
    """Each gets its own text, of its own model; they share turns."""
    before = server.metric("brctc_batch_size_count")

    async def all_of_them():
        calls = [
            sherpa(server, sound(n, 2.0), f"/?model={'early' if n % 2 else 'plain'}", 800, 0.005)
            for n in range(12)
        ]
        return await asyncio.gather(*calls)

    for n, found in enumerate(asyncio.run(all_of_them())):
        _, text = expected(models / ("early" if n % 2 else "plain"), sound(n, 2.0))
        assert text_of(found) == text
    assert server.metric("brctc_batch_size_sum") > server.metric("brctc_batch_size_count") - before
    assert server.metric("brctc_spike_to_send_seconds_count") > 0
    assert server.empties()


def test_silence_has_an_empty_text(server):
    (result,) = asyncio.run(sherpa(server, np.zeros(0)))
    assert (result["text"], result["is_final"]) == ("", True)


@pytest.mark.parametrize(
    ("messages", "code", "reason"),
    [
        ([np.full(9, np.nan, "<f4").tobytes()], 1007, "sample 0 of the stream is nan, expected -1 to 1"),
        ([np.full(9, 1e9, "<f4").tobytes()], 1007, "sample 0 of the stream is 1e+09, expected -1 to 1"),
        ([b"abc"], 1007, "3 bytes are no float32 samples"),
        (["hello"], 1003, "a text that is not Done"),
        ([bytes(2 << 20)], 1009, ""),
    ],
)
def test_a_bad_client_is_closed_with_a_reason(server, models, messages, code, reason):
    """And one beside it notices nothing."""

    async def bad():
        async with connect(server.url("/", "ws")) as websocket:
            for message in messages:
                await websocket.send(message)
            with suppress(ConnectionClosed):
                async for _ in websocket:
                    pass
        return websocket.close_code, websocket.close_reason

    async def both():
        return await asyncio.gather(bad(), sherpa(server, sound(3, 2.0)))

    closed, found = asyncio.run(both())
    assert closed[0] == code
    assert closed[1].startswith(reason)
    assert text_of(found) == expected(models / "plain", sound(3, 2.0))[1]


@pytest.mark.parametrize(
    ("path", "headers", "status", "reason"),
    [
        ("/?model=nobody", {}, 404, "there is no model 'nobody', but plain, early"),
        ("/?sample_rate=12", {}, 400, "a sample rate of 12 Hz, expected 1000"),
        ("/?sample_rate=many", {}, 400, "sample_rate is 'many', expected a number"),
        ("/", {"Origin": "http://evil.example"}, 403, "a page from http://evil.example may not use"),
        ("/v1/realtime?intent=conversation", {}, 400, "only transcription is served"),
    ],
)
def test_refused_before_it_begins(server, path, headers, status, reason):
    async def call():
        with pytest.raises(InvalidStatus) as caught:
            await connect(server.url(path, "ws"), additional_headers=headers)
        return caught.value.response

    before = server.metric("brctc_refusals_total")
    response = asyncio.run(call())
    assert response.status_code == status
    assert reason in json.loads(response.body)["error"]["message"]
    assert server.metric("brctc_refusals_total") == before + 1
