"""`brctc serve`"""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from brctc.cli.shared import Flag, OptionalFile, Processes
from brctc.decode import EndpointRules
from brctc.serve import ServeOptions, run

TOKEN_VARIABLE = "BRCTC_SERVE_TOKEN"
Port = Annotated[int | None, arg(metavar="PORT", help_behavior_hint="(default: not spoken)")]


@dataclass(frozen=True, kw_only=True)
class Command:
    """Serve trained models: live streams with an online model, whole files with any.
    - ws://HOST:PORT/ speaks sherpa's protocol, /v1/realtime?intent=transcription and
      POST /v1/audio/transcriptions are OpenAI's, Wyoming has a port of its own.
    - http://HOST:PORT/ is a page to try it, /health and /metrics are for those who run it.
    - Only this machine can connect unless --host says otherwise; then a token is needed.
    - SIGTERM lets streams end: each that has sent its end gets its last text.

    Examples:
      brctc serve exp/online
      brctc serve exp/plain exp/early --port 9000
      brctc serve exp/online --host 0.0.0.0 --token-file token --certificate cert.pem --key key.pem
    """

    models: Annotated[tuple[str, ...], Positional, arg(metavar="MODEL ...", help_behavior_hint="(required)")]
    """Directories of runs or of their models, or NAME=DIR. The first one is the default."""
    host: str = "127.0.0.1"
    """The address to listen on; 0.0.0.0 lets other machines in."""
    port: int = 8000
    """Of HTTP and websockets; 0 takes a free one."""
    wyoming_port: Port = None
    """Of Wyoming, for Home Assistant."""
    token_file: OptionalFile = None
    """Its first line is the bearer token that clients need; so is $BRCTC_SERVE_TOKEN."""
    open: Flag = False
    """Let other machines in without a token: all, or with a token those that speak Wyoming."""
    certificate: OptionalFile = None
    """For TLS, a PEM file."""
    key: OptionalFile = None
    """Of the certificate."""
    workers: Processes = 1
    """Processes, each with the models."""
    threads: Processes = 1
    """Of each process's model thread."""
    max_streams: int = 100
    """At once, of each process."""
    max_message_bytes: int = 1048576
    """Of a message of a stream."""
    max_file_bytes: int = 104857600
    """Of an uploaded file."""
    max_seconds: float = 3600.0
    """Of audio, of a stream or a file."""
    idle_seconds: float = 30.0
    """A stream without audio is closed after so long."""
    max_results: int = 256
    """Results that wait for a client; one that lags further behind is closed."""
    drain_seconds: float = 20.0
    """How long streams may go on after SIGTERM."""
    silence_seconds: float = 2.4
    """A segment ends after so much silence while nothing was said; 0 is never."""
    pause_seconds: float = 1.2
    """A segment ends after so much silence behind words; 0 is never."""
    longest_seconds: float = 20.0
    """A segment ends when it is so long; 0 is never."""

    def run(self) -> None:
        """Serves until it is stopped."""
        seconds = self.silence_seconds, self.pause_seconds, self.longest_seconds
        options = ServeOptions(
            models=self.models,
            host=self.host,
            port=self.port,
            wyoming_port=self.wyoming_port,
            token=self._token(),
            open=self.open,
            certificate=self.certificate,
            key=self.key,
            workers=self.workers,
            threads=self.threads,
            max_streams=self.max_streams,
            max_message_bytes=self.max_message_bytes,
            max_file_bytes=self.max_file_bytes,
            max_seconds=self.max_seconds,
            idle_s=self.idle_seconds,
            max_results=self.max_results,
            drain_s=self.drain_seconds,
            rules=EndpointRules(*(value or None for value in seconds)),
        )
        for path in (self.certificate, self.key):
            if path is not None and not Path(path).is_file():
                raise FileNotFoundError(f"{path}: no such file")
        run(options, lambda text: print(text, file=sys.stderr, flush=True))

    def _token(self) -> str | None:
        """Not an option: other users of a machine can see those."""
        if self.token_file is None:
            return os.environ.get(TOKEN_VARIABLE)
        lines = self.token_file.read_text().splitlines()
        return lines[0].strip() if lines else ""
