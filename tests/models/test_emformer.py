"""An online encoder hears what its reference says, and never more than it may."""

import json

import pytest
import torch
import torch.nn.functional as F

import brctc
from brctc.data import TokenConfig, Tokenizer
from brctc.models import (
    EmformerConfig,
    Objective,
    Stream,
    System,
    SystemConfig,
    TrimConfig,
    load_model,
    save_model,
    subsampled_lengths,
)
from brctc.models.positions import sinusoids
from tests.models.toys import (
    CLASSES,
    FEATURES,
    KINDS,
    encode_alone,
    learn,
    learnable_batch,
    push_all,
    random_features,
    toy_batch,
    toy_online,
    toy_online_config,
    toy_system,
)

ONLINE = Objective(inter_weight=0.0)


# what each frame is made of, written down without masks, batches or state


def reference(encoder, features):
    """(T, C) logits of one utterance (T, F), frame by frame."""
    config = encoder.emformer.config
    frames = encoder.subsampling(features[None], torch.tensor([len(features)]))[0][0]
    size, total = config.chunk_frames, len(frames)
    starts = range(0, total, size)
    blocks = [frames[first : first + encoder.block_frames] for first in starts]
    look_ahead = torch.arange(encoder.block_frames - 1, -1, -1)
    positions = sinusoids(look_ahead, config.dim).to(features.dtype)
    blocks = [block + positions[: len(block)] for block in blocks]
    for layer in encoder.emformer.layers:
        normed = [layer.attention_norm(block) for block in blocks]
        attended = [
            block + reference_attention(layer.attention, config, normed, k) for k, block in enumerate(blocks)
        ]
        if layer.convolution:
            gated = [F.glu(layer.convolution.gate(layer.convolution_norm(block))) for block in attended]
            attended = [
                block + reference_convolution(layer.convolution, size, gated, k)
                for k, block in enumerate(attended)
            ]
        blocks = [block + layer.feed_forward(layer.feed_forward_norm(block)) for block in attended]
    return encoder.ctc(encoder.emformer.norm(torch.cat([block[:size] for block in blocks])))


def reference_attention(attention, config, blocks, k):
    size = config.chunk_frames
    summaries = [block[:size].mean(0) for block in blocks[:k]][max(0, k - config.memory_size) :]
    before = [frame for block in blocks[:k] for frame in block[:size]]
    before = before[max(0, len(before) - config.left_context_frames) :]
    seen = torch.stack([*summaries, *before, *blocks[k]])
    query = attention.project(blocks[k]).chunk(3, dim=-1)[0]
    _, key, value = attention.project(seen).chunk(3, dim=-1)
    heads = []
    for q, ks, vs in zip(*(part.chunk(config.heads, dim=-1) for part in (query, key, value)), strict=True):
        heads.append((q @ ks.T / q.shape[-1] ** 0.5).softmax(-1) @ vs)
    return attention.out(torch.cat(heads, dim=-1))


def reference_convolution(convolution, size, blocks, k):
    kernel = convolution.depthwise.weight[:, 0, 0]  # (D, kernel size)
    half = kernel.shape[1] // 2
    before = [frame for block in blocks[:k] for frame in block[:size]]
    line = [*before, *blocks[k]]
    found = []
    for place in range(len(before), len(line)):
        value = convolution.depthwise.bias
        for offset in range(-half, half + 1):
            if 0 <= place + offset < len(line):
                value = value + kernel[:, half + offset] * line[place + offset]
        found.append(convolution.out(F.silu(convolution.norm(value))))
    return torch.stack(found)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_frames_are_made_of_what_the_reference_says(kind):
    system = toy_online(**kind)
    for frames in (7, 30, 63):
        features = random_features(frames)
        normalised = system.normalisation(features[None], torch.tensor([frames]))[0]
        torch.testing.assert_close(
            encode_alone(system, features).logits[0], reference(system.encoder, normalised).detach()
        )


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_alone_as_in_a_batch(kind):
    """Outputs, lengths, and the gradients of features and parameters; padding is NaN."""
    system, batch = toy_online(**kind), toy_batch()
    features = batch.features.clone().requires_grad_()
    together = system.encode(features, batch.lengths)
    weight = torch.randn(together.logits.shape[1:], dtype=torch.double)

    def objective(encoded):
        return sum((encoded.logits[n, :t] * weight[:t]).sum() for n, t in enumerate(encoded.lengths))

    parameters = list(system.parameters())
    feature_gradient, *expected = torch.autograd.grad(objective(together), [features, *parameters])
    total = [torch.zeros_like(parameter) for parameter in parameters]
    for n in range(3):
        single = batch.alone(n)
        single_features = single.features.clone().requires_grad_()
        alone = system.encode(single_features, single.lengths)
        assert int(alone.lengths) == int(together.lengths[n])
        torch.testing.assert_close(together.hidden[n, : alone.hidden.shape[1]], alone.hidden[0])
        torch.testing.assert_close(together.logits[n, : alone.hidden.shape[1]], alone.logits[0])
        gradient, *parts = torch.autograd.grad(objective(alone), [single_features, *parameters])
        torch.testing.assert_close(feature_gradient[n, : single.lengths], gradient[0])
        assert feature_gradient[n, single.lengths :].eq(0).all()
        total = [before + part for before, part in zip(total, parts, strict=True)]
    torch.testing.assert_close(total, expected)


def test_chunks_of_padding_attend_to_something():
    emformer = toy_online(left_context_frames=0, memory_size=0).encoder.emformer
    blocks = torch.zeros(2, 4, 5, 16)
    mask = emformer.context(blocks, torch.tensor([12, 2]), emformer.start(2)).mask.view(2, 4, 5)
    assert mask.amax(-1).eq(0).all()
    assert mask[0, :3].eq(0).all()
    assert mask[1].eq(0).sum(-1).tolist() == [2, 1, 1, 1]


def test_both_ctc_outputs_are_one():
    batch = toy_batch()
    encoded = toy_online().encode(batch.features, batch.lengths)
    assert encoded.inter_logits is encoded.logits
    assert encoded.inter_lengths is encoded.lengths
    assert encoded.lengths.tolist() == subsampled_lengths(batch.lengths, 4).tolist()


def seen_frames(system, frames, chunk):
    """The first and last feature frame that a chunk's logits depend on."""
    features = random_features(frames)[None].requires_grad_()
    size = system.encoder.chunk_frames
    logits = system.encode(features, torch.tensor([frames])).logits[0, chunk * size : (chunk + 1) * size]
    (gradient,) = torch.autograd.grad((logits * torch.randn_like(logits)).sum(), features)
    seen = gradient[0].abs().sum(-1).nonzero()[:, 0]
    return int(seen[0]), int(seen[-1])


@pytest.mark.parametrize("right", [0, 1, 3])
@pytest.mark.parametrize("kernel_size", [None, 15])
def test_no_chunk_looks_beyond_its_right_context(right, kernel_size):
    """However many layers there are; and it does look so far."""
    system = toy_online(right_context_frames=right, kernel_size=kernel_size, layers=4)
    hop, window = system.encoder.hop_frames, system.encoder.window_frames
    for chunk in range(4):
        assert seen_frames(system, 120, chunk)[1] == chunk * hop + window - 1


@pytest.mark.parametrize(
    ("left", "memory", "seen"),
    [(0, 0, 15), (2, 0, 13), (2, 1, 12), (4, 1, 11), (4, 3, 6), (1, 5, 0), (20, 0, 0)],
)
def test_a_layer_looks_back_at_left_context_and_memory(left, memory, seen):
    """The sixth chunk of three frames each begins with frame 15."""
    system = toy_online(
        layers=1, kernel_size=None, left_context_frames=left, memory_size=memory, subsampling=1
    )
    assert seen_frames(system, 40, 5)[0] == seen


def test_later_features_change_nothing():
    system = toy_online(layers=3)
    features = random_features(100)
    before = encode_alone(system, features).logits[0]
    chunk, hop, window = system.encoder.chunk_frames, system.encoder.hop_frames, system.encoder.window_frames
    for k in (0, 2, 4):
        changed = features.clone()
        changed[k * hop + window :] *= -5
        after = encode_alone(system, changed).logits[0]
        torch.testing.assert_close(after[: (k + 1) * chunk], before[: (k + 1) * chunk])
        assert not torch.allclose(after[(k + 1) * chunk :], before[(k + 1) * chunk :])


def test_frames_know_their_place_in_the_chunk():
    """In a constant input there is nothing else to know: frames of a chunk differ, chunks do not."""
    system = toy_online(left_context_frames=0, memory_size=0, kernel_size=None, subsampling=1)
    logits = encode_alone(system, torch.ones(12, FEATURES, dtype=torch.double)).logits[0].view(4, 3, CLASSES)
    torch.testing.assert_close(logits[1], logits[0])
    assert (logits[0, 1:] - logits[0, :-1]).abs().amax(-1).min() > 1e-3


@pytest.mark.parametrize("kernel_size", [None, 7])
def test_all_parameters_learn(kernel_size):
    system, batch = toy_online(attention=True, kernel_size=kernel_size), toy_batch()
    system(batch, Objective(final_risk=brctc.EarlyEmission(2.0), inter_weight=0.0))["loss"].backward()
    for name, parameter in system.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 1e-9, name


def test_loss_of_a_hybrid_system():
    system, batch = toy_online(attention=True), toy_batch()
    found = system(batch, ONLINE)
    assert set(found) == {"loss", "ctc", "attention"}
    torch.testing.assert_close(found["loss"].detach(), 0.3 * found["ctc"] + 0.7 * found["attention"])
    encoded = system.encode(batch.features, batch.lengths)
    expected = brctc.bayes_risk_ctc_loss(
        encoded.logits.log_softmax(-1).transpose(0, 1), batch.targets, encoded.lengths, batch.target_lengths
    )
    torch.testing.assert_close(found["ctc"], expected.detach())
    singles = [system(batch.alone(n), ONLINE)["loss"] for n in range(3)]
    torch.testing.assert_close(found["loss"], torch.stack(singles).mean())


def test_an_online_system_learns():
    torch.manual_seed(0)
    config = toy_online_config(attention=True, dim=32, subsampling=2, dropout=0.0)
    system, batch = System(config, FEATURES, CLASSES), learnable_batch()
    before, after = learn(system, batch, ONLINE)
    assert after["loss"] < 0.5 * before["loss"], (before, after)
    assert after["ctc"] < 0.5 * before["ctc"]


def test_dropout_is_drawn_for_training_alone():
    batch = toy_batch()
    system = toy_online().train()
    first, second = (system.encode(batch.features, batch.lengths).logits for _ in range(2))
    assert not torch.allclose(first[0], second[0])


def test_bfloat16_autocast():
    torch.manual_seed(0)
    system, batch = System(toy_online_config(attention=True), FEATURES, CLASSES).eval(), learnable_batch()
    exact = system(batch, ONLINE)
    with torch.autocast("cpu", torch.bfloat16):
        rough = system(batch, ONLINE)
    rough["loss"].backward()
    torch.testing.assert_close(rough["loss"], exact["loss"], rtol=0.05, atol=0)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in system.parameters())


TOKENIZER = Tokenizer.train(["abc"], TokenConfig())  # five classes with blank and unknown


def test_saved_and_loaded(tmp_path):
    system = toy_online(attention=True).float()
    save_model(tmp_path, system, TOKENIZER)
    loaded = load_model(tmp_path).system
    assert loaded.config == system.config
    assert loaded.config.online
    features = random_features(70, dtype=torch.float)
    assert torch.equal(encode_alone(loaded, features).logits, encode_alone(system, features).logits)
    streamed = push_all(Stream(loaded), features, [20, 20])[1]
    torch.testing.assert_close(streamed, encode_alone(system, features).logits[0], atol=1e-5, rtol=1e-5)


def test_an_encoder_that_does_not_say_its_kind_is_a_conformer(tmp_path):
    """As in models and recipes from before there was another."""
    system = toy_system().float()
    save_model(tmp_path, system, TOKENIZER)
    content = json.loads((tmp_path / "model.json").read_text())
    assert content["system"]["encoder"].pop("kind") == "conformer"
    (tmp_path / "model.json").write_text(json.dumps(content))
    loaded = load_model(tmp_path).system
    assert loaded.config == system.config
    assert not loaded.config.online


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"dim": 10}, "dim is 10, expected an even number that 4 heads divide"),
        ({"kernel_size": 4}, "kernel_size is 4, expected an odd number"),
        ({"kernel_size": 0}, "kernel_size"),
        ({"chunk_frames": 0}, "chunk_frames"),
        ({"right_context_frames": -1}, "right_context_frames"),
        ({"memory_size": -1}, "memory_size"),
        ({"first_layers": 6}, "first_layers"),
        ({"kind": "conformer"}, "kind"),
    ],
)
def test_impossible_configurations(values, message):
    with pytest.raises(ValueError, match=message):
        EmformerConfig(**values)


def test_impossible_systems():
    with pytest.raises(ValueError, match="an emformer hears no utterance as a whole"):
        SystemConfig(encoder=EmformerConfig(), normalisation="utterance")
    with pytest.raises(ValueError, match="'conformer', 'emformer'"):
        SystemConfig.model_validate({"encoder": {"kind": "former"}})
    with pytest.raises(ValueError, match="chunk_frames"):
        SystemConfig.model_validate({"encoder": {"chunk_frames": 3}})


def test_what_an_online_system_refuses():
    system, batch = toy_online(), toy_batch()
    with pytest.raises(ValueError, match=r"inter_weight is 0\.3, but an emformer has one CTC: say 0"):
        system(batch, Objective())
    with pytest.raises(ValueError, match="an emformer has no second half to trim for"):
        system(batch, Objective(inter_weight=0.0, trim=TrimConfig()))
    with pytest.raises(ValueError, match="an online encoder has no second half to trim for"):
        system.encode(batch.features, batch.lengths, TrimConfig())
    with pytest.raises(ValueError, match="utterance 1 has 6 frames, expected 7 or more"):
        system.encode(batch.features, torch.tensor([20, 6, 20]))
    with pytest.raises(ValueError, match="there are no maps of whole utterances"):
        system.encoder_attention(batch.features[:1], batch.lengths[:1])
