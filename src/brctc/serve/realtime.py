"""OpenAI's `/v1/realtime?intent=transcription`: PCM16 as base64 in JSON events, transcripts as events."""

import base64
import binascii
import json
import uuid
from typing import Any

import numpy as np
from starlette.websockets import WebSocket

from brctc.serve.engine import Update
from brctc.serve.hub import Hub
from brctc.serve.live import Message, run_stream
from brctc.serve.session import Session, StreamError

DEFAULT_RATE = 24000  # the published one; session.update changes it
TRANSCRIPTION = "conversation.item.input_audio_transcription"


async def realtime(websocket: WebSocket) -> None:
    """An endpoint of starlette."""
    hub: Hub = websocket.app.state.hub
    intent = websocket.query_params.get("intent", "transcription")
    if intent != "transcription":
        raise hub.refuse(400, "intent", f"intent is {intent!r}, but only transcription is served")
    session = hub.open("openai", websocket.query_params.get("model"), DEFAULT_RATE)
    try:
        await websocket.accept(websocket.scope.get("brctc.subprotocol"))
        talk = RealtimeTalk(websocket, session)
        await talk.greet()
        await run_stream(websocket, session, hub.options.idle_s, talk.hear, talk.say, talk.complain)
    finally:
        session.close()


class EventError(Exception):
    """An event that is answered by an error; the stream goes on."""


class RealtimeTalk:
    """What is said on one websocket: an item for every segment."""

    def __init__(self, websocket: WebSocket, session: Session) -> None:
        self._websocket, self._session = websocket, session
        self._id = f"sess_{uuid.uuid4().hex}"
        self._item: str | None = None
        self._previous: str | None = None
        self._sent = ""  # of the present item

    async def greet(self) -> None:
        """Says what the session is."""
        await self._send("session.created", session=self._describe())

    def _describe(self) -> dict[str, Any]:
        rules = self._session.online.rules
        pause_ms = None if rules is None or rules.pause_s is None else round(1000 * rules.pause_s)
        audio = {
            "format": {"type": "audio/pcm", "rate": self._session.sample_rate},
            "transcription": {"model": self._session.model},
            "turn_detection": None
            if pause_ms is None
            else {"type": "server_vad", "silence_duration_ms": pause_ms},
        }
        session = {"object": "realtime.session", "type": "transcription", "id": self._id}
        return session | {"audio": {"input": audio}}

    async def hear(self, message: Message) -> None:
        """An event of the client; a bad one is answered, and the stream goes on."""
        try:
            event = json.loads(message)
            if not isinstance(event, dict) or not isinstance(event.get("type"), str):
                raise EventError("an event is a JSON object with a type")
            await self._handle(event["type"], event)
        except (ValueError, RecursionError, EventError) as error:
            text = "not JSON" if isinstance(error, json.JSONDecodeError | UnicodeDecodeError) else str(error)
            await self._send("error", error={"type": "invalid_request_error", "message": text})

    async def _handle(self, kind: str, event: dict[str, Any]) -> None:
        if kind == "input_audio_buffer.append":
            await self._session.push(self._samples(event.get("audio")))
        elif kind == "input_audio_buffer.commit":
            self._session.mark("flush")
        elif kind in ("session.update", "transcription_session.update"):
            self._update(event.get("session"))
            await self._send(f"{kind}d", session=self._describe())
        else:
            raise EventError(f"{kind!r} is no event that is known here")

    def _samples(self, audio: Any) -> np.ndarray:
        if not isinstance(audio, str):
            raise EventError("audio is missing: base64 of PCM16")
        try:
            data = base64.b64decode(audio, validate=True)
        except (binascii.Error, ValueError):
            raise EventError("audio is not base64") from None
        if len(data) % 2:
            raise EventError(f"audio has {len(data)} bytes, which are no PCM16 samples")
        return np.frombuffer(data, "<i2").astype(np.float32) / 32768

    def _update(self, session: Any) -> None:
        """The sample rate; what else a client may say is not for this server to change."""
        try:
            wanted = session["audio"]["input"]["format"]
            rate, kind = wanted.get("rate", DEFAULT_RATE), wanted.get("type", "audio/pcm")
        except (TypeError, KeyError, AttributeError):
            kind = session.get("input_audio_format", "pcm16") if isinstance(session, dict) else None
            rate = None
        if kind not in ("audio/pcm", "pcm16"):
            raise EventError(f"audio of type {kind!r} is not taken, but audio/pcm")
        if rate is not None:
            try:
                self._session.set_rate(rate)
            except TypeError as error:
                raise EventError(str(error)) from None

    async def say(self, update: Update) -> None:
        """Deltas of the present item, and whole transcripts of those that have ended."""
        for segment in update.segments:
            await self._begin(update.base_s + segment.tokens[0].fired_s)
            await self._grow(segment.text)
            ends = round(1000 * (update.base_s + segment.end_s))
            await self._send("input_audio_buffer.speech_stopped", item_id=self._item, audio_end_ms=ends)
            await self._complete(segment.text)
        if update.tokens and update.current:
            await self._begin(update.base_s + update.current[0].fired_s)
            await self._grow(update.text)
        if update.flushed and not update.segments and self._sent == "" and not update.done:
            await self._complete("")  # whoever commits silence is told so

    async def complain(self, error: StreamError) -> None:
        """The last event before the websocket is closed."""
        await self._send("error", error={"type": "server_error", "code": error.kind, "message": str(error)})

    async def _begin(self, start_s: float) -> None:
        if self._item is None:
            self._item = f"item_{uuid.uuid4().hex}"
            starts = {"item_id": self._item, "audio_start_ms": round(1000 * start_s)}
            await self._send("input_audio_buffer.speech_started", **starts)

    async def _grow(self, text: str) -> None:
        if text.startswith(self._sent) and text != self._sent:
            delta = text[len(self._sent) :]
            self._sent = text
            await self._send(f"{TRANSCRIPTION}.delta", item_id=self._item, content_index=0, delta=delta)

    async def _complete(self, text: str) -> None:
        item = self._item or f"item_{uuid.uuid4().hex}"
        await self._send("input_audio_buffer.committed", item_id=item, previous_item_id=self._previous)
        await self._send(f"{TRANSCRIPTION}.completed", item_id=item, content_index=0, transcript=text)
        self._previous, self._item, self._sent = item, None, ""

    async def _send(self, kind: str, **content: Any) -> None:
        event = {"type": kind, "event_id": f"event_{uuid.uuid4().hex}", **content}
        await self._websocket.send_text(json.dumps(event, ensure_ascii=False))
