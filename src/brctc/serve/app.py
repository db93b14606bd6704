"""The routes, as an ASGI application: for uvicorn, and for whatever else runs such."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Route, WebSocketRoute

from brctc.serve.files import transcriptions
from brctc.serve.guard import Guard, on_refusal
from brctc.serve.hub import Hub, RefusalError
from brctc.serve.realtime import realtime
from brctc.serve.sherpa import stream
from brctc.serve.status import health, metrics, models, page


def make_app(hub: Hub) -> Starlette:
    """All that is spoken over HTTP and websockets; the model thread runs while the application does."""

    @asynccontextmanager
    async def life(_: Starlette) -> AsyncIterator[None]:
        async with hub.run():
            yield

    app = Starlette(
        routes=[
            Route("/", page),
            Route("/health", health),
            Route("/metrics", metrics),
            Route("/v1/models", models),
            Route("/v1/audio/transcriptions", transcriptions, methods=["POST"]),
            WebSocketRoute("/", stream),
            WebSocketRoute("/v1/realtime", realtime),
        ],
        middleware=[Middleware(Guard, hub=hub)],
        exception_handlers={RefusalError: on_refusal},
        lifespan=life,
    )
    app.state.hub = hub
    return app
