"""Kinds from a module in the working folder: a corpus and a metric, from `brctc prepare` to the page."""

import json
import sys

import pytest

from brctc.data import Prepared
from tests.cli.commands import SMALL, brctc

MODULE = '''
"""Strings of stripes: each letter is as many bright columns as its place in the alphabet."""

import hashlib
from typing import ClassVar, Literal

import numpy as np

from brctc.data import CORPORA, CorpusConfig, Loaded, Storage
from brctc.data.corpora.strings import SPLITS, StringsConfig, StringsSource
from brctc.evaluate import METRICS, Difference, MetricConfig, MetricInfo, Score


@CORPORA.register
class StripesConfig(CorpusConfig, StringsConfig):
    """Strings of stripes."""

    input: ClassVar[Literal["columns"]] = "columns"
    frame_shift_s: ClassVar[float] = 0.01

    kind: Literal["stripes"] = "stripes"

    def sources(self):
        return {split: StripesSource(self, split) for split in SPLITS}

    def storage(self, split, features):
        return Storage("features", None, 8, 0.01)


class StripesSource(StringsSource):
    def __init__(self, config, split):
        super().__init__(f"stripes ({split})", split, config.num_strings(split))
        self.config = config

    def digest(self):
        content = self.config.model_dump_json(exclude={"prepared"})
        return hashlib.sha256(f"{content} {self.split}".encode()).hexdigest()

    def load(self, item):
        rng = self.config.string_rng(self.split, item.number)
        letters = rng.integers(1, 4, self.config.draw_num_digits(self.split, rng))
        parts = [np.repeat([0.0, 1.0, 0.0], [4, letter, 8 - letter]) for letter in letters]
        columns = np.concatenate(parts)[:, None] * np.ones(8)
        text = "".join("abc"[letter - 1] for letter in letters)
        return Loaded(item.id, {"transcript": text}, features=columns.astype(np.float32))


@METRICS.register
class ExactMetric(MetricConfig):
    """Examples without an error."""

    kind: Literal["exact"] = "exact"

    def info(self):
        return MetricInfo("exact <strings>", "%", 100.0, True, "exact / all")

    def measure(self, references, hypotheses):
        right = sum(a == b for a, b in zip(references, hypotheses, strict=True))
        share = right / len(references)
        return Score(share, share, share, f"{right} / {len(references)}")

    def compare(self, references, first, second):
        more = self.measure(references, second).value - self.measure(references, first).value
        return Difference(more, more, more, 0.5)
'''
METRICS = "metrics={exact: {kind: exact}, errors: {kind: error-rate, unit: char}}"
CHANGES = (*SMALL, "corpus.kind=stripes", METRICS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A module beside what is made with it."""
    folder = tmp_path_factory.mktemp("plugins")
    (folder / "my_parts.py").write_text(MODULE)
    return folder


def test_a_corpus_of_ones_own(folder):
    sizes = ("train_strings=5", "dev_strings=2", "test_strings=3")
    command = ("prepare", "stripes", "--out", "made", "--set", *sizes)
    found = brctc(folder, "--import", "my_parts", *command, "--jobs", "2")  # the others import it too
    assert found.code == 0, found.err
    assert [line.split()[:2] for line in found.out.splitlines()[1:4]] == [
        ["train", "5"],
        ["dev", "2"],
        ["test", "3"],
    ]
    prepared = Prepared(folder / "made", "test")
    assert set("".join(example.texts["transcript"] for example in prepared.examples)) <= set("abc")
    by_variable = brctc(folder, *command, BRCTC_IMPORT="my_parts")
    assert by_variable.out == found.out
    unknown = brctc(folder, *command)
    assert unknown.code == 2
    assert "stripes: No such file or directory; known corpora are " in unknown.err
    wrong = brctc(folder, "--import", "my_parts", *command, "train_string=5")
    assert "stripes: train_string: unknown key; did you mean train_strings?" in wrong.err
    assert "my_parts" not in sys.modules  # the commands have processes of their own


@pytest.mark.slow
def test_a_metric_of_ones_own_is_in_the_table_and_on_the_page(folder):
    recipes = ("handwriting/vanilla", "handwriting/brctc")
    compare = ("compare", *recipes, "--out", "exp", "--set", *CHANGES)
    unknown = brctc(folder, *compare)
    assert unknown.code == 2
    assert "corpus.kind: there is no corpus 'stripes'" in unknown.err
    assert "metrics.exact.kind: there is no metric 'exact'" in unknown.err
    found = brctc(folder, "--import", "my_parts", *compare)
    assert found.code == 0, found.err
    results = json.loads((folder / "exp" / "report.json").read_text())
    assert list(results["metrics"]) == ["exact", "errors"]
    page = (folder / "exp" / "report.html").read_text()
    for system in results["systems"]:
        score = system["scores"]["exact"]
        assert score["detail"].endswith(" / 6")
        cell = "{0:.2f} ({0:.2f} to {0:.2f})".format(100 * score["value"])
        assert cell in found.out
        assert f"<td>{cell}</td>" in page.replace(' class="begins"', "")
    assert "exact <strings>, % (95% interval)" in found.out
    assert "exact &lt;strings&gt;, % (95% interval)" in page
    assert "exact <strings>: difference to vanilla, points" in found.out
    assert "error rate: difference to vanilla, points" in found.out
    assert "points of exact &lt;strings&gt;" in page  # the first metric is the headline's
    assert "Longer bars of exact &lt;strings&gt; are better" in page
    assert "Bayes-risk CTC on stripes" in page
    assert "small scale" not in page  # what it is, its own config says

    alone = brctc(folder, "evaluate", "exp/vanilla/model", "--prepared", "prepared", "--limit", "2")
    assert alone.code == 2
    assert "metrics.exact.kind: there is no metric 'exact'" in alone.err
    quick = ("--limit", "2", "--repeats", "1", "--beams", "2", "--jobs", "2")
    jobs = brctc(folder, "--import", "my_parts", "evaluate", "exp/vanilla", *quick)
    assert jobs.code == 0, jobs.err
    assert "exact <strings>, %" in jobs.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--import",), "brctc: --import needs the name of a module\n"),
        (("--import", "not_here", "demo"), "brctc demo: --import not_here: No module named 'not_here'\n"),
        (("--import", "broken", "demo"), "brctc demo: --import broken: No module named 'missing_part'\n"),
        (("--import", "twice", "demo"), "brctc demo: there is a metric 'error-rate' already: brctc.eval"),
    ],
)
def test_refusals(tmp_path, arguments, message):
    (tmp_path / "broken.py").write_text("import missing_part\n")
    metric = "class Mine(MetricConfig):\n    kind: Literal['error-rate'] = 'error-rate'\n"
    imports = "from typing import Literal\nfrom brctc.evaluate import METRICS, MetricConfig\n"
    (tmp_path / "twice.py").write_text(f"{imports}@METRICS.register\n{metric}")
    found = brctc(tmp_path, *arguments)
    assert (found.code, found.out) == (2, "")
    assert found.err.startswith(message)
