"""What cannot be exported is refused before any work, with the reason."""

import pytest

from brctc.data import FeatureConfig, TokenConfig, Tokenizer
from brctc.export import EXPORTS, export_model
from brctc.export.tokens import check_pieces, tokens_text
from brctc.models import load_model
from tests.cli.commands import brctc
from tests.export.small import ATTENTION, OFFLINE, TRANSDUCER, save, small_model

SHERPA = EXPORTS.parse({"kind": "sherpa"})
TEXT = {"encoder": {"kind": "legonn", "dim": 8, "heads": 2, "first_layers": 1, "second_layers": 1}}


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ({"pitch": True}, r"cannot make the model's features: pitch 1 \(it has 0\)"),
        ({"dither": 0.01}, "dither 0.01"),
        ({"frame_length_ms": 20}, r"frame_length_ms 20 \(it has 25\)"),
        ({"frame_shift_ms": 20}, "frame_shift_ms 20 "),
        ({"low_hz": 0}, "low_hz 0 "),
        ({"high_hz": 0}, r"high_hz 0 \(it has -400\); models trained with the default high_hz fit"),
    ],
)
def test_features_that_sherpa_does_not_make(tmp_path, features, message):
    with pytest.raises(ValueError, match=message):
        export_model(small_model(features=FeatureConfig(**features)), tmp_path / "out", SHERPA)
    assert not list(tmp_path.iterdir())


def test_systems_that_sherpa_has_no_family_for(tmp_path):
    texts = {"source": "a b", "translation": "c d"}
    heads = {"heads": {"translation": {}}, "output": "translation", "normalisation": "none"}
    with pytest.raises(ValueError, match="sherpa-onnx hears audio"):
        export_model(small_model(**TEXT, texts=texts, **heads), tmp_path / "out", SHERPA)
    attention = small_model(decoders={"attention": ATTENTION}, heads={})
    with pytest.raises(ValueError, match="neither CTC nor an offline transducer"):
        export_model(attention, tmp_path / "out", SHERPA)


def test_an_option_that_a_format_does_not_have(tmp_path):
    save(small_model(), tmp_path / "model")
    found = brctc(tmp_path, "export", "model", "--out", "out", "--int8")
    assert found.code == 2
    assert "int8: unknown key" in found.err
    found = brctc(tmp_path, "export", "model", "--out", "out", "--for", "onix")
    assert found.code == 2
    assert "--for: there is no export format 'onix': did you mean 'onnx'?" in found.err


def test_a_directory_that_is_not_what_was_written(tmp_path):
    (tmp_path / "export.json").write_text("{")
    with pytest.raises(ValueError, match=r"export.json is damaged"):
        load_model(tmp_path)
    (tmp_path / "export.json").write_text('{"format": "other"}')
    with pytest.raises(ValueError, match="not of an exported model"):
        load_model(tmp_path)
    (tmp_path / "export.json").write_text('{"format": "brctc-export", "version": 9}')
    with pytest.raises(ValueError, match="format version 9, this brctc reads 1"):
        load_model(tmp_path)
    (tmp_path / "export.json").write_text('{"format": "brctc-export", "version": 1}')
    with pytest.raises(ValueError, match="graphs: missing"):
        load_model(tmp_path)


def test_tokens():
    words = Tokenizer.train(["one two"], TokenConfig(kind="word"))
    assert tokens_text(words) == "<blk> 0\n▁⁇ 1\n▁one 2\n▁two 3\n"
    characters = Tokenizer.train(["ab a"], TokenConfig())
    assert tokens_text(characters) == "<blk> 0\n⁇ 1\n▁ 2\na 3\nb 4\n"
    for tokenizer in (words, characters):
        check_pieces(tokenizer)
    with pytest.raises(ValueError, match=r"piece 2 of the vocabulary is '\\t': tokens.txt has no white"):
        check_pieces(Tokenizer.train(["\ta"], TokenConfig()))


def test_a_transducer_is_what_sherpa_takes_if_there_is_one():
    from brctc.export.sherpa import plan_for_sherpa

    decoders = {"attention": ATTENTION, "transducer": TRANSDUCER}
    plan = plan_for_sherpa(small_model(OFFLINE, decoders=decoders))
    assert list(plan.modules) == ["encoder", "transducer.decoder", "transducer.joiner"]
    assert list(plan.config.decoders) == ["transducer"]
    plan = plan_for_sherpa(small_model(OFFLINE, decoders={"attention": ATTENTION}))
    assert (list(plan.modules), plan.factory) == (["encoder"], "OfflineRecognizer.from_zipformer_ctc")
