"""Trained models behind a server: live streams and whole files (the extra `serve`)."""

from brctc.extras import check_extra

check_extra(
    ("starlette", "uvicorn", "websockets", "prometheus_client", "python_multipart"),
    "asr,serve",
)

from brctc.serve.app import make_app
from brctc.serve.hub import Hub
from brctc.serve.options import ServeOptions
from brctc.serve.server import run

__all__ = ["Hub", "ServeOptions", "make_app", "run"]
