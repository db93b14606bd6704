"""The page is one file that fetches nothing, and nothing that it is told becomes a part of it."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import pytest
import torch

from brctc.report.explore.page import write_explore_page
from brctc.report.explore.posteriors import Posterior, appendix_b, synthetic, uniform

EVIL = '</script><script>alert(1)</script><img src=x onerror="alert(2)">\u202e<!--'


class Elements(HTMLParser):
    def __init__(self):
        super().__init__()
        self.found, self.texts = [], []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.texts.append((self.found[-1][0] if self.found else "", data))


def read(path):
    elements = Elements()
    elements.feed(path.read_text())
    return elements


@pytest.fixture
def evil(tmp_path):
    scores = torch.randn(9, 3, generator=torch.Generator().manual_seed(0), dtype=torch.double)
    posterior = Posterior(EVIL, EVIL, EVIL, [EVIL, EVIL, EVIL], scores, [1, 2])
    write_explore_page(tmp_path / "evil.html", [appendix_b(), posterior], 1)
    return tmp_path / "evil.html"


def test_the_page_stands_alone(tmp_path):
    out = tmp_path / "new" / "page.html"
    write_explore_page(out, [appendix_b(), uniform(), synthetic()])
    assert [path.name for path in out.parent.iterdir()] == ["page.html"]
    found = read(out).found
    assert {tag for tag, _ in found}.isdisjoint({"link", "iframe", "object", "embed", "base", "img", "a"})
    for tag, attributes in found:
        assert attributes.keys().isdisjoint({"src", "href", "action", "data", "srcset"}), tag
        assert not any(name.startswith("on") for name in attributes), tag
    text = out.read_text()
    assert not re.search(r"@import|url\(|fetch\(|XMLHttpRequest|import\(|\{\{", text)
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)


def test_only_its_own_script_may_run(tmp_path):
    out = tmp_path / "page.html"
    write_explore_page(out, [appendix_b()])
    (policy,) = (
        a["content"] for tag, a in read(out).found if a.get("http-equiv") == "Content-Security-Policy"
    )
    script = out.read_text().rpartition("<script>")[2].partition("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy == f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"


def test_ids_and_tokens_are_no_markup(evil):
    text = evil.read_text()
    assert "alert(1)</script>" not in text
    assert "<img" not in text
    assert "\u202e" not in text
    elements = read(evil)
    assert [a for tag, a in elements.found if tag == "script"] == [
        {"type": "application/json", "id": "data"},
        {},
    ]
    data = json.loads(text.partition('id="data">')[2].partition("</script>")[0])
    shown = EVIL.replace("\u202e", r"\u202e")
    assert data["posteriors"][1]["title"] == data["posteriors"][1]["classes"][0] == shown
