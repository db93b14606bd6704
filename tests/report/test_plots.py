"""What plots draw is what there is to draw; all of it, in its place, and nothing over anything else."""

import dataclasses
import itertools
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from brctc.data import FeatureConfig, Prepared, TokenConfig, Tokenizer, WordTime
from brctc.models import ConformerConfig, System, SystemConfig, TrimConfig
from brctc.models.bundle import Model
from brctc.report.attention import _share, _sources, attention_index, plot_attention
from brctc.report.pictures import Look, example_indices, look_at, plot_evolution, plot_posteriors
from brctc.report.plots import plot_beams, plot_curves, plot_results
from brctc.report.runs import read_run
from brctc.report.spikes import draw_tokens, input_clock, part, said_spikes, spread_labels, target_spikes
from brctc.report.style import INK, new_figure, styled, to_svg
from tests.data.splits import write_split
from tests.train.tiny import ENCODER

TOKENIZER = Tokenizer.train(["abc"], TokenConfig(kind="char"))
A, B, C = TOKENIZER.encode("abc")


@pytest.fixture(scope="module")
def runs(trained):
    return [read_run(run.name, run) for run in trained.runs]


def texts_of(figure):
    return [text.get_text() for panel in figure.get_axes() for text in panel.texts if text.get_text()]


def posterior(*best):
    """Each frame sure of a class, but for a tenth."""
    table = np.full((len(best), TOKENIZER.size), 0.1 / (TOKENIZER.size - 1), np.float32)
    table[np.arange(len(best)), best] = 0.9
    return table


def test_spikes_part_the_whole_posterior():
    table = posterior(0, A, A, 0, B, 0, 0, A)
    spikes, tokens, frames = said_spikes(table, TOKENIZER)
    assert (spikes.labels, tokens, frames) == (["a", "b", "a"], [A, B, A], [1, 4, 7])
    total = spikes.heights.sum(0) + spikes.other + spikes.blank
    assert total == pytest.approx(np.ones(8), abs=1e-6)
    # a class that is said twice: each frame belongs to the nearer spike, and to one only
    assert spikes.heights[0, :5] == pytest.approx(table[:5, A])
    assert spikes.heights[2, 5:] == pytest.approx(table[5:, A])
    assert (spikes.heights[[0, 2]] > 0).sum(0).max() == 1


def test_target_spikes_follow_the_best_path():
    table = posterior(0, A, 0, A, B, 0)
    spikes = target_spikes(table, table, [A, A, B], TOKENIZER)
    assert spikes.heights.argmax(1).tolist() == [1, 3, 4]
    assert part(table, [C], [0], TOKENIZER).labels == ["c"]


def test_labels_do_not_cover_one_another():
    places, labels = [1.0, 1.5, 2.0, 50.0, 99.5], ["seven", "a", "three", "b", "nine"]
    found = spread_labels(places, labels, 10, 0.5, 100)
    widths = [(0.62 * len(label) * 10 + 3) * 0.5 for label in labels]
    edges = [(middle - width / 2, middle + width / 2) for middle, width in zip(found, widths, strict=True)]
    assert edges[0][0] >= 0
    assert edges[-1][1] <= 100 + 1e-9
    assert all(right <= left + 1e-9 for (_, right), (left, _) in itertools.pairwise(edges))
    assert found[3] == 50  # where there is room, a label is above its spike


def test_clock(trained):
    """Frames lie in the middle of what their convolutions see."""
    columns = input_clock(trained.test, ConformerConfig(subsampling=1))
    assert columns.unit == "column"
    assert columns.middles(3).tolist() == [0.5, 1.5, 2.5]
    assert input_clock(trained.test, ConformerConfig()).middles(2).tolist() == [3.5, 7.5]  # 0 to 6, 4 to 10


def test_posteriors_over_the_input(runs, trained):
    index = example_indices(trained.test, 1)[0]
    figure = plot_posteriors(runs, trained.test, index)
    ink, *panels = figure.get_axes()
    utterance = trained.test.examples[index]
    assert len(ink.get_images()) == 1
    assert len(ink.patches) == len(utterance.word_times)
    assert ink.get_xlim() == panels[0].get_xlim() == (0, utterance.num_frames)
    for panel, run in zip(panels, runs, strict=True):
        look = look_at(run.model, trained.test, index)
        said = run.model.tokenizer.decode(look.tokens)
        assert panel.get_title("left").startswith(f"{run.name}: {said}")
        assert ("it should be" in panel.get_title("left")) == (said != utterance.texts["transcript"])
        cut = [text.get_text() for text in panel.texts if "cut off" in text.get_text()]
        left = utterance.num_frames - look.kept
        assert cut == ([f"cut off: {left} of {utterance.num_frames} frames"] if left else [])
    assert panels[-1].get_xlabel() == "column"
    assert runs[0].name in figure.get_suptitle()


@pytest.mark.parametrize(
    ("owners", "expected"),
    [
        ([0, 0, 0, 1, 1, 1], [("ein", 0.5), ("Mann", 1.5)]),  # the frames of a token side by side
        ([0, 1, 0, 1], [("ein", 0.25), ("Mann", 0.75), ("ein", 1.25), ("Mann", 1.75)]),  # in copies
    ],
)
def test_tokens_over_their_frames(owners, expected):
    axis = Figure().subplots()
    draw_tokens(axis, ["ein", "Mann"], owners)
    assert [(text.get_text(), text.get_position()[0]) for text in axis.texts] == expected
    assert axis.get_xlim() == (0, 2)


def test_evolution(runs, trained):
    dev = Prepared(trained.test.directory, "dev")
    figure = plot_evolution(runs, dev)
    panels = figure.get_axes()
    assert len(panels) == 4 * (1 + 3)  # posterior and gradient of two runs; the input, steps 0, 10 and 20
    labels = [panel.get_ylabel() for panel in panels if panel.get_ylabel()]
    assert labels == ["step 0", "step 10", "step 20"]
    assert "λ = 5" in [panel.get_title("left") for panel in panels]
    moved = dataclasses.replace(runs[1], snapshots=[dataclasses.replace(runs[1].snapshots[0], step=3)])
    with pytest.raises(ValueError, match=r"same step: vanilla: \[0, 10, 20\]; brctc: \[3\]"):
        plot_evolution([runs[0], moved], dev)
    with pytest.raises(ValueError, match=r"\(test\) has no utterance dev-00000"):
        plot_evolution(runs, trained.test)


def test_attention_maps(runs, trained):
    index = attention_index(runs, trained.test)
    figure = plot_attention(runs, trained.test, index)
    panels = [panel for panel in figure.get_axes() if panel.get_images()]
    assert len(panels) == 2 * 2 * 2  # runs, layers, heads
    frames = trained.test.examples[index].num_frames
    kept = look_at(runs[1].model, trained.test, index).kept
    sizes = [panel.get_images()[0].get_array().shape for panel in panels]
    assert sizes == [(frames, frames)] * 6 + [(kept, kept)] * 2


def test_what_a_spike_has_to_fetch(runs, trained):
    utterance, tokenizer = trained.test.examples[0], runs[0].model.tokenizer
    tokens = tokenizer.encode(utterance.texts["transcript"])
    table = np.zeros((utterance.num_frames, tokenizer.size), np.float32)
    frames = list(range(len(tokens)))
    right = Look(part(table, tokens, frames, tokenizer), tokens, frames, 9)
    spans = _sources(runs[0], right, trained.test, 0)
    assert spans == [(round(t.start_s * 100), round(t.end_s * 100)) for t in utterance.word_times]
    assert _sources(runs[0], right._replace(tokens=tokens[1:]), trained.test, 0) is None
    weights = np.zeros((utterance.num_frames, utterance.num_frames))
    weights[0, spans[0][0]] = 1.0  # the first spike looks at its own token, the others elsewhere
    weights[1:, -1] = 0.5
    own = [1.0] + [0.5 if last == utterance.num_frames else 0.0 for _, last in spans[1:]]
    assert _share(weights, frames, spans) == pytest.approx(np.mean(own))


def test_results_and_beams(evaluation):
    figure = plot_results(evaluation)
    for system in evaluation.systems:
        assert f"{system.scores['error-rate'].value:.2%}" in texts_of(figure)
    assert figure.get_suptitle().startswith("brctc: ")
    errors, factors, speeds = figure.get_axes()
    rates = [system.scores["error-rate"].value for system in evaluation.systems]
    assert [bar.get_width() for bar in errors.patches] == [100 * rate for rate in rates]
    assert [bar.get_width() for bar in factors.patches] == [
        s.down_sampling.factor for s in evaluation.systems
    ]
    parts = [bar.get_width() for bar in speeds.patches]
    assert parts[0] + parts[1] == pytest.approx(evaluation.systems[0].real_time.rtf)

    (panel,) = plot_beams(evaluation).get_axes()
    for line, name in ((panel.lines[0], "vanilla"), (panel.lines[2], "brctc")):
        points = [point for point in evaluation.sweep if point.name == name]
        assert line.get_xydata().tolist() == [[point.beam, point.real_time.rtf] for point in points]
    assert panel.get_xlabel() == "beam [hypotheses]"


def test_what_cannot_be_trimmed_has_no_factor(evaluation):
    systems = [dataclasses.replace(system, trimmable=i == 0) for i, system in enumerate(evaluation.systems)]
    figure = plot_results(dataclasses.replace(evaluation, systems=tuple(systems)))
    _, factors, _ = figure.get_axes()
    assert [bar.get_width() for bar in factors.patches] == [systems[0].down_sampling.factor]
    assert "cannot be trimmed" in texts_of(figure)
    assert "of the frames" not in figure.get_suptitle()
    assert "of the frames" in plot_results(evaluation).get_suptitle()


def test_losses_below_zero_have_a_place(runs):
    """A risk takes them there."""
    assert plot_curves(runs).get_axes()[0].get_yscale() == "log"
    metrics = [line | {"loss": line["loss"] - 100} if "loss" in line else line for line in runs[1].metrics]
    losses = plot_curves([runs[0], dataclasses.replace(runs[1], metrics=metrics)]).get_axes()[0]
    assert losses.get_yscale() == "symlog"
    low, high = losses.get_ylim()
    for line in losses.lines:
        if len(line.get_ydata()) > 2:
            assert low <= min(line.get_ydata()) <= max(line.get_ydata()) <= high


def test_errors_of_translations_are_ctc_errors(runs):
    metrics = [line | {"dev_texts": {"final": "translation"}} for line in runs[0].metrics]
    assert plot_curves(runs[:1]).get_suptitle().startswith("Errors and frames kept at the end of training")
    translated = plot_curves([dataclasses.replace(runs[0], metrics=metrics)])
    assert translated.get_suptitle().startswith("CTC errors and frames kept at the end of training")


def test_curves(runs):
    losses, errors, factors, risks = plot_curves(runs).get_axes()
    found = [line for line in runs[1].metrics if "dev_error" in line]
    assert errors.lines[0].get_xdata().tolist() == [line["step"] for line in found]
    dev = [line for line in errors.lines if line.get_marker() == "."]
    assert dev[1].get_ydata().tolist() == [100 * line["dev_error"] for line in found]
    dev = [line for line in factors.lines if line.get_marker() == "."]
    assert dev[1].get_ydata().tolist() == [line["dev_factor"] for line in found]
    assert max(max(line.get_ydata()) for line in risks.lines) == 5
    steps = [line["loss"] for line in runs[0].metrics if "seconds" in line]
    means = losses.lines[0].get_ydata()
    assert np.mean(means) == pytest.approx(np.mean(steps), rel=1e-6)  # 20 steps are 4 groups of 5
    unwatched = dataclasses.replace(runs[0], metrics=[line for line in runs[0].metrics if "seconds" in line])
    assert plot_curves([unwatched]).get_suptitle().endswith("not looked at")


def test_svg_belongs_into_a_page():
    @styled
    def plot():
        figure = new_figure(4, 2, "A < B & 中文")
        figure.subplots().text(0.5, 0.5, "中文")
        return figure

    svg = to_svg(plot())
    assert svg.startswith('<svg role="img" aria-label="A &lt; B &amp; 中文" viewBox=')
    assert "http" not in svg
    assert INK not in svg
    assert "currentColor" in svg
    assert svg.count("中文") == 3  # text stays text
    ET.fromstring(re.sub(r"xlink:href", "href", svg))  # well-formed


def test_dollars_and_backslashes_are_text():
    r"""TeX would end in an error at the first title, and a group \\d0 in the label, too."""

    @styled
    def plot():
        figure = new_figure(4, 2, r"costs $5 \frac and $6 (spk\d0)")
        figure.subplots().set_title(r"$\nothing$")
        return figure

    svg = to_svg(plot())
    assert r'aria-label="costs $5 \frac and $6 (spk\d0)"' in svg
    assert r"$\nothing$" in svg


def test_numbers_of_logarithmic_axes_are_plain(runs):
    svg = to_svg(plot_curves(runs))
    assert "mathdefault" not in svg

    @styled
    def plot():
        figure = new_figure(4, 2, "title")
        panel = figure.subplots()
        panel.set_yscale("log")
        panel.set_ylim(0.05, 200)
        return figure

    labels = re.findall(r"<text[^>]*>([^<]*)</text>", to_svg(plot()))
    assert [label for label in labels if label in ("0.1", "1", "10", "100")] == ["0.1", "1", "10", "100"]


def test_long_titles_of_panels_stay_inside(runs, trained):
    """However long the text is that should have been said."""
    index = example_indices(trained.test, 1)[0]
    prepared = Prepared(trained.test.directory, "test")
    for i, utterance in enumerate(prepared.examples):
        text = f"{utterance.texts['transcript']} " + "seventy two " * 20
        prepared.examples[i] = dataclasses.replace(utterance, texts={"transcript": text.strip()})
    figure = plot_posteriors(runs, prepared, index)
    figure.draw_without_rendering()
    for panel in figure.get_axes()[1:]:
        title = panel.get_title("left")
        assert title.replace("\n", " ").endswith("seventy two")
        assert panel.get_tightbbox().x1 <= figure.bbox.x1
        assert panel.get_window_extent().height > 80  # the lines of the title take nothing from it


@pytest.fixture
def speech(tmp_path, runs):
    """Audio features with known times, and two models that were never trained."""
    tokenizer = Tokenizer.train(["one two"], TokenConfig(kind="word"))
    config = FeatureConfig()
    rng = np.random.default_rng(0)
    times = [WordTime("one", 0.1, 0.4), WordTime("two", 0.5, 0.9)]
    examples = {
        "timed": ("one two", rng.normal(size=(100, 80)), times),
        "untimed": ("one two", rng.normal(size=(101, 80)), None),
    }
    prepared = write_split(tmp_path, "test", examples, feature_config=config)
    torch.manual_seed(0)
    encoder = ENCODER | {"subsampling": 4, "subsampling_channels": 4}
    config_of_system = SystemConfig.model_validate({"encoder": encoder})
    system = System(config_of_system, 80, {"transcript": tokenizer.size}).eval()
    trims = (None, TrimConfig(threshold=0.1))
    models = [Model(system, {"transcript": tokenizer}, config, trim, {}) for trim in trims]
    return [dataclasses.replace(run, model=model) for run, model in zip(runs, models, strict=True)], prepared


@pytest.mark.parametrize("index", [0, 1])
def test_speech(speech, index):
    runs, prepared = speech
    features, *panels = plot_posteriors(runs, prepared, index).get_axes()
    assert panels[-1].get_xlabel() == "time [s]"
    assert features.get_xlim() == pytest.approx((0, 1.0 + 0.01 * index))
    bars = [(bar.get_x(), bar.get_x() + bar.get_width()) for bar in features.patches]
    assert np.ravel(bars) == pytest.approx([] if index else [0.1, 0.4, 0.5, 0.9])
    figure = plot_attention(runs, prepared, index)
    sizes = [panel.get_images()[0].get_array().shape for panel in figure.get_axes() if panel.get_images()]
    assert sizes[0] == (24, 24)
    assert to_svg(figure)
