"""A saved model comes back whole, or is refused with the reason; it never loads wrong."""

import hashlib
import os
from pathlib import Path

import pytest
import torch

from brctc.data import FeatureConfig, TokenConfig, Tokenizer
from brctc.models import System, TrimConfig, load_model, save_model
from tests.models.saved import TOKENIZER, head_of, replace_weights, rewrite, save, weights_file
from tests.models.toys import FEATURES, TEXT, toy_batch, toy_config, toy_online_config, toy_system


@pytest.mark.parametrize("decoders", [{}, {"attention": True}, {"transducer": True}], ids=str)
@pytest.mark.parametrize("normalisation", ["global", "none"])
def test_roundtrip(tmp_path, decoders, normalisation):
    system = toy_system(normalisation=normalisation, **decoders).float()
    save(tmp_path / "new" / "model", system)
    state = torch.get_rng_state()
    model = load_model(tmp_path / "new" / "model")
    assert torch.equal(torch.get_rng_state(), state), "loading draws no random numbers"
    assert model.system.config == system.config
    assert not model.system.training
    assert model.features == FeatureConfig(num_bins=11)
    assert model.trim == TrimConfig(threshold=0.9, margin=3)
    assert list(model.tokenizers) == [TEXT]
    assert model.tokenizer is model.tokenizers[TEXT]
    assert model.tokenizer.pieces == TOKENIZER.pieces
    assert model.description == {"corpus": "toys", "epochs": [1, 2]}
    loaded, saved = model.system.state_dict(), system.state_dict()
    assert list(loaded) == list(saved)
    assert all(torch.equal(loaded[name], saved[name]) for name in saved)
    assert all(parameter.requires_grad for parameter in model.system.parameters())
    batch = toy_batch(dtype=torch.float32)
    expected, found = (s.encode(batch.source).logits().values for s in (system, model.system))
    assert torch.equal(expected[0], found[0])


def test_what_may_be_left_out(tmp_path):
    save_model(tmp_path, toy_system(), {TEXT: TOKENIZER})
    model = load_model(tmp_path)
    assert (model.features, model.trim, model.description) == (None, None, {})


def test_several_texts(tmp_path):
    """Each with its tokenizer; `tokenizer` is that of the text that comes out."""
    words = Tokenizer.train(["eins zwei drei"], TokenConfig(kind="word"))
    config = toy_config().model_copy(update={"output": "translation"})
    config = config.model_copy(update={"heads": config.heads | {"translation": config.heads[TEXT]}})
    system = System(config, FEATURES, {TEXT: 5, "translation": words.size})
    tokenizers = {TEXT: TOKENIZER, "translation": words}
    save_model(tmp_path, system, tokenizers)
    model = load_model(tmp_path)
    assert {text: t.pieces for text, t in model.tokenizers.items()} == {
        text: t.pieces for text, t in tokenizers.items()
    }
    assert model.tokenizer.pieces == words.pieces
    assert model.system.vocab_sizes == system.vocab_sizes
    with pytest.raises(ValueError, match="the tokenizer of translation has None classes, the system 5"):
        save_model(tmp_path, system, {TEXT: TOKENIZER})


def test_the_tap_to_watch(tmp_path):
    for config, tap in ((toy_config(), "middle"), (toy_online_config(), "final")):
        save_model(tmp_path, toy_system(config), {TEXT: TOKENIZER})
        assert load_model(tmp_path).watched_tap == tap


def test_saving_again_replaces(tmp_path):
    save(tmp_path, toy_system(seed=0))
    save(tmp_path, toy_system(seed=1))
    assert len(list(tmp_path.iterdir())) == 2
    assert torch.equal(head_of(load_model(tmp_path).system), head_of(toy_system(seed=1)))
    assert not torch.equal(head_of(toy_system(seed=0)), head_of(toy_system(seed=1)))


def test_a_save_that_fails_leaves_the_old_model_or_the_new_one(tmp_path, monkeypatch):
    """Every call to the file system fails once, as on a full disk or when the process is killed."""
    old, new = toy_system(seed=0), toy_system(seed=1)
    calls = {"left": 0}

    def failing(function):
        def call(*arguments, **options):
            calls["left"] -= 1
            if calls["left"] == 0:
                raise OSError("no space left on device")
            return function(*arguments, **options)

        return call

    for module, name in ((os, "fsync"), (Path, "replace"), (Path, "unlink"), (Path, "open")):
        monkeypatch.setattr(module, name, failing(getattr(module, name)))
    seen = []
    for fails_at in range(1, 40):
        calls["left"] = 0
        save(tmp_path, old)
        calls["left"] = fails_at
        try:
            save(tmp_path, new)
        except OSError:
            pass
        else:
            break
        calls["left"] = 0
        found = head_of(load_model(tmp_path).system)
        seen.append(torch.equal(found, head_of(new)))
        assert seen[-1] or torch.equal(found, head_of(old))
    assert seen == sorted(seen), "old models first, then new ones"
    assert seen.count(False) >= 5
    assert seen.count(True) >= 1
    assert len(list(tmp_path.iterdir())) == 2, "nothing is left behind"


def cut(directory):
    path = weights_file(directory)
    path.write_bytes(path.read_bytes()[:-10])


def flip(directory):
    path = weights_file(directory)
    data = bytearray(path.read_bytes())
    data[-5] ^= 64
    path.write_bytes(data)


def larger(tensors):
    tensors["heads.transcript.bias"] = torch.zeros(9)


def integers(tensors):
    tensors["heads.transcript.bias"] = torch.zeros(5, dtype=torch.long)


def pickle_weights(directory):
    path = weights_file(directory)
    torch.save({"heads.transcript.bias": torch.zeros(5)}, path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    rewrite(directory, lambda content: content["weights"].update(sha256=digest))


def json_with(**values):
    return lambda directory: rewrite(directory, lambda content: content.update(values))


def json_without(name):
    return lambda directory: rewrite(directory, lambda content: content.pop(name))


def weights_with(change):
    return lambda directory: replace_weights(directory, change)


@pytest.mark.parametrize(
    ("damage", "error", "message"),
    [
        (lambda d: (d / "model.json").unlink(), FileNotFoundError, "holds no model"),
        (lambda d: weights_file(d).unlink(), FileNotFoundError, "is missing: the model is not whole"),
        (lambda d: (d / "model.json").write_text("{"), ValueError, "model.json is damaged"),
        (lambda d: (d / "model.json").write_bytes(b"\xff\xfe"), ValueError, "model.json is damaged"),
        (lambda d: (d / "model.json").write_text("[]"), ValueError, "not a model of brctc"),
        (json_with(format="other"), ValueError, "not a model of brctc"),
        (json_with(version=1), ValueError, "format version 1, this brctc reads 2"),
        (json_with(version="2"), ValueError, "format version 2, this brctc reads 2"),
        (json_without("version"), ValueError, "format version None, this brctc reads 2"),
        (json_without("system"), ValueError, "does not describe a model: model: system: missing"),
        (json_without("trim"), ValueError, "does not describe a model: model: trim: missing"),
        (json_with(more=1), ValueError, "more: unknown key"),
        (json_with(input_size="many"), ValueError, "input_size: input should be a valid integer"),
        (json_with(input_size=True), ValueError, "input_size: input should be a valid integer"),
        (json_with(input_size=6), ValueError, r"features\.num_bins: the system takes 6 features"),
        (json_with(input_size=6, features=None), ValueError, "feature_dim is 6, expected 7 or more"),
        (
            json_with(vocab_sizes={TEXT: -1}),
            ValueError,
            r"vocab_sizes\.transcript: .* greater than or equal to 1",
        ),
        (json_with(vocab_sizes={}), ValueError, "there are no tokens for the text 'transcript'"),
        (json_with(system={"encoder": {"depth": 3}}), ValueError, r"system\.encoder\.depth: unknown key"),
        (
            json_with(system={"encoder": {"kind": "x"}}),
            ValueError,
            r"system\.encoder\.kind: there is no encoder",
        ),
        (
            json_with(trim={"threshold": 2}),
            ValueError,
            r"trim\.threshold: input should be less than 1, got 2",
        ),
        (json_with(trim={"text": "x"}), ValueError, r"trim\.text: there is no CTC head for 'x'"),
        (json_with(trim=[]), ValueError, "trim: input should be a valid dictionary"),
        (json_with(features=0), ValueError, "features: input should be a valid dictionary"),
        (json_with(description=[["a", 1]]), ValueError, "description: input should be a valid dictionary"),
        (json_with(tokenizers={TEXT: {"kind": "char"}}), ValueError, "not a saved tokenizer"),
        (json_with(tokenizers={}), ValueError, "there is no tokenizer of 'transcript'"),
        (json_with(vocab_sizes={TEXT: 6}), ValueError, "tokenizer of transcript has 5 classes, its system 6"),
        (
            json_with(input_size=99, features=None),
            ValueError,
            "tensor normalisation.mean is .* expected float",
        ),
        (json_with(weights={"file": 3, "sha256": ""}), ValueError, r"weights\.file: .* valid string, got 3"),
        (json_with(weights={"file": "x"}), ValueError, r"weights\.sha256: missing"),
        (json_with(weights={"file": "", "sha256": ""}), FileNotFoundError, "is missing"),
        (json_with(weights={"file": "x" * 5000, "sha256": ""}), FileNotFoundError, "is missing"),
        (json_with(weights={"file": "model.json", "sha256": ""}), ValueError, "damaged: its SHA-256"),
        (json_with(weights={"file": "../x", "sha256": ""}), FileNotFoundError, "is missing"),
        (cut, ValueError, "damaged: its SHA-256"),
        (flip, ValueError, "damaged: its SHA-256"),
        (pickle_weights, ValueError, "not a safetensors file"),
        (
            weights_with(lambda t: t.pop("heads.transcript.bias")),
            ValueError,
            "heads.transcript.bias is missing",
        ),
        (weights_with(lambda t: t.update(extra=torch.zeros(1))), ValueError, "tensor extra is unknown"),
        (
            weights_with(larger),
            ValueError,
            r"bias is torch.float32 \(9,\), expected float \(5,\)",
        ),
        (weights_with(integers), ValueError, "heads.transcript.bias is torch.int64"),
    ],
)
def test_refusals(tmp_path, damage, error, message):
    save(tmp_path)
    damage(tmp_path)
    with pytest.raises(error, match=message) as found:
        load_model(tmp_path)
    assert str(tmp_path) in str(found.value)


def test_a_run_is_not_its_model(tmp_path):
    save(tmp_path / "model")
    with pytest.raises(FileNotFoundError, match=f"{tmp_path} holds no model.*; say {tmp_path / 'model'}"):
        load_model(tmp_path)


def test_tokenizer_must_fit(tmp_path):
    system = System(toy_config(), FEATURES, {TEXT: 7})
    with pytest.raises(ValueError, match="the tokenizer of transcript has 5 classes, the system 7"):
        save_model(tmp_path, system, {TEXT: TOKENIZER})
    assert list(tmp_path.iterdir()) == []


def test_description_must_be_json(tmp_path):
    with pytest.raises(TypeError, match="not JSON serializable"):
        save(tmp_path, description={"when": object()})
    assert list(tmp_path.iterdir()) == []


def test_a_model_from_before_the_limits_of_the_filterbank_has_those_of_then(tmp_path):
    save(tmp_path)

    def forget(content):
        del content["features"]["low_hz"], content["features"]["high_hz"]

    rewrite(tmp_path, forget)
    assert load_model(tmp_path).features == FeatureConfig(num_bins=11, high_hz=0)
