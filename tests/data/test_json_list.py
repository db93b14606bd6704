"""A list in a JSON file is read item by item, and what is wrong with the file is told."""

import json
import tracemalloc
from itertools import islice

import pytest

from brctc.data import json_list
from brctc.data.json_list import iterate_json_list

ITEMS = [
    {"id": "a", "text": '"quoted" \\ 你好 \U0001f600 ]}', "numbers": [1, -2.5e3, None, True]},
    [],
    {},
    "a text, with ] and } in it",
    12345678901234567890,
    0.125,
    None,
]


def written(tmp_path, content: str):
    path = tmp_path / "list.json"
    path.write_text(content, encoding="utf-8")
    return path


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("escaped", [False, True])
def test_items_wherever_blocks_end(tmp_path, monkeypatch, indent, escaped):
    content = {"before": {"audios": [1]}, "audios": ITEMS, "after": [2, {"b": 3.25}], "last": 1}
    path = written(tmp_path, json.dumps(content, indent=indent, ensure_ascii=escaped))
    for block in range(50, 120):  # no text is longer
        monkeypatch.setattr(json_list, "BLOCK", block)
        assert list(iterate_json_list(path, "audios")) == ITEMS
        assert list(iterate_json_list(path, "after")) == [2, {"b": 3.25}]


def test_empty_lists_and_a_byte_order_mark(tmp_path):
    assert list(iterate_json_list(written(tmp_path, '{"audios": [ ]}'), "audios")) == []
    assert list(iterate_json_list(written(tmp_path, '\ufeff{"audios":[1]}\n'), "audios")) == [1]


def test_a_long_item_is_read_whole(tmp_path):
    item = {"segments": [{"sid": f"s{n}", "text": "你好" * 20} for n in range(40_000)]}
    path = written(tmp_path, json.dumps({"audios": [item, 2]}, ensure_ascii=False))
    assert path.stat().st_size > 4 * json_list.BLOCK
    assert list(iterate_json_list(path, "audios")) == [item, 2]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", r"is not JSON: it ends too early, or is wrong at character 0$"),
        ("[1, 2]", r"is not JSON: '\[', expected '\{' at character 0$"),
        ('{"other": []}', r"has no 'audios'$"),
        ('{"audios": {}}', r"is not JSON: '\{', expected '\[' at character 11$"),
        ('{"audios": [1 2]}', r"is not JSON: '2', expected ',' at character 14$"),
        ('{"audios" [1]}', r"is not JSON: '\[', expected ':' at character 10$"),
        ('{"audios": [1, {"a": }]}', r"is not JSON: it ends too early, or is wrong at character 15$"),
        ('{"audios": [1, {"a": 1}', r"is not JSON: it ends too early, or is wrong at character 23$"),
        ('{"audios": [1, {"a": "x', r"is not JSON: it ends too early, or is wrong at character 15$"),
        ('{"audios": [1]', r"is not JSON: it ends too early, or is wrong at character 14$"),
        ('{"audios": [' + "[" * 100_000, r"is not JSON: .* at character 12$"),
    ],
)
def test_what_is_wrong(tmp_path, content, message):
    path = written(tmp_path, content)
    with pytest.raises(ValueError, match=message) as caught:
        list(iterate_json_list(path, "audios"))
    assert str(caught.value).startswith(str(path))


def test_another_encoding_is_named(tmp_path):
    path = tmp_path / "list.json"
    path.write_bytes(json.dumps({"audios": ["你好"]}, ensure_ascii=False).encode("gbk"))
    with pytest.raises(ValueError, match=r"list\.json is not UTF-8: "):
        list(iterate_json_list(path, "audios"))


def test_items_come_one_by_one(tmp_path):
    """Also what is wrong in the middle of a large file is told without the rest of it in memory."""
    many = ",".join(json.dumps({"id": n, "text": "x" * 200}) for n in range(100_000))
    path = written(tmp_path, f'{{"audios": [{many}, {{"id": oops}}, {many}]}}')
    tracemalloc.start()
    assert [item["id"] for item in islice(iterate_json_list(path, "audios"), 3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="is not JSON: Expecting value at character"):
        for _ in iterate_json_list(path, "audios"):
            pass
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert path.stat().st_size > 40 << 20
    assert peak < 12 << 20
