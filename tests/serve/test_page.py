"""The page in a real browser: a file, and a recorded file as the microphone."""

import asyncio
import os
import re

import numpy as np
import pytest
import soundfile

from tests.data.sounds import write
from tests.decode.streams import sound
from tests.serve.browser import CHROMIUM, browser
from tests.serve.serving import expected

SHOWN = (
    "[...document.querySelectorAll('section')]"
    ".map(s => [s.dataset.model, s.querySelector('.text').innerText])"
)
TOKENS = "[...document.querySelectorAll('small')].map(s => Number(s.dataset.tokens))"
INK = """(() => { const c = document.querySelector('canvas'), d = c.getContext('2d');
  const p = d.getImageData(0, 0, c.width, c.height).data; let n = 0;
  for (let i = 0; i < p.length; i += 4) n += p[i] > 150 && p[i + 1] < 100 && p[i + 2] < 60; return n; })()"""


def test_the_page_needs_no_network(server):
    """No address in it leads elsewhere."""
    page = server.get("/").data.decode()
    assert not re.findall(r"(?:https?:)?//[\w.-]+\.\w+", page)
    assert not re.findall(r"<(?:script|link|img)[^>]+(?:src|href)=", page)


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium (apt-get install chromium)")
def test_file_and_microphone_in_chromium(server, models, tmp_path):
    """Both models side by side: the text of a file is the server's own, and spikes are drawn."""
    path = write(tmp_path / "said.wav", sound(0, 3.0) / 4)
    samples, _ = soundfile.read(path, dtype="float32")
    recorded = write(tmp_path / "microphone.wav", np.tile(samples, 3))

    async def look():
        async with browser(server.url("/"), recorded) as page:
            await page.until("document.body?.dataset.state === 'ready'")
            await page.choose("#file", path)
            await page.until("document.body?.dataset.state === 'done'")
            shown, drawn, counts = await page.run(SHOWN), await page.run(INK), await page.run(TOKENS)
            await page.screenshot(os.environ.get("BRCTC_SCREENSHOT", tmp_path / "page.png"))
            await page.run("document.getElementById('microphone').click()")
            await page.until("document.getElementById('status').textContent === 'listening'")
            await page.until(f"{TOKENS}.every(n => n > 10)")
            await page.run("document.getElementById('stop').click()")
            await page.until("document.body?.dataset.state !== 'running'")
            assert await page.run("document.body?.dataset.state") == "done"
            return shown, drawn, counts, await page.run(SHOWN), await page.run(TOKENS)

    shown, drawn, counts, spoken, heard = asyncio.run(look())
    assert [name for name, _ in shown] == ["plain", "early"]
    for (name, text), count in zip(shown, counts, strict=True):
        segments, _ = expected(models / name, samples)
        assert text.strip() == " ".join(segment.text for segment in segments).strip()
        assert count == sum(len(segment.tokens) for segment in segments)
    assert drawn > 100  # pixels of the spikes' colour
    assert all(text.strip() for _, text in spoken)
    assert min(heard) > 10
