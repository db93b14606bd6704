"""Wyoming, which Home Assistant speaks: JSON lines and PCM over TCP, on a port of its own."""

import asyncio
import contextlib
import json
from importlib import metadata
from typing import Any, NamedTuple

import numpy as np

from brctc.serve.hub import Hub, RefusalError
from brctc.serve.session import Session, StreamError

LONGEST_LINE = 1 << 16
VERSION = metadata.version("brctc")
WIDTHS = {2: ("<i2", 32768.0), 4: ("<i4", 2147483648.0)}


class Event(NamedTuple):
    """A line of JSON, perhaps with more JSON and with bytes behind it."""

    type: str
    data: dict[str, Any]
    payload: bytes = b""


async def read_event(reader: asyncio.StreamReader, most: int) -> Event | None:
    """The next event; None at the end. What is no event is a ValueError."""
    line = await reader.readline()
    if not line:
        return None
    header = json.loads(line)
    if not isinstance(header, dict) or not isinstance(header.get("type"), str):
        raise ValueError("an event is a JSON object with a type")
    data, lengths = (
        header.get("data") or {},
        [header.get(f"{name}_length") or 0 for name in ("data", "payload")],
    )
    if not all(isinstance(length, int) and 0 <= length <= most for length in lengths):
        raise ValueError(f"an event has {max(map(str, lengths))} bytes, expected at most {most}")
    more = json.loads(await reader.readexactly(lengths[0])) if lengths[0] else {}
    payload = await reader.readexactly(lengths[1])
    if not isinstance(data, dict) or not isinstance(more, dict):
        raise ValueError("the data of an event is a JSON object")
    return Event(header["type"], {**data, **more}, payload)


class WyomingServer:
    """Every connection says one utterance after the other."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """For `asyncio.start_server`."""
        talk = WyomingTalk(self._hub, writer)
        most = self._hub.options.max_message_bytes
        try:
            while event := await asyncio.wait_for(read_event(reader, most), self._hub.options.idle_s):
                await talk.hear(event)
        except (TimeoutError, asyncio.TimeoutError, StreamError, RefusalError, ValueError) as error:
            await talk.complain(error)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            talk.close()
            writer.close()
            with contextlib.suppress(OSError, asyncio.TimeoutError):
                await asyncio.wait_for(writer.wait_closed(), 1.0)
            writer.transport.abort()  # whoever does not read has lost it


class WyomingTalk:
    """What is said on one connection."""

    def __init__(self, hub: Hub, writer: asyncio.StreamWriter) -> None:
        self._hub, self._writer = hub, writer
        self._model: str | None = None
        self._session: Session | None = None
        self._writing: asyncio.Task[None] | None = None
        self._format = (16000, 2, 1)

    async def hear(self, event: Event) -> None:
        """An event of the client; those of other services are not ours."""
        match event.type:
            case "describe":
                await self._send("info", {"asr": [self._describe()]})
            case "ping":
                await self._send("pong", event.data)
            case "transcribe":
                self._model = event.data.get("name")
            case "audio-start":
                self.close()
                self._begin(event.data)
            case "audio-chunk":
                session = self._session or self._begin(event.data)
                self._check_writing()
                await session.push(self._samples(event.payload))
            case "audio-stop":
                await self._finish()

    def _begin(self, data: dict[str, Any]) -> Session:
        rate, width, channels = (data.get(name) for name in ("rate", "width", "channels"))
        if width not in WIDTHS or not isinstance(channels, int) or not 1 <= channels <= 8:
            raise ValueError(f"audio of {width} bytes and {channels} channels, expected 2 or 4 bytes, 1 to 8")
        self._format = rate, width, channels
        self._session = self._hub.open("wyoming", self._model, rate)
        self._writing = asyncio.create_task(self._say(self._session))
        return self._session

    def _samples(self, payload: bytes) -> np.ndarray:
        _, width, channels = self._format
        if len(payload) % (width * channels):
            raise ValueError(f"{len(payload)} bytes are no samples of {channels} x {width} bytes")
        kind, full = WIDTHS[width]
        samples = np.frombuffer(payload, kind).astype(np.float32) / np.float32(full)
        return samples.reshape(-1, channels).mean(1)

    def _check_writing(self) -> None:
        """Whatever has ended the other task ends this one."""
        if self._writing is not None and self._writing.done():
            self._writing.result()

    async def _finish(self) -> None:
        if self._session is None or self._writing is None:
            return
        self._session.mark("end")
        await self._writing
        self.close()

    async def _say(self, session: Session) -> None:
        """The text as it grows, then the whole: who does not know about the parts takes that."""
        sent = ""
        await self._send("transcript-start", {})
        async for update in session.updates():
            text = session.text
            if text.startswith(sent) and text != sent:
                await self._send("transcript-chunk", {"text": text[len(sent) :]})
                sent = text
            session.count_sent(update)
        await self._send("transcript", {"text": session.text})
        await self._send("transcript-stop", {})

    def close(self) -> None:
        """Ends the utterance, whatever it was."""
        if self._writing is not None:
            self._writing.cancel()
        if self._session is not None:
            self._session.close()
        self._session = self._writing = None

    async def complain(self, error: Exception) -> None:
        """The last event before the end."""
        if self._session is not None and isinstance(error, StreamError):
            self._session.fail(error)
        idle = isinstance(error, asyncio.TimeoutError)
        text = f"nothing came for {self._hub.options.idle_s:g} s" if idle else str(error)
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            await asyncio.wait_for(self._send("error", {"text": text}), 1.0)

    async def _send(self, kind: str, data: dict[str, Any]) -> None:
        body = json.dumps(data, ensure_ascii=False).encode()
        header = {"type": kind, "version": VERSION, "data_length": len(body)}
        self._writer.write(json.dumps(header).encode() + b"\n" + body)
        await self._writer.drain()

    def _describe(self) -> dict[str, Any]:
        """All models, as Home Assistant lists them."""
        common = {
            "attribution": {"name": "brctc", "url": ""},
            "installed": True,
            "version": VERSION,
        }
        models = [
            {"name": name, "description": name, "languages": [], **common}
            for name, served in self._hub.models.items()
            if served.online is not None
        ]
        program = {"name": "brctc", "description": "Speech recognition with Bayes-risk CTC", **common}
        return program | {"models": models, "supports_transcript_streaming": True}
