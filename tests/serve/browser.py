"""A headless Chromium, told what to do over its own protocol."""

import asyncio
import base64
import itertools
import json
import shutil
import subprocess
import tempfile
import time
from contextlib import asynccontextmanager
from pathlib import Path

import urllib3
from websockets.asyncio.client import connect

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-port=0",
    "--window-size=1100,900",
    "--use-fake-ui-for-media-stream",
    "--use-fake-device-for-media-stream",
)


class Page:
    def __init__(self, websocket):
        self._websocket, self._numbers = websocket, itertools.count(1)

    async def call(self, method, **parameters):
        number = next(self._numbers)
        await self._websocket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        async for message in self._websocket:
            answer = json.loads(message)
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return answer["result"]
        raise AssertionError("the browser is gone")

    async def run(self, code):
        found = await self.call("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    async def until(self, code, seconds=60):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if found := await self.run(code):
                return found
            await asyncio.sleep(0.1)
        raise AssertionError(f"never true: {code}; the page says {await self.run('document.body.innerText')}")

    async def choose(self, selector, path):
        """As if a user chose a file."""
        root = (await self.call("DOM.getDocument"))["root"]["nodeId"]
        node = (await self.call("DOM.querySelector", nodeId=root, selector=selector))["nodeId"]
        await self.call("DOM.setFileInputFiles", nodeId=node, files=[str(path)])

    async def screenshot(self, path):
        found = await self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        Path(path).write_bytes(base64.b64decode(found["data"]))


@asynccontextmanager
async def browser(url, microphone):
    """The page at an address; the microphone plays a file, once."""
    with tempfile.TemporaryDirectory() as profile:
        flags = [
            *FLAGS,
            f"--user-data-dir={profile}",
            f"--use-file-for-fake-audio-capture={microphone}%noloop",
        ]
        process = subprocess.Popen(
            [str(CHROMIUM), *flags, "about:blank"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            port = await asyncio.to_thread(_port, Path(profile) / "DevToolsActivePort", process)
            pages = json.loads(urllib3.request("GET", f"http://127.0.0.1:{port}/json/list").data)
            target = next(page["webSocketDebuggerUrl"] for page in pages if page["type"] == "page")
            async with connect(target, max_size=None) as websocket:
                page = Page(websocket)
                await page.call("Page.navigate", url=url)
                yield page
        finally:
            process.terminate()
            process.wait(20)


def _port(path, process):
    until = time.monotonic() + 60
    while time.monotonic() < until:
        if path.exists() and (lines := path.read_text().splitlines()):
            return int(lines[0])
        assert process.poll() is None, "Chromium has ended"
        time.sleep(0.1)
    raise AssertionError("Chromium did not start")
