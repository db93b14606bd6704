"""Encoders on top of an encoder: a translation encoder on a trimmed one, its head and its decoder."""

import pytest
import torch
from pydantic import ValidationError

from brctc.config import describe_problems
from brctc.data import Tokenizer
from brctc.models import System, SystemConfig, TrimConfig, load_model, save_model
from tests.models.toys import FEATURES, one_of, toy_batch

SIZES = {"heads": 2, "feed_forward_dim": 24, "first_layers": 1, "second_layers": 1, "kernel_size": 3}
SPEECH = {"kind": "conformer", "dim": 16, "subsampling_channels": 3, **SIZES}
UPPER = {"encoder": {"kind": "conformer", "dim": 12, "subsampling": 1, **SIZES}}
ATTENTION = {"kind": "attention", "layers": 1, "dim": 8, "heads": 2, "feed_forward_dim": 12}
TRANSLATOR = {
    "encoder": SPEECH,
    "upper_encoders": {"translation": UPPER},
    "heads": {"transcript": {}, "translation": {"on": "translation"}},
    "decoders": {
        "said": {**ATTENTION, "text": "transcript"},
        "meant": {**ATTENTION, "text": "translation", "on": "translation"},
    },
    "output": "translation",
}
VOCABULARIES = {"transcript": 5, "translation": 7}


def translator(**changes) -> System:
    torch.manual_seed(0)
    system = System(SystemConfig.model_validate(TRANSLATOR | changes), FEATURES, VOCABULARIES)
    with torch.no_grad():
        system.heads["transcript"].bias[0] = 3.0  # most frames are blank
    return system.double().eval()


def test_taps_heads_and_decoders_have_their_sizes():
    system = translator()
    assert system.config.taps == ("middle", "trimmed", "final", "translation")
    encoded = system.encode(toy_batch(padding=0.0).source)
    frames = encoded.final.lengths
    assert encoded.taps["translation"].values.shape[2] == 12
    assert encoded.taps["translation"].lengths.tolist() == frames.tolist()
    assert encoded.logits().values.shape[2] == 7  # of the text of decoding, on its own tap
    assert encoded.logits(text="transcript").values.shape[2] == 5
    assert system.decoders["meant"].layers[0].key_value.in_features == 12
    assert system.config.decoder_name("attention") == "meant"


def test_alone_as_in_a_batch_and_behind_the_trimming():
    system, batch = translator(), toy_batch(padding=0.0)
    trim = TrimConfig(threshold=0.6, margin=1, text="transcript")
    together = system.encode(batch.source, trim)
    assert (together.final.lengths < together.taps["middle"].lengths).any()
    for n in range(3):
        own = system.encode(one_of(batch.source, n), trim)
        assert own.taps["translation"].lengths[0] == together.final.lengths[n]
        torch.testing.assert_close(
            one_of(together.taps["translation"], n).values, own.taps["translation"].values
        )


def test_a_stage_has_what_it_needs():
    config = SystemConfig.model_validate(TRANSLATOR)
    first = config.only_with(["middle", "final"], ["said"])
    assert (list(first.upper_encoders), list(first.heads), list(first.decoders)) == (
        [],
        ["transcript"],
        ["said"],
    )
    second = config.only_with(["middle", "final"], ["meant"])
    assert (list(second.upper_encoders), list(second.heads)) == (
        ["translation"],
        ["transcript", "translation"],
    )
    assert list(second.decoders) == ["meant"]
    tower = SystemConfig.model_validate(
        TRANSLATOR | {"upper_encoders": {"low": UPPER, "translation": {**UPPER, "on": "low"}, "other": UPPER}}
    )
    assert list(tower.only_with(["translation"], []).upper_encoders) == ["low", "translation"]


def test_saved_and_loaded(tmp_path):
    system = translator().float()
    letters = {
        name: Tokenizer("char", ["<blank>", "<unk>", *"abcdefg"[: size - 2]])
        for name, size in VOCABULARIES.items()
    }
    save_model(tmp_path, system, letters)
    loaded = load_model(tmp_path)
    assert loaded.system.config == system.config
    source = toy_batch(dtype=torch.float, padding=0.0).source
    assert torch.equal(loaded.system.encode(source).logits().values, system.encode(source).logits().values)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"upper_encoders": {"final": UPPER}}, "upper_encoders.final: the encoder has a tap of this name"),
        (
            {"upper_encoders": {"translation": {**UPPER, "on": "nowhere"}}},
            "upper_encoders.translation.on: there is no tap 'nowhere'; the encoder has middle,",
        ),
        (
            {"upper_encoders": {"translation": {"encoder": SPEECH}}},
            "upper_encoders.translation.encoder.subsampling: an upper encoder gives as many frames as",
        ),
        (
            {"upper_encoders": {"translation": {"encoder": {"kind": "legonn"}}}},
            "upper_encoders.translation.encoder.kind: an encoder of kind legonn takes no frames",
        ),
        (
            {"encoder": {"kind": "emformer"}, "heads": {"transcript": {}}, "decoders": {}},
            "upper_encoders: streams end with the encoder of kind emformer",
        ),
        ({"upper_encoders": {}}, "heads.translation.on: there is no tap 'translation'"),
    ],
)
def test_what_does_not_fit_is_refused(changes, problem):
    with pytest.raises(ValidationError) as caught:
        SystemConfig.model_validate(TRANSLATOR | changes)
    assert problem in describe_problems(caught.value, SystemConfig, "model")
