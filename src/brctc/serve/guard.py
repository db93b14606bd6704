"""Who may come in, and with how much: the token, the page's origin, the size of a request."""

import hmac
from collections.abc import MutableMapping
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from brctc.serve.hub import Hub, RefusalError

OPEN_PATHS = ("/", "/health")  # the page has no secrets; a load balancer has no token
SECRETS = ("bearer.", "openai-insecure-api-key.")
"""A browser cannot set headers of a websocket: its token is one of the protocols that it offers."""
LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")


def refuse(refusal: Exception) -> Response:
    """In the form of OpenAI's errors."""
    assert isinstance(refusal, RefusalError)
    error = {"message": str(refusal), "type": "invalid_request_error", "code": refusal.kind}
    headers = {"WWW-Authenticate": "Bearer"} if refusal.status == 401 else None
    if refusal.status == 503:
        headers = {"Retry-After": "1"}
    return JSONResponse({"error": error}, refusal.status, headers)


async def on_refusal(connection: Any, refusal: Exception) -> Any:
    """For starlette: of a request or of a websocket that is not opened yet."""
    response = refuse(refusal)
    if isinstance(connection, WebSocket):
        await connection.send_denial_response(response)
        return None
    return response


class Guard:
    """In front of everything."""

    def __init__(self, app: ASGIApp, hub: Hub) -> None:
        self._app, self._hub = app, hub

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        try:
            self._check(scope)
        except RefusalError as refusal:
            if scope["type"] == "http":
                await refuse(refusal)(scope, receive, send)
            else:
                await WebSocket(scope, receive, send).send_denial_response(refuse(refusal))
            return
        await self._app(scope, self._bounded(scope, receive), send)

    def _check(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        offered = scope.get("subprotocols", [])
        public = [name for name in offered if not name.startswith(SECRETS)]
        scope["brctc.subprotocol"] = public[0] if public else None
        host = urlsplit(f"//{headers.get('host', '')}")
        options = self._hub.options
        if options.loopback and options.token is None and host.hostname not in (*LOCAL_NAMES, options.host):
            # a page from elsewhere whose name leads here
            raise self._hub.refuse(403, "host", f"{host.hostname} is not this machine")
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != host.netloc:
            raise self._hub.refuse(403, "origin", f"a page from {origin} may not use this server")
        if options.token is None or (scope["path"] in OPEN_PATHS and scope["type"] == "http"):
            return
        given = [name[len(s) :] for name in offered for s in SECRETS if name.startswith(s)]
        scheme, _, value = headers.get("authorization", "").partition(" ")
        given += [value.strip()] if scheme.lower() == "bearer" else []
        if not any(hmac.compare_digest(one.encode(), options.token.encode()) for one in given):
            raise self._hub.refuse(401, "token", "the bearer token is missing or wrong")

    def _bounded(self, scope: Scope, receive: Receive) -> Receive:
        """Counts what a request sends, whatever its header says."""
        most, count = self._hub.options.max_file_bytes, 0

        async def bounded() -> MutableMapping[str, Any]:
            nonlocal count
            message = await receive()
            count += len(message.get("body", b""))
            if count > most:
                raise self._hub.refuse(413, "too-large", f"more than {most} bytes")
            return message

        return bounded if scope["type"] == "http" else receive
