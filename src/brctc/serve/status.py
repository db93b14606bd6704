"""What a server says of itself: health, metrics, models, and its page."""

from functools import cache
from pathlib import Path

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from brctc.serve.hub import Hub

POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' blob:; worker-src blob:; style-src 'unsafe-inline'; "
    "connect-src 'self' ws: wss:; media-src blob:; img-src data:; base-uri 'none'; form-action 'none'"
)
"""The page needs no network but this server's."""


async def health(request: Request) -> Response:
    """For load balancers: 200 if new streams are welcome."""
    hub: Hub = request.app.state.hub
    state = "draining" if hub.draining else "ok" if hub.engine.alive else "the model thread has died"
    content = {"status": state, "streams": hub.num_streams, "models": list(hub.models)}
    return JSONResponse(content, 200 if state == "ok" else 503)


async def metrics(request: Request) -> Response:
    """For Prometheus."""
    return Response(request.app.state.hub.metrics.text(), media_type="text/plain; version=0.0.4")


async def models(request: Request) -> Response:
    """OpenAI's list, with what the page needs to know."""
    hub: Hub = request.app.state.hub
    content = [
        {
            "id": name,
            "object": "model",
            "owned_by": "brctc",
            "streams": served.online is not None,
            "sample_rate": served.sample_rate,
        }
        for name, served in hub.models.items()
    ]
    return JSONResponse({"object": "list", "data": content})


async def page(request: Request) -> Response:
    """The one page, without network."""
    return HTMLResponse(_page(), headers={"Content-Security-Policy": POLICY, "Cache-Control": "no-cache"})


@cache
def _page() -> str:
    return (Path(__file__).parent / "page.html").read_text()
