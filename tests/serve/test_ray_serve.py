"""The example for Ray Serve, with a cluster of its own."""

import asyncio
import os
import socket
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.decode.streams import sound
from tests.serve.serving import HTTP, expected, sherpa, text_of

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
RUN = """
import sys, time, ray
from ray import serve
ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=80_000_000)
from serve_ray import app
for attempt in range(5):
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": int(sys.argv[1])})
        serve.run(app)
        break
    except TimeoutError:  # a busy machine
        time.sleep(1)
print("ready", flush=True)
sys.stdin.read()
serve.shutdown()
ray.shutdown()
"""


class Address:
    def __init__(self, port):
        self.port = port

    def url(self, path="/", scheme="http"):
        return f"{scheme}://127.0.0.1:{self.port}{path}"


@pytest.mark.slow
@pytest.mark.skipif(
    find_spec("ray") is None or find_spec("fastapi") is None, reason="Ray Serve is not installed (ray[serve])"
)
def test_streams_through_ray(models):
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = Address(free.getsockname()[1])
    patient = {
        "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "120",
        "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "120",
        "RAY_worker_niceness": "0",  # others may be busy
    }
    environment = {
        **os.environ,
        **patient,
        "BRCTC_MODELS": str(models / "plain"),
        "PYTHONPATH": str(EXAMPLES),
    }
    command = [sys.executable, "-c", RUN, str(address.port)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    try:
        assert process.stdout.readline() == "ready\n"
        until = time.monotonic() + 60
        while HTTP.request("GET", address.url("/health"), retries=False).status != 200:
            assert time.monotonic() < until
            time.sleep(0.5)
        found = asyncio.run(sherpa(address, sound(0, 2.0)))
        assert text_of(found) == expected(models / "plain", sound(0, 2.0))[1]
    finally:
        process.stdin.close()
        process.wait(90)
