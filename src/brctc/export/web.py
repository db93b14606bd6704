"""A folder for any file server: one page that recognises in the browser, by onnxruntime-web."""

import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Literal

from brctc.data import FeatureConfig
from brctc.data.features import check_streams
from brctc.export.base import EXPORTS, ExportConfig
from brctc.export.graphs import write_graphs
from brctc.export.onnx_format import plan_for_onnx
from brctc.export.tokens import check_pieces
from brctc.files import write_text
from brctc.models import Model

RUNTIME = "onnxruntime-web@1.30.0"  # the one that is tested
RUNTIME_FILES = ("ort.wasm.min.mjs", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm")
INSTALLED = Path("node_modules/onnxruntime-web/dist")
OWN_FILES = Path(__file__).parent / "browser"
PAGE = Path(__file__).parents[1] / "serve" / "page.html"
SHOWN = "any file server shows the page, such as: python -m http.server --directory DIR"
SERVED, LOCAL = "const engine = server;", 'const { engine } = await import("./engine.js");'


@EXPORTS.register
class WebExport(ExportConfig):
    """A model for the browser alone: CTC of whole utterances or of streams, from a microphone or files."""

    kind: Literal["web"] = "web"
    int8: bool = False
    """Weights of eight bits."""
    runtime: Path | None = None
    """The folder `dist` of onnxruntime-web. By default that in `node_modules`, or npm brings it."""

    def write(self, model: Model, out: Path) -> Sequence[str]:
        plan = replace(plan_for_onnx(model, decoders=False), made_for=self.kind)
        config = plan.config
        if config.output not in config.heads:
            raise ValueError(f"the page hears CTC alone, and the model has none of {config.output}")
        check_features(model.features)
        if plan.streaming is not None and model.features is not None:
            check_streams(model.features)
        check_pieces(model.tokenizer)
        with runtime(self.runtime) as folder:
            for name in RUNTIME_FILES:
                shutil.copyfile(folder / name, out / name)
        for path in OWN_FILES.glob("*.js"):
            shutil.copyfile(path, out / path.name)
        page = PAGE.read_text()
        assert page.count(SERVED) == 1
        write_text(out / "index.html", page.replace(SERVED, LOCAL))
        return [*write_graphs(model, plan, out, self.int8), SHOWN]


def check_features(features: FeatureConfig | None) -> None:
    """Refuses features that the page does not make."""
    if features is None:
        raise ValueError("the page hears audio, and the model's source is something else")
    for key in ("dither", "pitch"):
        if getattr(features, key):
            raise ValueError(f"the page cannot make the model's features: {key}")


@contextmanager
def runtime(given: Path | None) -> Iterator[Path]:
    """A folder with onnxruntime-web's files."""
    folder = given or (INSTALLED if INSTALLED.is_dir() else None)
    with tempfile.TemporaryDirectory() as temporary:
        folder = folder or _bring(Path(temporary))
        missing = [name for name in RUNTIME_FILES if not (folder / name).is_file()]
        if missing:
            raise FileNotFoundError(
                f"runtime: {folder} is no dist of onnxruntime-web: no {', '.join(missing)}"
            )
        yield folder


def _bring(folder: Path) -> Path:
    """Asks npm for it, which checks what it brings."""
    manually = f"npm install {RUNTIME} puts it where you are, and --set runtime=FOLDER names its dist"
    npm = shutil.which("npm")
    if npm is None:
        raise FileNotFoundError(f"onnxruntime-web is not here, and npm is not: {manually}")
    brought = subprocess.run(
        [npm, "pack", "--silent", RUNTIME], cwd=folder, capture_output=True, text=True, check=False
    )
    packs = list(folder.glob("*.tgz"))
    if brought.returncode or not packs:
        raise OSError(f"npm did not bring {RUNTIME}: {brought.stderr.strip()[-300:]}\n{manually}")
    with tarfile.open(packs[0]) as pack:
        pack.extractall(folder, filter="data")
    return folder / "package" / "dist"
