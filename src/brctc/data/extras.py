"""The door of the toolkit: says which extra is missing before anything fails to import."""

from importlib.util import find_spec

NEEDED = ("kaldi_native_fbank", "lhotse", "pydantic", "scipy", "sentencepiece", "sklearn", "soundfile")

missing = [name for name in NEEDED if find_spec(name) is None]
if missing:
    raise ImportError(f"brctc.data needs {', '.join(missing)}: pip install 'brctc[asr]'")
