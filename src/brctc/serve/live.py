"""A websocket with a stream behind it: one task reads, one writes, and whatever happens ends both."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from starlette.websockets import WebSocket, WebSocketDisconnect

from brctc.serve.engine import Update
from brctc.serve.session import Session, StreamError

CODES = {"bad-audio": 1007, "draining": 1012, "message": 1003}
"""Close codes by kinds of StreamError; the others are 1008, a matter of policy."""
LONGEST_REASON = 120  # bytes, of a close frame

Message = str | bytes
OnMessage = Callable[[Message], Awaitable[None]]
OnUpdate = Callable[[Update], Awaitable[None]]


async def run_stream(
    websocket: WebSocket,
    session: Session,
    idle_s: float,
    on_message: OnMessage,
    on_update: OnUpdate,
    on_error: Callable[[StreamError], Awaitable[None]] | None = None,
) -> None:
    """Until the last update was sent, the client is gone, or something was wrong; closes the websocket."""
    reading = asyncio.create_task(_read(websocket, session, idle_s, on_message))
    writing = asyncio.create_task(_write(session, on_update))
    code, reason = 1000, ""
    try:
        done, _ = await asyncio.wait({reading, writing}, return_when=asyncio.FIRST_COMPLETED)
        await (writing if writing in done else reading)  # raises what it has ended with
        if session.stopped:
            code, reason = CODES["draining"], "the server stops"
    except StreamError as error:
        session.fail(error)  # counts it, if nobody has
        code, reason = CODES.get(error.kind, 1008), str(error)
        if on_error is not None and error.kind != "lagging":
            with contextlib.suppress(Exception):
                await asyncio.wait_for(on_error(error), 1.0)
    except WebSocketDisconnect:
        code = 0
    finally:
        for task in (reading, writing):
            task.cancel()
        await asyncio.gather(reading, writing, return_exceptions=True)
    if code:
        with contextlib.suppress(RuntimeError, WebSocketDisconnect):
            await websocket.close(code, shorten(reason))


def shorten(reason: str) -> str:
    """As much as fits into a close frame."""
    return reason.encode()[:LONGEST_REASON].decode(errors="ignore")


async def _read(websocket: WebSocket, session: Session, idle_s: float, on_message: OnMessage) -> None:
    """Messages, until the client has sent its end; then only whether it is gone."""
    while True:
        try:
            event = await asyncio.wait_for(websocket.receive(), None if session.ended else idle_s)
        except asyncio.TimeoutError:
            if session.ended:  # by the server, while this one was waited for
                continue
            raise StreamError("idle", f"no audio for {idle_s:g} s") from None
        if event["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(event.get("code", 1005), event.get("reason"))
        message = event.get("bytes") if event.get("bytes") is not None else event.get("text")
        if message is not None and not (session.ended and isinstance(message, str)):
            await on_message(message)


async def _write(session: Session, on_update: OnUpdate) -> None:
    async for update in session.updates():
        await on_update(update)
        session.count_sent(update)
