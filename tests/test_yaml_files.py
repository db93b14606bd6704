"""YAML as recipes use it: words are words, and no small file takes much time or memory."""

import math
import time
import tracemalloc

import pytest
import yaml

from brctc.yaml_files import MOST_VALUES, copy_plain, parse_yaml, read_yaml


@pytest.mark.parametrize("word", ["on", "off", "yes", "no", "On", "YES", "n", "y", "True", "FALSE", "truely"])
def test_words_are_words(word):
    assert parse_yaml(f"loss: {{{word}: middle, x: {word}}}") == {"loss": {word: "middle", "x": word}}


def test_values():
    text = "{a: true, b: false, c: null, d: ~, e: 3, f: 0.5, g: 3e-4, h: 1E6, i: -2e3, j: 1.5e+3, "
    text += "k: '3e-4', l: 1e}"
    assert parse_yaml(text) == {
        "a": True,
        "b": False,
        "c": None,
        "d": None,
        "e": 3,
        "f": 0.5,
        "g": 3e-4,
        "h": 1e6,
        "i": -2000.0,
        "j": 1500.0,
        "k": "3e-4",
        "l": "1e",
    }
    found = parse_yaml("[.inf, -.inf, .nan, 3e-4]")
    assert found[:2] == [math.inf, -math.inf]
    assert math.isnan(found[2])
    assert isinstance(found[3], float)
    for nothing in ("", "# a comment", "---", "null"):
        assert parse_yaml(nothing) is None


def test_a_file(tmp_path):
    path = tmp_path / "r.yaml"
    path.write_text("a: 1\nb: [x, été]\n", encoding="utf-8")
    assert read_yaml(path) == {"a": 1, "b": ["x", "été"]}
    path.write_text("a: [1\n")
    with pytest.raises(ValueError, match=r"(?s)r\.yaml is not YAML: .*line 2"):
        read_yaml(path)
    path.write_bytes("a: été".encode("latin-1"))
    with pytest.raises(ValueError, match=r"r\.yaml is not YAML: .*utf-8"):
        read_yaml(path)
    path.write_text("a: \x07")
    with pytest.raises(ValueError, match=r"r\.yaml is not YAML"):
        read_yaml(path)
    path.write_text("a: 1\n---\nb: 2\n")
    with pytest.raises(ValueError, match=r"(?s)r\.yaml is not YAML: .*single document"):
        read_yaml(path)


def bomb(levels: int, width: int) -> str:
    """Each level is an alias of the one before, several times."""
    lines = ["a0: &a0 [" + ", ".join(["x"] * width) + "]"]
    for level in range(1, levels):
        lines.append(f"a{level}: &a{level} [" + ", ".join([f"*a{level - 1}"] * width) + "]")
    return "\n".join(lines)


def map_bomb(levels: int, width: int) -> str:
    """The same with mappings, and with merge keys."""
    lines = ["a0: &a0 {" + ", ".join(f"k{n}: 1" for n in range(width)) + "}"]
    for level in range(1, levels):
        inner = ", ".join(f"k{n}: *a{level - 1}" for n in range(width))
        lines.append(f"a{level}: &a{level} {{{inner}}}")
    return "\n".join(lines)


def merge_bomb(levels: int, width: int) -> str:
    lines = ["a0: &a0 {x: 1}"]
    for level in range(1, levels):
        merged = ", ".join([f"*a{level - 1}"] * width)
        lines.append(f"a{level}: &a{level} {{<<: [{merged}]}}")
    return "\n".join(lines)


REFUSED = {
    "bomb": (bomb(9, 9), "more than 100,000 values with aliases"),
    "large bomb": (bomb(40, 20), "more than 100,000 values with aliases"),
    "bomb of mappings": (map_bomb(9, 9), "more than 100,000 values with aliases"),
    "bomb of merges": (merge_bomb(9, 9), "more than 100,000 values with aliases"),
    "recursive list": ("a: &a [1, *a]", "line 1: an alias that contains itself"),
    "recursive mapping": ("x: 1\na: &a\n  b: *a\n", "line 2: an alias that contains itself"),
    "recursive merge": ("a: &a {<<: *a}", "an alias that contains itself"),
    "recursive round": ("a: &a {b: &b {c: *a}}", "an alias that contains itself"),
    "repeated key": ("a: 1\nb: 2\na: 3\n", "line 3: a is written twice"),
    "repeated inner key": ("a:\n  b: {c: 1, c: 1}\n", "line 2: c is written twice"),
    "repeated number": ("{1: a, 1: b}", "1 is written twice"),
    "list as key": ("? [a, b]\n: 1\n", "line 1: a key must be a word or a number"),
    "mapping as key": ("{{a: 1}: 2}", "a key must be a word or a number"),
    "alias as key": ("a: &a [1]\n? *a\n: 2\n", "a key must be a word or a number"),
    "deep list": ("[" * 20_000 + "]" * 20_000, "nested too deeply"),
    "deep mapping": ("{a: " * 20_000 + "1" + "}" * 20_000, "nested too deeply"),
    "deep block": ("".join(" " * n + "-\n" for n in range(1000)), "nested too deeply"),
    "object": ("!!python/object/apply:os.system ['true']", "could not determine a constructor"),
    "name": ("a: !!python/name:os.system", "could not determine a constructor"),
    "unknown tag": ("a: !thing 3", "could not determine a constructor"),
    "undefined alias": ("a: *b", "undefined alias"),
    "tab": ("a:\n\tb: 1", "found character"),
    "tagged number": ("a: !!int many", "line 1: .*many"),
    "tagged float": ("a: !!float many", "line 1: .*many"),
    "tagged boolean": ("a: !!bool perhaps", "line 1: .*perhaps"),
    "tagged time": ("a: !!timestamp soon", "line 1: .*soon"),
    "no day": ("x: 1\na: 2024-02-31", "line 2: .*2024-02-31"),
    "no month": ("a: 2024-13-01", "line 1: .*2024-13-01"),
    "endless number": ("a: " + "9" * 5000, "line 1: .*9999"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_refused_at_once(name):
    text, message = REFUSED[name]
    tracemalloc.start()
    start = time.monotonic()
    with pytest.raises(yaml.YAMLError, match=message) as caught:
        parse_yaml(text)
    seconds = time.monotonic() - start
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert seconds < 5  # tracing memory takes most of it
    assert peak < 200 << 20
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_take_less_than_a_second_and_name_the_file(name, tmp_path):
    path = tmp_path / "r.yaml"
    path.write_text(REFUSED[name][0])
    start = time.monotonic()
    with pytest.raises(ValueError, match=r"r\.yaml is not YAML: "):
        read_yaml(path)
    assert time.monotonic() - start < 1


def test_large_files_without_aliases_are_read():
    numbers = ", ".join(map(str, range(5000)))
    assert len(parse_yaml(f"[{numbers}]")) == 5000


def test_the_most_values():
    """A list of 999 words, 99 times; and once more."""
    items = ", ".join(["x"] * (MOST_VALUES // 100 - 1))
    fitting = f"[&a [{items}], " + ", ".join(["*a"] * 98) + "]"
    found = parse_yaml(fitting)
    assert sum(map(len, found)) == 99 * (MOST_VALUES // 100 - 1)
    with pytest.raises(yaml.YAMLError, match="more than 100,000 values"):
        parse_yaml(fitting[:-1] + ", *a]")


def test_deep_but_not_too_deep():
    found = parse_yaml("[" * 99 + "x" + "]" * 99)
    for _ in range(99):
        (found,) = found
    assert found == "x"


def test_aliases_in_two_places_are_separate_copies():
    found = parse_yaml("a: &a {x: [1, 2], y: {z: 3}}\nb: *a\nc: {<<: *a, w: 4}\nd: [*a, *a]\n")
    assert found["b"] == found["a"] == found["d"][0] == found["d"][1] == {"x": [1, 2], "y": {"z": 3}}
    assert found["c"] == {"x": [1, 2], "y": {"z": 3}, "w": 4}
    found["a"]["x"].append(3)
    found["a"]["y"]["z"] = 5
    for other in (found["b"], found["c"], *found["d"]):
        assert other["x"] == [1, 2]
        assert other["y"] == {"z": 3}


def test_merged_keys_can_be_overridden_but_not_written_twice():
    assert parse_yaml("a: &a {x: 1, y: 2}\nb: {<<: *a, x: 3}")["b"] == {"x": 3, "y": 2}
    with pytest.raises(yaml.YAMLError, match="x is written twice"):
        parse_yaml("a: &a {x: 1}\nb: {<<: *a, x: 3, x: 4}")


def test_copy_plain():
    shared = [1]
    found = copy_plain({"a": shared, "b": [shared, {"c": shared}], 3: None})
    assert found == {"a": [1], "b": [[1], {"c": [1]}], 3: None}
    shared.append(2)
    assert found["a"] == [1]
    assert found["a"] is not found["b"][0] is not found["b"][1]["c"]
