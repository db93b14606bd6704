"""Whole files: OpenAI's `POST /v1/audio/transcriptions`."""

import asyncio
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from brctc.data.audio import AudioError, AudioFile
from brctc.data.manifest import WordTime
from brctc.serve.hub import Hub, Served
from brctc.serve.session import Session, StreamError

FORMATS = ("json", "text", "verbose_json")
GRANULARITIES = ("word", "segment", "token")  # the last one is an addition


class Transcript(NamedTuple):
    """What a file says."""

    text: str
    duration_s: float
    words: Sequence[WordTime] | None
    tokens: Sequence[WordTime] | None
    segments: Sequence[tuple[str, float, float]]


async def transcriptions(request: Request) -> Response:
    """An endpoint of starlette."""
    hub: Hub = request.app.state.hub
    hub.check_room()
    async with request.form(max_files=1, max_fields=20) as form:
        fields = {name: value for name, value in form.items() if isinstance(value, str)}
        wanted = fields.get("response_format", "json")
        if wanted not in FORMATS:
            raise hub.refuse(
                400, "format", f"response_format is {wanted!r}, expected one of {', '.join(FORMATS)}"
            )
        grain = [
            str(value) for name, value in form.multi_items() if name.startswith("timestamp_granularities")
        ]
        if unknown := set(grain) - set(GRANULARITIES):
            expected = ", ".join(GRANULARITIES)
            raise hub.refuse(
                400, "format", f"timestamp_granularities has {unknown.pop()!r}, expected {expected}"
            )
        if fields.get("stream") == "true":
            raise hub.refuse(400, "format", "stream: a file's text comes at once; /v1/realtime streams")
        upload = form.get("file")
        if not isinstance(upload, UploadFile):
            raise hub.refuse(400, "file", "there is no file in the form")
        served = hub.find(fields.get("model"))
        transcript = await transcribe(hub, served, upload)
    if wanted == "text":
        return PlainTextResponse(transcript.text + "\n")
    if wanted == "json":
        return JSONResponse({"text": transcript.text})
    return JSONResponse(verbose(transcript, grain or ["segment"]))


def verbose(transcript: Transcript, grain: Sequence[str]) -> dict[str, Any]:
    """OpenAI's verbose_json, with the times that were asked for."""
    content: dict[str, Any] = {
        "task": "transcribe",
        "duration": round(transcript.duration_s, 3),
        "text": transcript.text,
    }
    if "segment" in grain:
        content["segments"] = [
            {"id": number, "text": text, "start": round(start_s, 3), "end": round(end_s, 3)}
            for number, (text, start_s, end_s) in enumerate(transcript.segments)
        ]
    for name, times in (("word", transcript.words), ("token", transcript.tokens)):
        if name in grain and times is not None:
            content[f"{name}s"] = [
                {name: what, "start": round(start_s, 3), "end": round(end_s, 3)}
                for what, start_s, end_s in times
            ]
    return content


async def transcribe(hub: Hub, served: Served, upload: UploadFile) -> Transcript:
    """An uploaded file, through a temporary one: libsndfile needs to seek."""
    with tempfile.TemporaryDirectory(prefix="brctc-") as folder:
        path = Path(folder) / "upload"
        with path.open("wb") as out:
            await asyncio.to_thread(shutil.copyfileobj, upload.file, out)
        try:
            with await asyncio.to_thread(AudioFile, path) as file:
                duration_s = file.num_samples / file.sample_rate
                if duration_s > hub.options.max_seconds:
                    raise hub.refuse(413, "too-long", f"more than {hub.options.max_seconds:g} s of audio")
                if served.online is not None:
                    return await _as_stream(hub, served, file, duration_s)
            assert served.recognizer is not None
            found = await hub.recognize(served.recognizer, path)
        except (AudioError, StreamError, ValueError) as error:
            name = (upload.filename or "the file")[:100]
            raise hub.refuse(400, "bad-audio", str(error).replace(str(path), name)) from None
    segments = [(found.text, 0.0, duration_s)] if found.text else []
    return Transcript(found.text, duration_s, found.word_times, found.token_times, segments)


async def _as_stream(hub: Hub, served: Served, file: AudioFile, duration_s: float) -> Transcript:
    """A file beside the live streams: it takes turns with them."""
    session = hub.open("files", served.name, file.sample_rate)
    try:
        reading = asyncio.create_task(_collect(session))
        try:
            for first in range(0, file.num_samples, file.sample_rate):
                count = min(file.sample_rate, file.num_samples - first)
                await session.push(await asyncio.to_thread(file.read, first, count))
            session.mark("end")
            segments = await reading
        finally:
            reading.cancel()
    finally:
        session.close()
    words = [time for segment in segments for time in segment.word_times]
    tokens = [time for segment in segments for time in segment.token_times]
    spans = [(segment.text, segment.start_s, segment.end_s) for segment in segments]
    return Transcript(session.text, duration_s, words, tokens, spans)


async def _collect(session: Session) -> list[Any]:
    return [segment async for update in session.updates() for segment in update.segments]
