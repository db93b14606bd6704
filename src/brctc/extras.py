"""Names the extra that is missing, before an import fails somewhere inside."""

from collections.abc import Iterable
from importlib.util import find_spec

ASR = (
    "kaldi_native_fbank",
    "lhotse",
    "pydantic",
    "rich",
    "safetensors",
    "scipy",
    "sentencepiece",
    "sklearn",
    "soundfile",
    "yaml",
)


def check_extra(modules: Iterable[str] = ASR, extra: str = "asr") -> None:
    """Raises an ImportError if a module of the extra is not installed."""
    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        raise ImportError(f"brctc needs {', '.join(missing)} here: in its checkout, pip install '.[{extra}]'")
