"""Pictures and pages of online models: bands where the words are, and what is said of them."""

import re
from dataclasses import replace

import pytest
from matplotlib.colors import to_hex

from brctc.data import WordTime, extract_features
from brctc.models import ConformerConfig
from brctc.report.pictures import look_at, plot_evolution, plot_posteriors
from brctc.report.plots import plot_curves
from brctc.report.runs import RunFiles, Snapshot, read_run
from brctc.report.sections import posteriors
from brctc.report.spikes import LABEL_BAND
from brctc.report.style import WRONG, colours
from brctc.train import train
from tests.data.splits import write_split
from tests.decode.test_streaming import sound
from tests.evaluate.online_toys import (
    DRIFT_S,
    FEATURES,
    LENGTH_S,
    SMALL,
    make_model,
    online_model,
    online_split,
)
from tests.export.small import SIZES, small_model
from tests.train.tiny import EMFORMER, tiny_recipe

RISK = {"kind": "early-emission", "factor": [[0, 0], [4, 7]]}
STAGE = {"steps": 6, "losses": {"final": {"kind": "ctc", "on": "final", "weight": 1.0, "risk": RISK}}}


def online_recipe(folder):
    return tiny_recipe(
        folder,
        model={"encoder": EMFORMER},
        stages={"only": STAGE},
        monitor={"dev_utterances": 4, "snapshot_steps": [0, 6], "tensorboard": False},
    )


@pytest.fixture
def run(model, tmp_path):
    return RunFiles("early", tmp_path, online_recipe(tmp_path), model, [], [])


def bands(panel):
    return [patch for patch in panel.patches if patch.get_alpha() == 0.2]


def test_words_are_bands_behind_their_spikes(run, split):
    figure = plot_posteriors([run], split, 1)
    times = split.examples[1].word_times
    _, panel = figure.get_axes()
    found = bands(panel)
    assert [band.get_x() for band in found] == pytest.approx([time.start_s for time in times])
    assert [band.get_width() for band in found] == pytest.approx([LENGTH_S] * len(times))
    assert {band.get_height() for band in found} == {1 / LABEL_BAND}  # labels are above
    assert [to_hex(band.get_facecolor()) for band in found] == colours(len(times))
    assert f"early {1000 * DRIFT_S:.0f} ms" in figure.get_suptitle().replace("\n", " ")
    assert bands(figure.get_axes()[0]) == []


def test_spikes_have_the_colours_of_their_words(run, split):
    """In the first utterance the first word of the text is not said; its times are those of the others."""
    _, panel = plot_posteriors([run], split, 0).get_axes()
    lines = [line for line in panel.lines if len(line.get_xdata()) == 2]
    assert [line.get_color() for line in lines[:2]] == colours(2)
    assert WRONG not in {line.get_color() for line in lines}


def test_without_word_times(run, split):
    figure = plot_posteriors([run], split, 9)
    assert bands(figure.get_axes()[1]) == []
    assert figure.get_suptitle().startswith("Last token: early after")


def test_evolution_has_bands_too(run, split):
    look = look_at(run.model, split, 1)
    posterior = look.spikes.blank[:, None].repeat(run.model.tokenizer.size, 1)
    shot = Snapshot(run.directory, 0, "only", 0.0, ["u1"], ["one two"], [posterior], [-posterior])
    run.snapshots.append(shot)
    panels = plot_evolution([run], split).get_axes()
    assert [len(bands(panel)) for panel in panels] == [0, 0] + [len(split.examples[1].word_times)] * 2


def test_texts(run, split):
    page = " ".join(re.sub("<svg.*?</svg>", "", posteriors([run], split, 1), flags=re.S).split())
    assert "bands behind the spikes" in page
    assert "halves" not in page
    assert "trimming" not in page


def test_curves_show_the_risk_that_there_is(tmp_path):
    train(online_recipe(tmp_path), tmp_path / "run", progress=False)
    figure = plot_curves([read_run("run", tmp_path / "run")])
    _, _, factors, risks = figure.get_axes()
    assert max(max(line.get_ydata()) for line in risks.lines) == 7
    assert not factors.get_visible()  # nothing is trimmed
    assert re.fullmatch(r"Errors at the end of training: run [\d.]+%", figure.get_suptitle())


def test_bands_of_characters(tmp_path):
    """The reference knows words of two characters; a model of characters has a band for each of them."""
    model = online_model("char", "一二六ok")
    known = online_split(tmp_path / "known", model).examples[1]
    pairs = [known.word_times[k : k + 2] for k in range(0, len(known.word_times), 2)]
    words = [WordTime("".join(t.word for t in pair), pair[0].start_s, pair[-1].end_s) for pair in pairs]
    features = extract_features(sound(1, 4.37), FEATURES)
    examples = {"u": (known.texts["transcript"], features, words)}
    split = write_split(tmp_path / "split", "test", examples, feature_config=FEATURES)
    run = RunFiles("early", tmp_path, online_recipe(tmp_path), model, [], [])
    figure = plot_posteriors([run], split, 0)
    top, panel = figure.get_axes()
    assert len(bands(panel)) == len(top.patches) == len(known.word_times) > len(words)
    assert [to_hex(band.get_facecolor()) for band in bands(panel)] == colours(len(known.word_times))
    assert "From the start of a character to its prediction: early" in figure.get_suptitle()
    assert WRONG not in {line.get_color() for line in panel.lines}


@pytest.mark.parametrize("moved", [False, True])
def test_bands_behind_plain_ctc_of_offline_models(tmp_path, moved):
    """Fig. 9: the spikes of plain CTC drift as well; those of an early finish say nothing of words."""
    model = make_model(ConformerConfig(first_layers=1, second_layers=1, **SMALL))
    split = online_split(tmp_path / "split", model)
    said = replace(model, description={"spikes_moved": moved})
    run = RunFiles("plain", tmp_path, online_recipe(tmp_path), said, [], [])
    figure = plot_posteriors([run], split, 1)
    assert len(bands(figure.get_axes()[1])) == (0 if moved else len(split.examples[1].word_times))
    drift = f"From the start of a word to its prediction: plain {1000 * DRIFT_S:.0f} ms"
    assert (drift in figure.get_suptitle().replace("\n", " ")) is not moved


def test_a_translation_is_no_transcript(tmp_path):
    """What a translator hears has other tokens, and more of them, than what it says; the words of the
    reference are those heard."""
    upper = {"kind": "conformer", "subsampling": 1, "first_layers": 1, "second_layers": 1, "kernel_size": 3}
    uppers = {"translation": {"on": "final", "encoder": SIZES | upper}}
    heads = {"transcript": {"on": "final"}, "translation": {"on": "translation"}}
    texts = {"transcript": "one two three four five six", "translation": "eins"}
    model = small_model(texts=texts, upper_encoders=uppers, heads=heads, output="translation")
    features = extract_features(sound(1, 2.0), model.features)
    said = look_at(model, write_split(tmp_path / "one", "test", {"u": ("one", features, None)}), 0)
    assert max(said.tokens) >= model.tokenizer.size
    times = [WordTime("one", 0.2, 0.5), WordTime("two", 0.8, 1.1)]
    split = write_split(
        tmp_path / "two", "test", {"u": ("one two", features, times)}, feature_config=model.features
    )
    run = RunFiles("translator", tmp_path, online_recipe(tmp_path), model, [], [])
    figure = plot_posteriors([run], split, 0)
    assert figure.get_suptitle().startswith("Last token: translator after")
