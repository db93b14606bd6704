"""Who may come in, how much of everything, and what becomes of streams when the server stops."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import ssl
import subprocess
import time

import numpy as np
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from brctc.cli import main
from brctc.serve import ServeOptions
from tests.decode.streams import sound
from tests.serve.serving import Server, expected, serving, sherpa, text_of


async def closed(websocket):
    """Why, and with which code."""
    with contextlib.suppress(ConnectionClosed):
        async for _ in websocket:
            pass
    return websocket.close_code, websocket.close_reason


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"host": "0.0.0.0"}, "0.0.0.0 lets other machines in: give --token-file, or --open"),
        ({"host": "::"}, ":: lets other machines in"),
        ({"host": "0.0.0.0", "token": "x", "wyoming_port": 1}, "Wyoming knows no token"),
        ({"token": ""}, "the token is empty"),
        ({"token": "ä"}, "characters that a header cannot have"),
        ({"certificate": "x"}, "TLS needs both"),
        ({"models": ()}, "there is no model to serve"),
        ({"workers": 0}, "workers is 0, expected at least 1"),
        ({"idle_s": 0}, "idle_s is 0, expected more than 0"),
    ],
)
def test_options_that_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        ServeOptions(**{"models": ("x",), **options})
    assert ServeOptions(("x",), host="0.0.0.0", token="x").loopback is False
    assert ServeOptions(("x",), host="::1").loopback


def test_refusals_of_the_command(models, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        plain, port = str(models / "plain"), str(taken.getsockname()[1])
        for arguments, message in (
            (("nowhere",), "nowhere holds no model"),
            ((plain, plain), "two models would be called plain: say NAME="),
            ((plain, "--host", "0.0.0.0"), "0.0.0.0 lets other machines in"),
            ((plain, "--port", port), f"127.0.0.1:{port} cannot be listened on"),
            ((plain, "--key", "k", "--certificate", "c"), "c: no such file"),
        ):
            assert main(["serve", *(("--port", "0") if "--port" not in arguments else ()), *arguments]) == 2
            assert capsys.readouterr().err.startswith(f"brctc serve: {message}")


@pytest.fixture(scope="module")
def guarded(models, tmp_path_factory):
    """With a token and tight limits."""
    folder = tmp_path_factory.mktemp("guarded")
    limits = ("--max-streams", 2, "--max-seconds", 2, "--idle-seconds", 0.5)
    with serving(folder, models / "plain", *limits, BRCTC_SERVE_TOKEN="secret") as server:
        yield server


def test_the_token(guarded, models):
    assert guarded.get("/").status == guarded.get("/health").status == 200
    for path in ("/metrics", "/v1/models", "/nowhere"):
        assert guarded.get(path).status == 401
        assert guarded.get(path, Authorization="Bearer wrong").status == 401
    assert guarded.get("/metrics", Authorization="bearer secret").status == 200
    assert guarded.post({"file": ("x", b"x")}).status == 401

    async def call(**options):
        return text_of(await sherpa(guarded, sound(0, 1.0), **options))

    with pytest.raises(InvalidStatus, match="401"):
        asyncio.run(call())
    _, text = expected(models / "plain", sound(0, 1.0))
    assert asyncio.run(call(additional_headers={"Authorization": "Bearer secret"})) == text
    assert asyncio.run(call(subprotocols=["brctc", "bearer.secret"])) == text
    for offered in (["bearer.wrong"], ["secret"], ["openai-insecure-api-key."]):
        with pytest.raises(InvalidStatus, match="401"):
            asyncio.run(call(subprotocols=offered))


def test_limits(guarded):
    """Too many streams, too long a stream, and one that sends nothing."""
    options = {"additional_headers": {"Authorization": "Bearer secret"}}
    url = guarded.url("/", "ws")

    async def call():
        async with connect(url, **options) as one, connect(url, **options) as two:
            with pytest.raises(InvalidStatus) as caught:
                await connect(url, **options)
            assert caught.value.response.status_code == 503
            assert "there are 2 streams already" in caught.value.response.body.decode()
            await one.send(np.zeros(40000, "<f4").tobytes())
            return await closed(one), await closed(two)

    long, idle = asyncio.run(call())
    assert long == (1008, "more than 2 s of audio")
    assert idle == (1008, "no audio for 0.5 s")


def test_pages_from_elsewhere(server):
    """A name that leads to this machine does not let a page from elsewhere in."""
    assert server.get("/health", Host=f"evil.example:{server.port}").status == 403
    assert server.get("/v1/models", Origin="http://evil.example").status == 403
    assert server.get("/v1/models", Origin=server.url("")).status == 200
    policy = server.get("/").headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'")


def test_a_client_that_does_not_read_is_closed(models, tmp_path):
    """Its results fill a bounded queue; then it is gone, and others get their text."""
    limits = ("--max-results", 4, "--pause-seconds", 0.05)
    with serving(tmp_path, models / "plain", *limits) as server:

        async def deaf():
            raw = socket.socket()
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            raw.connect(("127.0.0.1", server.port))
            async with connect(server.url("/", "ws"), sock=raw, max_queue=1, ping_interval=None) as websocket:
                websocket.transport.pause_reading()
                part = np.tile(sound(0, 3.0), 2).astype("<f4").tobytes()
                until = time.monotonic() + 60
                while time.monotonic() < until and not server.metric("brctc_refusals_total"):
                    with contextlib.suppress(ConnectionClosed, TimeoutError):
                        await asyncio.wait_for(websocket.send(part), 1)
                websocket.transport.abort()

        async def both():
            return await asyncio.gather(asyncio.to_thread(asyncio.run, deaf()), sherpa(server, sound(3, 1.0)))

        _, found = asyncio.run(both())
        text = "".join(result["text"] for result in found if result["is_final"])
        assert text == expected(models / "plain", sound(3, 1.0))[1]
        assert 'brctc_refusals_total{reason="lagging"} 1.0' in server.get("/metrics").data.decode()
        assert server.empties()


def test_connections_that_drop_are_forgotten(server, models):
    """At random moments, some before anything was said; nobody else notices."""
    rng = np.random.default_rng(0)

    async def drop():
        await asyncio.sleep(rng.uniform(0, 1.0))
        websocket = await connect(server.url(rng.choice(["/", "/v1/realtime"]), "ws"))
        for _ in range(rng.integers(0, 4)):
            await websocket.send(sound(0, 0.2).astype("<f4").tobytes())
        websocket.transport.abort()

    async def all_of_them():
        streams = [sherpa(server, sound(n, 2.0), pause_s=0.02) for n in range(3)]
        found, _ = await asyncio.gather(
            asyncio.gather(*streams), asyncio.gather(*(drop() for _ in range(40)))
        )
        return found

    for n, found in enumerate(asyncio.run(all_of_them())):
        assert text_of(found) == expected(models / "plain", sound(n, 2.0))[1]
    assert server.empties()


def test_sigterm_lets_streams_end(models, tmp_path):
    """Who had sent its end gets its text; who goes on is ended at last, and gets what was said so far."""
    samples = [sound(n, 3.0) for n in range(4)]
    with serving(tmp_path, models / "plain", "--drain-seconds", 1) as server:

        async def call():
            async with contextlib.AsyncExitStack() as stack:
                opened = [await stack.enter_async_context(connect(server.url("/", "ws"))) for _ in samples]
                for websocket, audio in zip(opened, samples, strict=True):
                    await websocket.send(audio.astype("<f4").tobytes())
                for websocket in opened[:3]:
                    await websocket.send("Done")
                server.terminate()
                talking = asyncio.create_task(go_on(opened[3]))
                found = [await read_all(websocket) for websocket in opened]
                talking.cancel()
                return found, [(w.close_code, w.close_reason) for w in opened]

        async def read_all(websocket):
            messages = []
            with contextlib.suppress(ConnectionClosed):
                async for message in websocket:
                    messages.append(message)
            return messages

        async def go_on(websocket):
            while True:
                await websocket.send(np.zeros(640, "<f4").tobytes())
                await asyncio.sleep(0.04)

        found, codes = asyncio.run(call())
        for messages, audio in zip(found, samples, strict=True):
            assert messages[-1] == "Done!"
            text = text_of(map(json.loads, messages[:-1]))
            wanted = expected(models / "plain", audio)[1]
            assert text == wanted if audio is not samples[3] else text.startswith(wanted[:-1])
        assert codes == [(1000, "")] * 3 + [(1012, "the server stops")]
        assert server.command.finish().code == 0


@pytest.mark.slow
def test_several_processes(models, tmp_path):
    """They share a port, and what they count; one that dies is replaced; SIGTERM ends them all."""
    with serving(tmp_path, models / "plain", "--workers", 2) as server:
        _, text = expected(models / "plain", sound(0, 1.0))

        async def calls(count):
            return await asyncio.gather(*(sherpa(server, sound(0, 1.0)) for _ in range(count)))

        assert {text_of(found) for found in asyncio.run(calls(12))} == {text}
        assert server.metric("brctc_streams_opened_total") == 12
        children = children_of(server.command.process.pid)
        assert len(children) >= 2
        os.kill(children[-1], signal.SIGKILL)
        until = time.monotonic() + 60
        while (
            time.monotonic() < until and len(set(children_of(server.command.process.pid)) - {*children}) < 1
        ):
            time.sleep(0.1)
        assert {text_of(found) for found in asyncio.run(calls(4))} == {text}
        assert server.stop().code == 0


def children_of(pid):
    found = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False
    )
    return [int(line) for line in found.stdout.split()]


@pytest.mark.slow
def test_tls(models, tmp_path):
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -keyout k.pem -out c.pem"
    subprocess.run(command.split(), cwd=tmp_path, check=True, capture_output=True)
    trusted = ssl.create_default_context(cafile=tmp_path / "c.pem")
    trusted.check_hostname = False

    class Secure(Server):
        def healthy(self):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
                return True
            return False

    server = Secure(tmp_path, models / "plain", "--certificate", "c.pem", "--key", "k.pem")
    try:

        async def call():
            return await sherpa(Wss(server), sound(0, 1.0), ssl=trusted)

        assert text_of(asyncio.run(call())) == expected(models / "plain", sound(0, 1.0))[1]
    finally:
        assert server.stop().code == 0


class Wss:
    def __init__(self, server):
        self.server = server

    def url(self, path, scheme):
        return self.server.url(path, "wss")
