"""A real Chromium without a window, led by its own debugging protocol over two pipes."""

import base64
import itertools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-pipe",
)
# the protocol is spoken on descriptors 3 and 4, whatever numbers the pipes have here
START = (
    "import fcntl, os, sys; "
    "reads, writes = (fcntl.fcntl(int(pipe), fcntl.F_DUPFD, 10) for pipe in sys.argv[1:3]); "
    "os.dup2(reads, 3); os.dup2(writes, 4); os.execv(sys.argv[3], sys.argv[3:])"
)


def find_chromium() -> str | None:
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Browser:
    """One page, in a profile of its own."""

    def __init__(self, profile: Path) -> None:
        program = find_chromium()
        assert program is not None
        (theirs_in, self._out), (self._in, theirs_out) = os.pipe(), os.pipe()
        arguments = [program, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        self._process = subprocess.Popen(
            [sys.executable, "-c", START, str(theirs_in), str(theirs_out), *arguments],
            pass_fds=(theirs_in, theirs_out),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._numbers = itertools.count(1)
        self._rest = b""
        self.events: list[dict] = []
        self._session: str | None = None
        page = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._session = None
        self.call("Browser.close")
        self._process.wait(timeout=30)
        os.close(self._in)
        os.close(self._out)

    def call(self, method: str, **parameters: Any) -> Any:
        """A command of the protocol and its result; what is reported meanwhile goes to `events`."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]
            self.events.append(answer)

    def _read(self) -> dict:
        while b"\0" not in self._rest:
            block = os.read(self._in, 1 << 16)
            assert block, "the browser has ended"
            self._rest += block
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def open(self, page: Path, fragment: str = "") -> None:
        """Loads a page of the disk, to its end."""
        for url in (
            "about:blank",
            page.resolve().as_uri() + fragment,
        ):  # another fragment alone loads nothing
            self.events.clear()
            self.call("Page.navigate", url=url)
            while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
                self.events.append(self._read())

    def evaluate(self, code: str) -> Any:
        """The value of an expression in the page."""
        found = self.call("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def text(self, element: str) -> str:
        return self.evaluate(f"document.getElementById({json.dumps(element)}).textContent")

    def type(self, element: str, text: str) -> None:
        """Replaces what is in a field, as a user does: select all, type."""
        self.evaluate(f"(e => (e.focus(), e.select()))(document.getElementById({json.dumps(element)}))")
        if not text:
            self.press("Delete", 46)
        self.call("Input.insertText", text=text)

    def press(self, key: str, code: int) -> None:
        """A key, as the keyboard sends it to what has the focus."""
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    def choose(self, element: str, value: str) -> None:
        """An option of a list."""
        place = f"document.getElementById({json.dumps(element)})"
        self.evaluate(f"({place}.value = {json.dumps(value)}, {place}.dispatchEvent(new Event('change')), 0)")

    def show_as(self, scheme: str, width: int = 1366, height: int = 768) -> None:
        """On a light or dark screen of this size."""
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.call("Emulation.setEmulatedMedia", features=[feature])
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def picture(self, path: Path, whole: bool = False) -> None:
        found = self.call("Page.captureScreenshot", captureBeyondViewport=whole, **self._clip(whole))
        path.write_bytes(base64.b64decode(found["data"]))

    def _clip(self, whole: bool) -> dict:
        if not whole:
            return {}
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        return {"clip": {**size, "scale": 1}}

    def complaints(self) -> list[str]:
        """Errors, warnings of the console, and every address but the page's own that was asked for."""
        found = [
            str(event)
            for event in self.events
            if event.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded")
        ]
        requests = [
            e["params"]["request"]["url"]
            for e in self.events
            if e.get("method") == "Network.requestWillBeSent"
        ]
        return found + [url for url in requests if not url.startswith(("file:", "data:"))]
