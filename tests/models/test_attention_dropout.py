"""Attention weights are dropped in training alone, fairly, and as the seed says."""

import pytest
import torch
import torch.nn.functional as F

from brctc.data import Padded
from brctc.models import System, SystemConfig
from brctc.models.layers import DotProductAttention, attention_mask
from tests.models.toys import toy_batch

KEYS = 9
LENGTHS = torch.tensor([KEYS, 5])


def parts(queries=KEYS, dtype=torch.double):
    """Queries, keys, values and a mask of two utterances, three heads."""
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, 3, n, 4, dtype=dtype) for n in (queries, KEYS, KEYS))
    return query, key, value, attention_mask(LENGTHS, KEYS, query)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dtype", [torch.float, torch.double])
def test_without_dropout_it_is_torchs(training, dtype):
    """Bit by bit, with a mask, without one, and causal."""
    query, key, value, mask = parts(dtype=dtype)
    attend = DotProductAttention(0.0 if training else 0.4).train(training)
    fused = F.scaled_dot_product_attention
    assert attend(query, key, value).equal(fused(query, key, value))
    assert attend(query, key, value, mask).equal(fused(query, key, value, attn_mask=mask))
    assert attend(query, key, value, causal=True).equal(fused(query, key, value, is_causal=True))


@pytest.mark.parametrize("causal", [False, True])
def test_weights_are_those_of_torch(causal):
    query, key, value, mask = parts()
    seen = {"mask": None if causal else mask, "causal": causal}
    weights = DotProductAttention.weights(query, key, **seen)
    torch.testing.assert_close(weights @ value, DotProductAttention()(query, key, value, **seen))
    torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))
    if causal:
        assert weights.triu(1).eq(0).all()
    else:
        assert weights[1, :, :, LENGTHS[1] :].eq(0).all()


@pytest.mark.parametrize("causal", [False, True])
def test_a_weight_is_dropped_or_enlarged(causal):
    """What the values 1 of one key each collect is the weights themselves."""
    query, key, _, mask = parts(queries=500)
    seen = {"mask": None if causal else mask, "causal": causal}
    each_key = torch.eye(KEYS, dtype=torch.double).expand(2, 3, KEYS, KEYS)
    found = DotProductAttention(0.25)(query, key, each_key, **seen)
    weights = DotProductAttention.weights(query, key, **seen)
    kept = found > 0
    torch.testing.assert_close(found[kept], weights[kept] / 0.75)
    assert weights[kept].gt(0).all()
    possible = weights > 0
    assert abs(kept[possible].double().mean() - 0.75) < 4 * (0.1875 / int(possible.sum())) ** 0.5


def test_the_mean_of_many_draws_is_the_whole():
    query, key, value, mask = parts()
    attend = DotProductAttention(0.3)
    draws = torch.stack([attend(query, key, value, mask) for _ in range(4000)])
    error = draws.std(0) / len(draws) ** 0.5
    whole = DotProductAttention()(query, key, value, mask)
    assert ((draws.mean(0) - whole).abs() < 5 * error).all()
    assert error.max() < 0.05


def test_gradients_are_of_the_weights_that_were_kept():
    query, key, value, mask = parts()
    attend, inputs = DotProductAttention(0.3), [part.requires_grad_() for part in (query, key, value)]

    def seeded(*given):
        torch.manual_seed(1)
        return attend(*given, mask)

    assert torch.autograd.gradcheck(seeded, inputs)


def test_bfloat16_autocast():
    """With a mask in single precision, as the encoders make it."""
    query, key, value, mask = (part.float() for part in parts())
    attend = DotProductAttention(0.3)
    torch.manual_seed(1)
    exact = attend(query, key, value, mask)
    with torch.autocast("cpu", torch.bfloat16):
        torch.manual_seed(1)
        rough = attend(query.bfloat16(), key.bfloat16(), value.bfloat16(), mask)
    assert rough.dtype == torch.bfloat16
    torch.testing.assert_close(rough.float(), exact, atol=0.05, rtol=0.05)


SIZES = {"dim": 16, "heads": 2, "feed_forward_dim": 24, "dropout": 0.0}
ENCODERS = {
    "relative": {"kind": "conformer", "first_layers": 1, "second_layers": 1},
    "sinusoidal": {"kind": "conformer", "first_layers": 1, "second_layers": 1, "positions": "sinusoidal"},
    "emformer": {"kind": "emformer", "layers": 2, "chunk_frames": 3},
    "legonn": {"kind": "legonn", "first_layers": 1, "second_layers": 1},
}


def system_with(encoder, attention_dropout=0.0, decoder_dropout=0.0):
    """The same weights every time; all other dropout is 0."""
    content = {
        "encoder": SIZES | encoder | {"attention_dropout": attention_dropout},
        "decoders": {"attention": {"kind": "attention", **SIZES, "attention_dropout": decoder_dropout}},
    }
    torch.manual_seed(0)
    system = System(SystemConfig.model_validate(content), 11, {"transcript": 5})
    for layer in system.decoders["attention"].layers:  # as after some training
        layer.cross_out.weight.data.mul_(10)
    return system


def outputs(system, seed):
    """What the encoder gives, and what the decoder says of targets."""
    batch = toy_batch(dtype=torch.float, padding=0.0)
    source = batch.source
    if system.config.encoder.input == "tokens":
        source = Padded(source.values[..., 0].abs().mul(4).long().clamp(max=10), source.lengths)
    torch.manual_seed(seed)
    hidden = system.encode(source).final
    return hidden.values.detach(), system.decoders["attention"](*hidden, batch.targets["transcript"].values)


@pytest.mark.parametrize("name", ENCODERS)
def test_encoders_drop_weights_in_training(name):
    encoder = ENCODERS[name]
    plain, dropping = system_with(encoder), system_with(encoder, attention_dropout=0.4)
    assert dropping.state_dict().keys() == plain.state_dict().keys()
    hidden = outputs(plain, seed=0)[0]
    assert outputs(plain, seed=1)[0].equal(hidden)
    first, again, other = (outputs(dropping, seed)[0] for seed in (1, 1, 2))
    assert first.equal(again)
    assert not torch.allclose(first, other)
    assert not torch.allclose(first, hidden)
    assert outputs(plain.eval(), 1)[0].equal(outputs(dropping.eval(), 2)[0])


@pytest.mark.parametrize("where", ["_look_back", "_look_up"])
def test_decoders_drop_weights_of_both_attentions_in_training(where):
    """To the tokens so far, and to the frames."""
    plain, dropping = (system_with(ENCODERS["relative"], 0.0, p) for p in (0.0, 0.4))
    layer, x = dropping.decoders["attention"].layers[0], torch.randn(2, 6, 16)
    frames = torch.randn(2, 8, 16)
    seen = () if where == "_look_back" else (*layer.memory(frames), torch.zeros(2, 1, 1, 8))
    values = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        values.append(getattr(layer, where)(x, *seen))
    assert values[0].equal(values[1])
    assert not torch.allclose(values[0], values[2])
    assert not torch.allclose(outputs(dropping, 1)[1], outputs(plain, 1)[1])
    assert outputs(plain.eval(), 1)[1].equal(outputs(dropping.eval(), 2)[1])


def test_no_token_sees_a_later_one_in_training():
    """The attention that drops weights is another computation: it is as blind."""
    decoder = system_with(ENCODERS["relative"], 0.0, 0.4).decoders["attention"]
    hidden, lengths = torch.randn(1, 8, 16), torch.tensor([8])
    for place in range(4):
        targets = torch.tensor([[1, 2, 3, 4]])
        changed = targets.clone()
        changed[0, place] = 4 if place < 3 else 1
        found = []
        for tokens in (targets, changed):
            torch.manual_seed(0)
            found.append(decoder(hidden, lengths, tokens))
        assert found[0][:, : place + 1].equal(found[1][:, : place + 1])
        assert not torch.allclose(found[0][:, place + 1 :], found[1][:, place + 1 :])


@pytest.mark.parametrize("kind", ["conformer", "emformer", "legonn"])
@pytest.mark.parametrize("value", [-0.1, 1.0])
def test_impossible_rates(kind, value):
    with pytest.raises(ValueError, match="attention_dropout"):
        SystemConfig.model_validate({"encoder": {"kind": kind, "attention_dropout": value}})
    with pytest.raises(ValueError, match="attention_dropout"):
        SystemConfig.model_validate({"decoders": {"a": {"kind": "attention", "attention_dropout": value}}})
