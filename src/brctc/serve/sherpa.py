"""sherpa's websocket protocol: float32 samples in, then `Done`; results out as JSON, then `Done!`.

`?sample_rate=48000` and `?model=NAME` are additions, and so are `words`, `latencies` and what ends in `_s`.
"""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from starlette.websockets import WebSocket

from brctc.decode import Segment, StreamedToken
from brctc.serve.engine import Update
from brctc.serve.hub import Hub
from brctc.serve.live import Message, run_stream
from brctc.serve.session import Session, StreamError


async def stream(websocket: WebSocket) -> None:
    """An endpoint of starlette."""
    hub: Hub = websocket.app.state.hub
    rate = websocket.query_params.get("sample_rate")
    if rate is not None and not (rate.isascii() and rate.isdigit() and len(rate) < 10):
        raise hub.refuse(400, "bad-rate", f"sample_rate is {rate!r}, expected a number of Hz")
    model = websocket.query_params.get("model")
    session = hub.open("sherpa", model, None if rate is None else int(rate))
    try:
        await websocket.accept(websocket.scope.get("brctc.subprotocol"))
        talk = SherpaTalk(websocket, session)
        await run_stream(websocket, session, hub.options.idle_s, talk.hear, talk.say)
    finally:
        session.close()


class SherpaTalk:
    """What is said on one websocket."""

    def __init__(self, websocket: WebSocket, session: Session) -> None:
        self._websocket, self._session = websocket, session
        self._said = False

    async def hear(self, message: Message) -> None:
        """Samples, or the end."""
        if isinstance(message, str):
            if message != "Done":
                raise StreamError("message", "a text that is not Done")
            self._session.mark("end")
            return
        if len(message) % 4:
            raise StreamError("bad-audio", f"{len(message)} bytes are no float32 samples")
        await self._session.push(np.frombuffer(message, "<f4"))

    async def say(self, update: Update) -> None:
        """Segments that have ended, and the one that goes on."""
        for segment in update.segments:
            await self._send(final_result(segment))
        if update.tokens and update.current:
            number = update.current_number
            await self._send(result(number, update.start_s, update.text, update.current, is_final=False))
        if update.done:
            if not self._said:  # clients take the last message for the text
                await self._send(result(0, 0.0, "", (), is_final=True))
            await self._websocket.send_text("Done!")

    async def _send(self, content: dict[str, Any]) -> None:
        self._said = True
        await self._websocket.send_text(json.dumps(content, ensure_ascii=False))


def result(
    number: int, start_s: float, text: str, tokens: Sequence[StreamedToken], is_final: bool
) -> dict[str, Any]:
    """As sherpa has it. Time stamps are counted from the segment's start, and are where tokens fire."""
    return {
        "text": text,
        "tokens": [token.piece for token in tokens],
        "timestamps": [round(token.fired_s - start_s, 3) for token in tokens],
        "latencies": [round(token.latency_s, 3) for token in tokens],
        "start_time": round(start_s, 3),
        "segment": number,
        "is_final": is_final,
    }


def final_result(segment: Segment) -> dict[str, Any]:
    """Of a segment that has ended: with its words, why it has ended, and how long that took to know."""
    content = result(segment.number, segment.start_s, segment.text, segment.tokens, is_final=True)
    words = [{"word": w, "start": round(a, 3), "end": round(b, 3)} for w, a, b in segment.word_times]
    ends = {"end_s": round(segment.end_s, 3), "reason": segment.reason}
    return content | {"words": words, **ends, "end_latency_s": round(segment.latency_s, 3)}
