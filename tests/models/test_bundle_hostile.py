"""Descriptions of models that somebody has made on purpose: refused before memory is spent."""

import copy
import json
import math
import re
import subprocess
import sys
import time

import pytest

from brctc.models import TrimConfig, load_model
from tests.models.saved import save
from tests.models.toys import TEXT, toy_config, toy_online_config, toy_system


def refused(directory, text):
    """The message, which names a file of the model; any other error is a failure."""
    (directory / "model.json").write_text(text)
    try:
        load_model(directory)
    except (ValueError, FileNotFoundError) as error:
        message = str(error)
    else:
        pytest.fail(f"loaded: {text}")
    assert message.startswith(str(directory)), message
    return message


def places(value, path=()):
    """Everywhere in a description; of a list, its first items."""
    yield path
    items = (
        value.items() if isinstance(value, dict) else enumerate(value[:3]) if isinstance(value, list) else ()
    )
    for key, inner in items:
        yield from places(inner, (*path, key))


def replaced(content, path, value):
    content = copy.deepcopy(content)
    inner = content
    for key in path[:-1]:
        inner = inner[key]
    if path:
        inner[path[-1]] = value
    return content if path else value


WRONG = [None, -1, 3.5, math.nan, math.inf, 10**30, 2**31, "", "x", "\ud800", "../x", "y" * 5000]
WRONG += [[], [1], ["ab"], [["a", 1]], {}, {"a": 1}, {"": {}}, {"a.b": {}}, {"\ud800": 1}]


# what may be there instead: it is not wrong, or nothing can tell
HARMLESS = [
    (("features",), None),
    (("features", "frame_shift_ms"), 3.5),
    (("features", "low_hz"), 3.5),
    (("features", "high_hz"), -1),
    (("trim",), None),
    (("trim",), {}),
    (("system", "heads", TEXT), {}),
    *((("tokenizers", TEXT, "pieces", 2), piece) for piece in WRONG if isinstance(piece, str)),
]


@pytest.mark.slow
@pytest.mark.parametrize("config", [toy_config(attention=True, transducer=True), toy_online_config()])
def test_wrong_types_everywhere(tmp_path, config):
    """Each value of the description, and each part of it, is replaced by all that it cannot be."""
    trims = config.encoder.trims_at is not None
    save(tmp_path, toy_system(config), trim=TrimConfig() if trims else None)
    content = json.loads((tmp_path / "model.json").read_text())
    tried = 0
    for path in places(content):
        for wrong in WRONG:
            changed = replaced(content, path, wrong)
            anything = path[:1] == ("description",) and (len(path) > 1 or isinstance(wrong, dict))
            if anything or changed == content:
                continue
            if (path, wrong) in HARMLESS and (trims or path != ("trim",)):
                (tmp_path / "model.json").write_text(json.dumps(changed))
                load_model(tmp_path)
            else:
                refused(tmp_path, json.dumps(changed))
            tried += 1
    assert tried > 500


@pytest.mark.parametrize("brackets", ["[]", '{"a":}'], ids=["lists", "objects"])
@pytest.mark.parametrize(
    "path",
    [
        ("format",),
        ("weights", "file"),
        ("system",),
        ("system", "encoder"),
        ("system", "encoder", "kind"),
        ("system", "encoder", "dim"),
        ("system", "decoders", "attention"),
        ("tokenizers", TEXT),
        ("tokenizers", TEXT, "pieces"),
        ("features", "dither"),
        ("trim",),
    ],
    ids=".".join,
)
def test_deep_nesting(tmp_path, path, brackets):
    """Deeper than can be read, and every depth around it: some can be read, but neither checked nor shown."""
    save(tmp_path)
    content = json.loads((tmp_path / "model.json").read_text())
    text = json.dumps(replaced(content, path, "@"))
    opened, closed = brackets[:-1], brackets[-1]
    limit = sys.getrecursionlimit()
    for depth in (50, limit // 2, *range(limit - 250, limit), 100 * limit):
        refused(tmp_path, text.replace('"@"', opened * depth + "1" + closed * depth))


def many(count, value):
    return {f"x{k}": value for k in range(count)}


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("system", "encoder", "first_layers"), 100_000, r"first_layers: .* less than or equal to 1000"),
        (("system", "encoder", "first_layers"), 1000, "a system that is much larger than its weights"),
        (("system", "encoder", "dim"), 65_538, r"encoder\.dim: .* less than or equal to 65536"),
        (("system", "encoder", "dim"), 65_536, "expected float"),
        (("system", "encoder", "kernel_size"), 10**30 + 1, "damaged"),
        (("system", "encoder", "subsampling_channels"), 10**30, "damaged"),
        (
            ("system", "decoders"),
            many(10, {"kind": "attention", "layers": 1000}),
            "a system that is much larger than its weights",
        ),
        (
            ("system", "decoders"),
            many(2000, {"kind": "transducer", "prediction_dim": 65536}),
            "a system that is much larger than its weights",
        ),
        (
            ("system", "encoder"),
            {"kind": "emformer", "chunk_frames": 10**9},
            r"chunk_frames: .* equal to 10000",
        ),
        (
            ("system", "encoder"),
            {"kind": "emformer", "left_context_frames": 10**9},
            r"left_context_frames: .* equal to 10000",
        ),
        (("trim", "margin"), 10**30, r"trim\.margin: .* less than or equal to 1000000"),
        (("features", "frame_length_ms"), 1e9, r"features\.frame_length_ms: .* less than or equal to 1000"),
        (
            ("features", "frame_length_ms"),
            math.inf,
            r"features\.frame_length_ms: .* less than or equal to 1000",
        ),
        (("features", "frame_shift_ms"), 1e9, r"features\.frame_shift_ms: .* less than or equal to 1000"),
        (("features", "sample_rate"), 10**9, r"features\.sample_rate: .* less than or equal to 1000000"),
        (("features", "dither"), 1.5, r"features\.dither: .* less than or equal to 1"),
        (("features", "dither"), math.nan, r"features\.dither: "),
        (("vocab_sizes", TEXT), 2**31 - 1, "the tokenizer of transcript has 5 classes"),
    ],
    ids=lambda value: None if isinstance(value, dict) else str(value)[:60],
)
def test_far_too_much(tmp_path, path, value, message):
    """It is refused before time and memory are spent on it."""
    save(tmp_path)
    content = json.loads((tmp_path / "model.json").read_text())
    start = time.process_time()
    found = refused(tmp_path, json.dumps(replaced(content, path, value)))
    assert time.process_time() - start < 10
    assert re.search(message, found), found


MEASURE = """
import resource, sys
from brctc.models import load_model
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
before = peak()
for directory in sys.argv[1:]:
    try:
        load_model(directory)
    except ValueError as error:
        assert "model.json" in str(error), error
    else:
        raise AssertionError("it was loaded")
print((peak() - before) // 1024)
"""


@pytest.mark.slow
def test_far_too_much_takes_no_memory(tmp_path):
    """In a process of its own, whose peak nobody else has raised."""
    directories = []
    for path, value in (
        (("system", "encoder", "first_layers"), 1000),
        (("system", "encoder", "dim"), 65_536),
        (("system", "decoders"), many(10, {"kind": "attention", "layers": 1000})),
        (("features", "frame_length_ms"), 1e9),
    ):
        directories.append(tmp_path / str(len(directories)))
        save(directories[-1])
        content = json.loads((directories[-1] / "model.json").read_text())
        (directories[-1] / "model.json").write_text(json.dumps(replaced(content, path, value)))
    command = [sys.executable, "-c", MEASURE, *map(str, directories)]
    found = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert found.returncode == 0, found.stderr
    assert int(found.stdout) < 100, "megabytes"
