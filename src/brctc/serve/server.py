"""Processes, sockets and signals: uvicorn with a drain before its end."""

import asyncio
import logging
import multiprocessing
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing.context import SpawnProcess
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from brctc.plugins import load_plugins
from brctc.serve.app import make_app
from brctc.serve.hub import Hub
from brctc.serve.metrics import SHARED_DIRECTORY
from brctc.serve.options import ServeOptions
from brctc.serve.wyoming import LONGEST_LINE, WyomingServer

SEND_BUFFER = 1 << 15  # bytes: a client that does not read is noticed before it has megabytes of ours
CLOSE_S = 3.0  # for a client to read why it is closed
RESTART_S = 1.0
_log = logging.getLogger("brctc.serve")


class Connection(WebSocketsSansIOProtocol):
    """uvicorn's websocket, but a close waits for nobody: who does not read it in time has lost the rest."""

    async def send(self, message: Any) -> None:
        if message["type"] != "websocket.close":
            await super().send(message)
            return
        self.writable.set()
        self.loop.call_later(CLOSE_S, self.transport.abort)
        await super().send(message)


class DrainingServer(uvicorn.Server):
    """uvicorn's server, with Wyoming's beside it, which lets streams end before it stops."""

    def __init__(
        self, config: uvicorn.Config, hub: Hub, wyoming: socket.socket | None, on_ready: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self._hub, self._wyoming_socket, self._on_ready = hub, wyoming, on_ready
        self._wyoming: asyncio.Server | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self._wyoming_socket is not None:
            serve = WyomingServer(self._hub).serve
            self._wyoming = await asyncio.start_server(serve, sock=self._wyoming_socket, limit=LONGEST_LINE)
        self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in (*self.servers, *([self._wyoming] if self._wyoming else [])):
            server.close()
        await self._hub.drain()
        await super().shutdown(sockets)


def listen(host: str, port: int) -> socket.socket:
    """A socket that several processes may have for the same port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
    try:
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise OSError(f"{host}:{port} cannot be listened on: {error.strerror or error}") from None
    return bound


def run(options: ServeOptions, tell: Callable[[str], None] = lambda text: None) -> None:
    """Serves until SIGTERM or SIGINT; `tell` gets a line when all is ready."""
    sockets = [listen(options.host, options.port)]
    if options.wyoming_port is not None:
        sockets.append(listen(options.host, options.wyoming_port))
    ports = [bound.getsockname()[1] for bound in sockets]
    options = replace(options, port=ports[0], wyoming_port=ports[1] if len(ports) > 1 else None)
    if options.workers == 1:
        run_process(options, sockets, tell)
    else:
        _run_processes(options, sockets, tell)


def run_process(
    options: ServeOptions, sockets: Sequence[socket.socket], tell: Callable[[str], None] = lambda text: None
) -> None:
    """One process with its model thread."""
    hub = Hub(options)
    config = uvicorn.Config(
        make_app(hub),
        http="h11",
        ws=Connection,
        ws_max_size=options.max_message_bytes,
        ws_ping_interval=None,  # a pong may wait behind audio; streams without audio are closed anyway
        ws_per_message_deflate=False,
        ssl_certfile=options.certificate,
        ssl_keyfile=options.key,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=round(options.drain_s) + 5,
    )
    wyoming = sockets[1] if len(sockets) > 1 else None
    server = DrainingServer(config, hub, wyoming, lambda: tell(describe(options)))
    # uvicorn raises the signal again when it has stopped: then there is nothing left to stop
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        server.run([sockets[0]])
    finally:
        signal.signal(signal.SIGTERM, before)


def describe(options: ServeOptions) -> str:
    """Where it is."""
    scheme = "https" if options.certificate else "http"
    host = f"[{options.host}]" if ":" in options.host else options.host
    wyoming = f", Wyoming on port {options.wyoming_port}" if options.wyoming_port is not None else ""
    return f"serving {', '.join(options.models)} on {scheme}://{host}:{options.port}{wyoming}"


def _run_processes(
    options: ServeOptions, sockets: Sequence[socket.socket], tell: Callable[[str], None]
) -> None:
    """So many processes; one that dies is started again. The kernel shares connections among them."""
    context = multiprocessing.get_context("spawn")
    stopping = False

    def stop(*_: int | FrameType | None) -> None:
        nonlocal stopping
        stopping = True

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    shared = tempfile.mkdtemp(prefix="brctc-metrics-")
    os.environ[SHARED_DIRECTORY] = shared
    processes: list[SpawnProcess] = []
    try:
        while not stopping:
            for process in [p for p in processes if not p.is_alive()]:
                processes.remove(process)
                if process.exitcode == FAILED:
                    raise ChildProcessError("a process could not begin: its reason is above")
                _log.warning(
                    "process %s has died (%s): another one is started", process.pid, process.exitcode
                )
                time.sleep(RESTART_S)
            while len(processes) < options.workers and not stopping:
                process = context.Process(target=_worker, args=(options,))
                process.start()
                processes.append(process)
                if len(processes) == options.workers:
                    tell(describe(options))
            time.sleep(0.1)
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.join()
        for bound in sockets:
            bound.close()
        del os.environ[SHARED_DIRECTORY]
        shutil.rmtree(shared, ignore_errors=True)
        for number, handler in before.items():
            signal.signal(number, handler)


FAILED = 3


def _worker(options: ServeOptions) -> None:
    """A process of its own, with sockets of its own for the same ports."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the one that waits, which sends SIGTERM
    try:
        load_plugins()
        ports = [options.port, *([] if options.wyoming_port is None else [options.wyoming_port])]
        sockets = [listen(options.host, port) for port in ports]
        run_process(options, sockets)
    except (ValueError, OSError) as error:
        print(f"brctc serve: {error}", file=sys.stderr)
        sys.exit(FAILED)
