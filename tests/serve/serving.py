"""A server in a process of its own, and clients that speak its protocols."""

import asyncio
import base64
import json
import re
import time
from contextlib import contextmanager

import numpy as np
import urllib3
from websockets.asyncio.client import connect

from brctc.decode import EndpointRules, OnlineRecognizer
from brctc.models import load_model, save_model
from tests.cli.commands import Command
from tests.decode.streams import make_model, stream

HTTP = urllib3.PoolManager()


def save(folder, name, seed=0):
    model = make_model(seed)
    save_model(folder / name, model.system, model.tokenizers, model.features)
    return folder / name


class Server:
    def __init__(self, folder, *arguments, **environment):
        self.folder = folder
        self.command = Command(folder, "serve", *arguments, "--port", 0, **environment)
        self.port = self.wyoming_port = 0
        self._wait()

    def _wait(self):
        until = time.monotonic() + 60
        while time.monotonic() < until:
            told = (self.folder / ".err").read_text() if (self.folder / ".err").exists() else ""
            if found := re.search(r"on https?://[^ ]*:(\d+)(?:, Wyoming on port (\d+))?\n", told):
                self.port, self.wyoming_port = int(found[1]), int(found[2] or 0)
                if self.healthy():
                    return
            assert self.command.process.is_alive(), told
            time.sleep(0.05)
        raise AssertionError(f"it did not start: {told}")

    def healthy(self):
        try:
            return self.get("/health").status == 200
        except urllib3.exceptions.HTTPError:
            return False

    def get(self, path, **headers):
        return HTTP.request("GET", self.url(path), headers=headers, retries=False, timeout=10)

    def post(self, fields, **headers):
        url = self.url("/v1/audio/transcriptions")
        return HTTP.request("POST", url, fields=fields, headers=headers, retries=False, timeout=60)

    def url(self, path="/", scheme="http"):
        return f"{scheme}://127.0.0.1:{self.port}{path}"

    def metric(self, name):
        text = self.get("/metrics").data.decode()
        return sum(
            float(line.split()[-1]) for line in text.splitlines() if re.match(rf"{name}(\{{|\s)", line)
        )

    def empties(self):
        """Whether all streams are gone, in a moment."""
        until = time.monotonic() + 10
        while self.metric("brctc_streams") and time.monotonic() < until:
            time.sleep(0.1)
        return self.metric("brctc_streams") == 0

    def terminate(self):
        self.command.process.terminate()

    def stop(self):
        self.terminate()
        return self.command.finish()


@contextmanager
def serving(folder, *arguments, **environment):
    (folder / ".err").unlink(missing_ok=True)
    server = Server(folder, *arguments, **environment)
    try:
        yield server
    finally:
        if server.command.process.is_alive():
            server.stop()


def expected(directory, samples, rate=16000, rules=None):
    """The segments that a stream has without a server."""
    recognizer = OnlineRecognizer(load_model(directory), rules or EndpointRules()).create_stream(rate)
    stream(recognizer, samples, 1600)
    return recognizer.pop_segments(), recognizer.text


async def sherpa(server, samples, path="/", block=1600, pause_s=0.0, **options):
    """As sherpa's own client does: all results before `Done!`."""
    async with connect(server.url(path, "ws"), **options) as websocket:

        async def send():
            for first in range(0, len(samples), block):
                await websocket.send(np.asarray(samples[first : first + block], "<f4").tobytes())
                await asyncio.sleep(pause_s)
            await websocket.send("Done")

        sending = asyncio.create_task(send())
        found = []
        async for message in websocket:
            if message == "Done!":
                break
            found.append(json.loads(message))
        await sending
        return found


def segments_of(found):
    """The last that was said of each segment."""
    return {result["segment"]: result for result in found}


def text_of(found):
    return "".join(result["text"] for result in segments_of(found).values())


def pcm16(samples):
    return (np.clip(samples, -1, 1) * 32767).astype("<i2")


def append(samples):
    audio = base64.b64encode(pcm16(samples).tobytes()).decode()
    return json.dumps({"type": "input_audio_buffer.append", "audio": audio})
