"""The page for the browser alone: its filterbank, its resampling, and what it hears."""

import asyncio
import json
import os
import shutil
import subprocess
import threading
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
import soundfile

from brctc.data import FeatureConfig, extract_features
from brctc.data.audio import load_audio
from brctc.data.resampling import ResamplingStream
from brctc.decode import Recognizer
from brctc.export import EXPORTS, export_model
from brctc.export.web import OWN_FILES, RUNTIME, RUNTIME_FILES
from tests.cli.commands import brctc
from tests.data.sounds import noise, write
from tests.decode.streams import sound
from tests.export.small import ATTENTION, ONLINE, TRIM, save, small_model
from tests.serve.browser import CHROMIUM, browser

NODE, NPM = shutil.which("node"), shutil.which("npm")
needs_node = pytest.mark.skipif(NODE is None, reason="there is no Node.js")
PUSHES = (1, 399, 1600, 7)
FILTER = """
import { readFileSync, writeFileSync } from "node:fs";
import { %(name)s } from "%(folder)s/%(file)s";
const raw = readFileSync("samples.f32"), sizes = %(sizes)s;
const samples = new Float32Array(raw.buffer, raw.byteOffset, raw.length / 4);
const made = new %(name)s(%(arguments)s), found = [];
for (let at = 0, n = 0; at < samples.length; at += sizes[n++ %% sizes.length]) {
  found.push(...made.push(samples.subarray(at, at + sizes[n %% sizes.length])));
}
found.push(...made.finish());
const numbers = found.flatMap((part) => typeof part === "number" ? [part] : [...part]);
writeFileSync("found.f32", Float32Array.from(numbers));
"""


def through_node(folder, file, name, arguments, samples):
    """What a class of the page makes of samples that come in small pushes."""
    (folder / "package.json").write_text('{"type": "module"}')
    for path in OWN_FILES.glob("*.js"):
        shutil.copy(path, folder)
    samples.astype("<f4").tofile(folder / "samples.f32")
    told = {"file": file, "name": name, "folder": ".", "sizes": list(PUSHES)}
    (folder / "run.js").write_text(FILTER % {**told, "arguments": ", ".join(map(json.dumps, arguments))})
    subprocess.run([str(NODE), "run.js"], cwd=folder, check=True)
    return np.fromfile(folder / "found.f32", "<f4")


@needs_node
@pytest.mark.parametrize("seconds", [0.004, 0.012, 0.03, 1.234])
@pytest.mark.parametrize(
    "config",
    [
        FeatureConfig(),
        FeatureConfig(num_bins=23, sample_rate=8000, low_hz=0, high_hz=3800, frame_length_ms=32),
    ],
)
def test_filterbanks_are_the_same(tmp_path, config, seconds):
    samples = noise(seconds, 3, config.sample_rate)
    samples[len(samples) // 2 :] *= 1e-4
    samples[: len(samples) // 8] = 0  # digital silence is at the floor
    found = through_node(tmp_path, "filterbank.js", "Filterbank", [config.model_dump()], samples)
    expected = extract_features(samples, config) if seconds > 0.005 else np.zeros((0, config.num_bins))
    assert found.size == expected.size
    differences = np.abs(found.reshape(expected.shape) - expected)
    assert np.all(differences < 5e-4)
    assert differences.sum() <= 2e-5 * differences.size


@needs_node
@pytest.mark.parametrize("rates", [(48000, 16000), (44100, 16000), (8000, 16000), (16000, 16000)])
def test_resampling_is_the_same(tmp_path, rates):
    samples = noise(0.7, 1, rates[0])
    found = through_node(tmp_path, "resampling.js", "Resampling", rates, samples)
    stream = ResamplingStream(*rates)
    expected = np.concatenate([stream.push(samples), stream.finish()])
    assert len(found) == len(expected)
    np.testing.assert_allclose(found, expected, atol=2e-7)


def web(tmp_path, **options):
    folder = tmp_path / "dist"
    folder.mkdir(exist_ok=True)
    for name in RUNTIME_FILES:
        (folder / name).write_text(name)
    return EXPORTS.parse({"kind": "web", "runtime": folder, **options})


def test_the_folder_is_whole(tmp_path):
    """Page, scripts, runtime, graph and vocabulary; and it is an exported model like any other."""
    made = small_model(trim=TRIM, decoders={"attention": ATTENTION}, seed=2)
    lines = export_model(made, tmp_path / "page", web(tmp_path))
    assert "python -m http.server" in lines[-1]
    scripts = {"engine.js", "filterbank.js", "recognizer.js", "resampling.js"}
    graphs = {"export.json", "model.onnx", "tokens.txt"}
    assert {path.name for path in (tmp_path / "page").iterdir()} == {
        "index.html",
        *scripts,
        *graphs,
        *RUNTIME_FILES,
    }
    about = json.loads((tmp_path / "page" / "export.json").read_text())
    assert (about["made_for"], about["system"]["decoders"]) == ("web", {})
    samples = sound(0)
    expected = Recognizer(made).recognize([write(tmp_path / "said.wav", samples)], method="ctc-greedy")
    found = Recognizer.from_directory(tmp_path / "page").recognize([tmp_path / "said.wav"])
    assert found[0].text == expected[0].text != ""


def test_what_the_page_cannot_do_is_refused(tmp_path):
    form = web(tmp_path)
    cases = {
        "dither": small_model(features=FeatureConfig(dither=0.01)),
        "pitch": small_model(features=FeatureConfig(pitch=True)),
        "CTC alone": small_model(decoders={"attention": ATTENTION}, heads={}),
    }
    for message, model in cases.items():
        with pytest.raises(ValueError, match=message):
            export_model(model, tmp_path / "page", form)
    (tmp_path / "dist" / RUNTIME_FILES[2]).unlink()
    with pytest.raises(FileNotFoundError, match=r"no dist of onnxruntime-web: no ort-wasm-simd"):
        export_model(small_model(), tmp_path / "page", form)
    assert not (tmp_path / "page").exists()


def test_without_npm_it_says_what_to_do(tmp_path):
    save(small_model(), tmp_path / "model")
    (tmp_path / "bin").mkdir()
    found = brctc(tmp_path, "export", "model", "--out", "page", "--for", "web", PATH=str(tmp_path / "bin"))
    assert found.code == 2
    assert f"npm install {RUNTIME}" in found.err
    assert "runtime=FOLDER" in found.err


@contextmanager
def file_server(folder):
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


HEAR = """(async () => {
  const { Recognizer } = await import("/%s/recognizer.js"), recognizer = await Recognizer.load(), said = [];
  for (let i = 0; i < %d; i++) {
    const samples = new Float32Array(await (await fetch(`/said/${i}.f32`)).arrayBuffer());
    said.push(await recognizer.recognize(samples, i %% 2 ? 16000 : 48000));
  }
  return said;
})()"""
SHOWN = "document.querySelector('.text').innerText.trim()"
COUNT = "Number(document.querySelector('small').dataset.tokens)"


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium (apt-get install chromium)")
@pytest.mark.skipif(NPM is None, reason="there is no npm, which brings onnxruntime-web")
def test_fifty_recordings_in_chromium(tmp_path):
    """Offline, trimmed, and in streams; at the model's rate and another one; a file and the microphone."""
    (tmp_path / "said").mkdir()
    recordings = [tmp_path / "said" / f"{i}.wav" for i in range(50)]
    for i, path in enumerate(recordings):
        samples = sound(i, 1 + i / 25)
        rate = 16000 if i % 2 else 48000
        write(path, samples if rate == 16000 else np.repeat(samples, 3), rate)
        soundfile.read(path, dtype="float32")[0].astype("<f4").tofile(path.with_suffix(".f32"))
    models = {"whole": small_model(trim=TRIM, seed=2), "stream": small_model(ONLINE)}
    for name, model in models.items():
        save(model, tmp_path / "exp" / name)
        found = brctc(tmp_path, "export", f"exp/{name}", "--out", name, "--for", "web")
        assert found.code == 0, found.err
    long = np.tile(load_audio(recordings[49], 16000), 3)
    microphone = write(tmp_path / "microphone.wav", long)

    async def look(url, name):
        async with browser(f"{url}/{name}/", microphone) as page:
            await page.until("document.body?.dataset.state === 'ready'")
            heard = await page.run(HEAR % (name, len(recordings)))
            await page.choose("#file", recordings[49])
            await page.until("document.body?.dataset.state === 'done'")
            shown = await page.run(SHOWN)
            if folder := os.environ.get("BRCTC_SCREENSHOTS"):
                await page.screenshot(f"{folder}/{name}.png")
            await page.run("document.getElementById('microphone').click()")
            await page.until("document.getElementById('status').textContent === 'listening'")
            await asyncio.sleep(3)
            await page.run("document.getElementById('stop').click()")
            await page.until("document.body?.dataset.state !== 'running'")
            assert await page.run("document.body?.dataset.state") == "done"
            return heard, shown, await page.run(COUNT)

    with file_server(tmp_path) as url:
        for name, model in models.items():
            heard, shown, count = asyncio.run(look(url, name))
            expected = [found.text for found in Recognizer(model).recognize(recordings, method="ctc-greedy")]
            assert heard == expected
            assert len(set(expected)) > 40
            assert shown == expected[49]
            assert count > 3
