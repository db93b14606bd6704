"""The page stands alone, shows every part, and what cannot be shown is named."""

import copy
import dataclasses
import json
import re
import shutil
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import pytest
import torch

from brctc.data import Prepared
from brctc.evaluate import Difference, Evaluation
from brctc.files import write_json
from brctc.report import make_report, name_runs, sections, write_report
from brctc.report import runs as report_runs
from brctc.report.escaping import escape
from brctc.report.pictures import look_at
from brctc.report.plots import plot_results
from brctc.report.runs import read_run
from tests.evaluate.conftest import QUICK
from tests.report.test_tables import SIGNATURES, Cells, with_metrics

SECTIONS = ["about", "results", "posteriors", "evolution", "attention", "curves", "speed", "made"]


class Outside(HTMLParser):
    """Everything that a page could fetch, run or point to."""

    def __init__(self):
        super().__init__()
        self.tags, self.links, self.resources, self.ids, self.styles = set(), [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value)
            elif name == "style" or "url(" in (value or ""):
                self.styles.append(value)
            elif name in ("src", "href", "xlink:href", "data", "action", "srcset", "poster"):
                (self.links if tag == "a" else self.resources).append(value)
            assert not name.startswith("on"), f"{tag} has {name}"


@pytest.fixture(scope="module")
def page(trained, tmp_path_factory):
    out = tmp_path_factory.mktemp("page") / "new" / "report.html"
    found = make_report(trained.runs, out, examples=2, command="brctc report <a> b", options=QUICK)
    return out, found


def test_the_page_stands_alone(page):
    out, _ = page
    assert sorted(path.name for path in out.parent.iterdir()) == ["report.html", "report.json"]
    text = out.read_text()
    outside = Outside()
    outside.feed(text)
    assert outside.tags.isdisjoint({"script", "link", "iframe", "object", "embed", "base", "img"})
    assert all(resource.startswith(("#", "data:image/png;base64,")) for resource in outside.resources)
    assert [link for link in outside.links if not link.startswith("#")] == [
        "https://arxiv.org/abs/2210.07499"
    ]
    targets = [url for style in outside.styles for url in re.findall(r"url\(([^)]*)\)", style)]
    assert targets
    assert all(url.startswith("#") for url in targets)
    assert "@import" not in text
    assert "url(" not in text[text.index("<style>") : text.index("</style>")]


def test_the_page_has_every_section(page):
    out, _ = page
    text = out.read_text()
    outside = Outside()
    outside.feed(text)
    assert [name for name in outside.ids if name in SECTIONS] == SECTIONS
    assert {link[1:] for link in outside.links if link.startswith("#")} == set(SECTIONS) - {"about"}
    parts = dict(re.findall(r'<section id="(\w+)">(.*?)</section>', text, re.DOTALL))
    counts = {name: part.count("<svg ") for name, part in parts.items()}
    assert counts == {
        "results": 1, "posteriors": 2, "evolution": 1, "attention": 1, "curves": 1, "speed": 1, "made": 0,
    }  # fmt: skip
    assert all("<figcaption>" in part for name, part in parts.items() if name != "made")
    assert "brctc report &lt;a&gt; b" in parts["made"]
    assert "small-scale" in parts["results"]
    assert "appendix G" in parts["results"]


def test_svg_is_whole_and_has_names_of_its_own(page):
    svgs = re.findall(r"<svg .*?</svg>", page[0].read_text(), re.DOTALL)
    clips = [set(re.findall(r'<clipPath id="(\w+)"', svg)) for svg in svgs]
    for svg, own in zip(svgs, clips, strict=True):
        ET.fromstring(svg.replace("xlink:href", "href"))
        assert set(re.findall(r"url\(#(\w+)\)", svg)) <= own
    assert sum(map(len, clips)) == len(set.union(*clips))


def test_the_table_has_the_numbers_of_the_json(page):
    out, found = page
    assert Evaluation.load(out.with_suffix(".json")) == found
    plain = json.loads(out.with_suffix(".json").read_text())
    text = out.read_text()
    cells = Cells()
    cells.feed(text[text.index("<table>") : text.index("</table>")])
    rows = {row[0]: row[1:] for row in cells.rows[2:]}
    for column, system in enumerate(plain["systems"]):

        def numbers(title, column=column):
            return [float(number) for number in re.findall(r"[-+]?[\d.]+", rows[title][column])]

        error, timed = system["scores"]["error-rate"], system["real_time"]
        expected = [100 * error["value"], 100 * error["low"], 100 * error["high"]]
        assert numbers("error rate, % (95% interval)") == pytest.approx(expected, abs=0.0051)
        assert numbers("errors / characters") == [float(count) for count in error["detail"].split(" / ")]
        assert numbers("down-sampling factor") == pytest.approx(
            [system["down_sampling"]["factor"]], abs=0.00051
        )
        assert numbers("real-time factor, RTF") == pytest.approx([timed["rtf"]], rel=0.006)
        assert numbers("  of the encoder") == pytest.approx([timed["encoder_rtf"]], rel=0.006)
        assert bool(system["differences"]) == (column > 0)
        if system["differences"]:
            difference = system["differences"]["error-rate"]
            expected = [100 * difference[name] for name in ("value", "low", "high")]
            assert numbers("difference to vanilla, points") == pytest.approx(expected, abs=0.0051)
            assert numbers("RTF against vanilla") == pytest.approx([100 * (timed["ratio"] - 1)], abs=0.51)
    embedded = text[text.index("(JSON)</summary><pre>") + len("(JSON)</summary><pre>") :]
    embedded = embedded[: embedded.index("</pre>")].replace("&quot;", '"').replace("&amp;", "&")
    assert json.loads(embedded) == plain


HIDDEN = "right\u202eleft\u2066\u200b\ufeff\x00\x1b[31m\x7f\u2028\xad\U000e0041"
SHOWN = r"right\u202eleft\u2066\u200b\ufeff\u0000\u001b[31m\u007f\u2028\u00ad\udb40\udc41"


def judged(evaluation, *differences):
    """The verdicts of the page on a second system that differs so in each metric."""
    found = dict(zip(evaluation.metrics, differences, strict=True))
    first, second = evaluation.systems
    second = dataclasses.replace(second, differences=found)
    text = sections.results(dataclasses.replace(evaluation, systems=(first, second)))
    return re.findall(r"<li>(.*?)</li>", text)


def test_better_is_what_the_metric_says():
    """More BLEU is better, more errors are worse; what may be chance is said to be."""
    two = with_metrics(bleu=SIGNATURES["bleu"], wer=SIGNATURES["wer"])
    assert judged(two, Difference(1.5, 0.4, 2.6, 0.995), Difference(0.02, 0.01, 0.03, 0.001)) == [
        "BLEU: brctc is better than plain | CTC (better on 99.5% of the resamples).",
        "error rate: brctc is worse than plain | CTC (better on 0.1% of the resamples).",
    ]
    assert judged(two, Difference(-1.5, -2.6, -0.4, 0.005), Difference(-0.02, -0.03, 0.01, 0.8)) == [
        "BLEU: brctc is worse than plain | CTC (better on 0.5% of the resamples).",
        "error rate: brctc is not clearly apart from plain | CTC (better on 80.0% of the resamples).",
    ]
    text = sections.results(two)
    assert "Longer bars of BLEU are better, shorter ones of frames and time." in text
    assert text.count("BLEU by sacreBLEU: nrefs:1|tok:13a") == 1
    alone = dataclasses.replace(two, systems=two.systems[:1])
    assert "<li>" not in sections.results(alone)


def test_the_bars_of_bleu_are_bleu():
    figure = plot_results(with_metrics(bleu=SIGNATURES["bleu"], wer=SIGNATURES["wer"]))
    bars = figure.get_axes()[0]
    assert bars.get_xlabel() == "BLEU"
    assert "brctc: +0.25 points of BLEU" in figure.get_suptitle()


def test_invisible_characters_are_shown():
    """A text that turns the direction of what follows, or hides a part of itself, cannot."""
    assert escape(HIDDEN) == SHOWN
    assert json.loads(f'"{SHOWN}"') == HIDDEN
    assert escape("a \ud800 b") == r"a \ud800 b"
    plain = "naïve 中文 שלום عربي می\u200cدانم 👩\u200d💻\n\t<&"  # noqa: RUF001 (written with joiners)
    assert escape(plain) == plain.replace("&", "&amp;").replace("<", "&lt;")


def test_names_and_texts_hide_nothing(copies, trained, evaluation, tmp_path):
    """A run, the corpus and a transcript: in tables, titles, plots, recipes and numbers."""
    name = "evil\u202e<b>"
    run = copies[0].rename(tmp_path / name)
    found = Evaluation.from_json(evaluation.to_json().replace('"vanilla"', f'"{name}"'))
    found = dataclasses.replace(found, corpus="corpus\u2067")
    prepared = Prepared(trained.test.directory, "test")
    for i, example in enumerate(prepared.examples):
        prepared.examples[i] = dataclasses.replace(example, texts={"transcript": f"1\u202e2 {i} & <i>"})
    out = tmp_path / "report.html"
    write_report([run, copies[1]], out, found, prepared=prepared, examples=1, command=f"brctc report {name}")
    text = out.read_text()
    assert not re.search("[\u202a-\u202e\u2066-\u2069]", text)
    assert r"evil\u202e&lt;b&gt;" in text
    assert r"Bayes-risk CTC on corpus\u2067" in text
    posteriors = text[text.index('<section id="posteriors">') : text.index('<section id="evolution">')]
    assert r"it should be: 1\u202e2" in posteriors
    for svg in re.findall(r"<svg .*?</svg>", text, re.DOTALL):
        ET.fromstring(svg.replace("xlink:href", "href"))
    assert "<b>" not in text.replace(r"<b>evil\u202e&lt;b&gt;</b>", "").replace("<b>brctc</b>", "")


def test_models_are_read_once(trained, tmp_path, monkeypatch):
    """And once more by what decodes with them."""
    read = []
    load = report_runs.load_model
    monkeypatch.setattr(report_runs, "load_model", lambda path: read.append(path) or load(path))
    make_report(trained.runs, tmp_path / "report.html", examples=1, options=QUICK)
    assert read == [run / "model" for run in trained.runs]


def test_a_system_without_ctc_or_attention_maps_is_shown_all_the_same(trained):
    """What there is nothing to draw of is said."""
    first, second = (read_run(run.name, run) for run in trained.runs)
    system = copy.deepcopy(second.model.system)
    system.config = system.config.model_copy(update={"heads": {}})
    mute = dataclasses.replace(second, model=dataclasses.replace(second.model, system=system))
    assert "what they give out: brctc.<" in sections.posteriors([first, mute], trained.test, 1)
    assert "no spikes, of: brctc.<" in sections.attention([first, mute], trained.test)
    with pytest.raises(ValueError, match="encoder has no CTC head"):
        look_at(mute.model, trained.test, 0)
    system = copy.deepcopy(second.model.system)
    system.encoder = torch.nn.Identity()
    blind = dataclasses.replace(second, model=dataclasses.replace(second.model, system=system))
    assert "no maps of attention, or no spikes, of: brctc.<" in sections.attention(
        [first, blind], trained.test
    )


@pytest.fixture
def copies(trained, tmp_path):
    for run in trained.runs:
        shutil.copytree(run, tmp_path / run.name)
    return [tmp_path / run.name for run in trained.runs]


def cut_short(path):
    path.write_bytes(path.read_bytes()[:-10])


def spoil_line(path):
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([lines[0], '{"step": \n', *lines[1:]]))


SNAPSHOT = "snapshots/step-00010.safetensors"
BROKEN = {
    "no recipe": ("recipe.json", lambda path: path.unlink(), "is not a run directory: there is no"),
    "half a recipe": ("recipe.json", cut_short, "is damaged"),
    "not finished": ("model/model.json", lambda path: path.unlink(), "the run is not finished"),
    "no metrics": ("metrics.jsonl", lambda path: path.unlink(), "there is no"),
    "spoilt metrics": ("metrics.jsonl", spoil_line, "is damaged"),
    "empty metrics": ("metrics.jsonl", lambda path: path.write_text(""), "is empty"),
    "no snapshot": (SNAPSHOT, lambda path: path.unlink(), "a snapshot that the run's recipe asks for"),
    "half a snapshot": (SNAPSHOT, cut_short, "is not a snapshot of brctc, or is damaged"),
    "another file": (
        SNAPSHOT,
        lambda path: path.write_text("hello"),
        "is not a snapshot of brctc, or is damaged",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_is_named(copies, evaluation, tmp_path, name):
    file, spoil, message = BROKEN[name]
    spoil(copies[1] / file)
    with pytest.raises((ValueError, FileNotFoundError), match=message) as caught:
        write_report(copies, tmp_path / "report.html", evaluation)
    assert str(copies[1] / file) in str(caught.value)
    with pytest.raises((ValueError, FileNotFoundError), match=message):  # before anything is measured
        make_report(copies, tmp_path / "report.html", progress=lambda *_: pytest.fail("too late"))
    assert not list(tmp_path.glob("report.*"))


def test_a_run_without_snapshots_is_shown_all_the_same(trained, copies):
    recipe = json.loads((copies[0] / "recipe.json").read_text())
    recipe["monitor"]["snapshot_steps"] = []
    write_json(copies[0] / "recipe.json", recipe)
    shutil.rmtree(copies[0] / "snapshots")
    section = sections.evolution([read_run(run.name, run) for run in copies], trained.test)
    assert "(<code>monitor.snapshot_steps</code>) in: vanilla." in section


def test_runs_that_do_not_go_together(trained, copies, evaluation, tmp_path):
    with pytest.raises(ValueError, match="the runs are vanilla, but the evaluation is of vanilla, brctc"):
        write_report(trained.runs[:1], tmp_path / "report.html", evaluation)
    with pytest.raises(ValueError, match="examples is 0"):
        write_report(trained.runs, tmp_path / "report.html", evaluation, examples=0)
    recipe = json.loads((copies[1] / "recipe.json").read_text())
    recipe["corpus"]["prepared"] = "elsewhere"
    write_json(copies[1] / "recipe.json", recipe)
    with pytest.raises(ValueError, match=r"vanilla was trained on .*, but brctc on elsewhere"):
        make_report(copies, tmp_path / "report.html")


def test_runs_in_another_order_keep_their_results(trained, evaluation, tmp_path):
    pages = [tmp_path / "there.html", tmp_path / "back.html"]
    for page, runs in zip(pages, (trained.runs, trained.runs[::-1]), strict=True):
        write_report(runs, page, evaluation, examples=1, command="made")
    there, back = (re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d", "now", page.read_text()) for page in pages)
    assert there == back


def test_runs_that_were_not_evaluated_are_refused(copies, evaluation, tmp_path):
    other = copies[1].rename(tmp_path / "other")
    with pytest.raises(
        ValueError, match="the runs are vanilla, other, but the evaluation is of vanilla, brctc"
    ):
        write_report([copies[0], other], tmp_path / "report.html", evaluation)


def test_names_are_as_short_as_tells_runs_apart(tmp_path):
    assert list(name_runs(["exp/a", "exp/b"])) == ["a", "b"]
    assert list(name_runs(["x/run", "y/run"])) == ["x/run", "y/run"]
    with pytest.raises(ValueError, match="named twice: a, a"):
        name_runs(["a", "a"])
    with pytest.raises(ValueError, match="no runs"):
        name_runs([])
