"""A saved model comes back whole, or is refused with the reason; it never loads wrong."""

import hashlib
import json
import os
from pathlib import Path

import pytest
import safetensors.torch
import torch

from brctc.data import FeatureConfig, TokenConfig, Tokenizer
from brctc.models import System, TrimConfig, load_model, save_model
from tests.models.toys import FEATURES, toy_batch, toy_config, toy_system

TOKENIZER = Tokenizer.train(["abc"], TokenConfig())  # five classes with blank and unknown


def save(directory, system=None, **changes):
    options = {
        "tokenizer": TOKENIZER,
        "features": FeatureConfig(num_bins=11),
        "trim": TrimConfig(threshold=0.9, margin=3),
        "description": {"corpus": "toys", "epochs": [1, 2]},
    }
    save_model(directory, system or toy_system(attention=True), **{**options, **changes})


def weights_file(directory) -> Path:
    (path,) = Path(directory).glob("*.safetensors")
    return path


def rewrite(directory, change):
    path = Path(directory) / "model.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def replace_weights(directory, change):
    """Other tensors under a hash that is right: only their names and shapes can be wrong."""
    path = weights_file(directory)
    tensors = safetensors.torch.load_file(path)
    change(tensors)
    path.write_bytes(safetensors.torch.save(tensors))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    rewrite(directory, lambda content: content["weights"].update(sha256=digest))


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
    assert model.tokenizer.pieces == TOKENIZER.pieces
    assert model.description == {"corpus": "toys", "epochs": [1, 2]}
    loaded, saved = model.system.state_dict(), system.state_dict()
    assert list(loaded) == list(saved)
    assert all(torch.equal(loaded[name], saved[name]) for name in saved)
    assert all(parameter.requires_grad for parameter in model.system.parameters())
    batch = toy_batch(dtype=torch.float32)
    expected, found = (s.encode(batch.features, batch.lengths) for s in (system, model.system))
    assert torch.equal(expected.logits[0], found.logits[0])


def test_what_may_be_left_out(tmp_path):
    save_model(tmp_path, toy_system(), TOKENIZER)
    model = load_model(tmp_path)
    assert (model.features, model.trim, model.description) == (None, None, {})


def test_saving_again_replaces(tmp_path):
    save(tmp_path, toy_system(seed=0))
    save(tmp_path, toy_system(seed=1))
    assert len(list(tmp_path.iterdir())) == 2
    expected = toy_system(seed=1).encoder.ctc.weight
    assert torch.equal(load_model(tmp_path).system.encoder.ctc.weight, expected)


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
        found = load_model(tmp_path).system.encoder.ctc.weight
        seen.append(torch.equal(found, new.encoder.ctc.weight))
        assert seen[-1] or torch.equal(found, old.encoder.ctc.weight)
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
    tensors["encoder.ctc.bias"] = torch.zeros(9)


def integers(tensors):
    tensors["encoder.ctc.bias"] = torch.zeros(5, dtype=torch.long)


def pickle_weights(directory):
    path = weights_file(directory)
    torch.save({"encoder.ctc.bias": torch.zeros(5)}, path)
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
        (json_with(version=2), ValueError, "format version 2, this brctc reads 1"),
        (json_without("system"), ValueError, "damaged: KeyError 'system'"),
        (json_without("trim"), ValueError, "damaged: KeyError 'trim'"),
        (json_with(feature_dim="many"), ValueError, "feature_dim is 'many'"),
        (json_with(vocab_size=-1), ValueError, "vocab_size is -1"),
        (json_with(system={"encoder": {"depth": 3}}), ValueError, "(?s)does not describe a model.*depth"),
        (json_with(trim={"threshold": 2}), ValueError, "(?s)does not describe a model.*threshold"),
        (json_with(tokenizer={"kind": "char"}), ValueError, "not a saved tokenizer"),
        (json_with(vocab_size=6), ValueError, "its tokenizer has 5 classes, its system 6"),
        (json_with(feature_dim=99), ValueError, "tensor normalisation.mean is .* expected float"),
        (json_with(weights={"file": 3}), ValueError, "damaged: TypeError"),
        (json_with(weights={"file": "../x", "sha256": ""}), FileNotFoundError, "is missing"),
        (cut, ValueError, "damaged: its SHA-256"),
        (flip, ValueError, "damaged: its SHA-256"),
        (pickle_weights, ValueError, "not a safetensors file"),
        (weights_with(lambda t: t.pop("encoder.ctc.bias")), ValueError, "encoder.ctc.bias is missing"),
        (weights_with(lambda t: t.update(extra=torch.zeros(1))), ValueError, "tensor extra is unknown"),
        (
            weights_with(larger),
            ValueError,
            r"bias is torch.float32 \(9,\), expected float \(5,\)",
        ),
        (weights_with(integers), ValueError, "encoder.ctc.bias is torch.int64"),
    ],
)
def test_refusals(tmp_path, damage, error, message):
    save(tmp_path)
    damage(tmp_path)
    with pytest.raises(error, match=message):
        load_model(tmp_path)


def test_tokenizer_must_fit(tmp_path):
    system = System(toy_config(), FEATURES, 7)
    with pytest.raises(ValueError, match="the tokenizer has 5 classes, the system 7"):
        save_model(tmp_path, system, TOKENIZER)
    assert list(tmp_path.iterdir()) == []


def test_description_must_be_json(tmp_path):
    with pytest.raises(TypeError, match="not JSON serializable"):
        save(tmp_path, description={"when": object()})
    assert list(tmp_path.iterdir()) == []
