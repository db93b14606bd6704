"""An online encoder hears what its reference says, and never more than it may."""

import json

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from brctc.data import Padded, TokenConfig, Tokenizer
from brctc.models import (
    EmformerConfig,
    EncoderStream,
    SystemConfig,
    TrimConfig,
    count_parameters,
    load_model,
    save_model,
)
from brctc.models.positions import sinusoids
from brctc.models.subsampling import subsampled_lengths
from tests.models.toys import (
    ANY_SIZES,
    CLASSES,
    FEATURES,
    KINDS,
    MEMORIES,
    TEXT,
    alone,
    logits_alone,
    one_of,
    push_all,
    random_features,
    toy_batch,
    toy_online,
    toy_system,
)

# what each frame is made of, written down without masks, batches or state


def reference(system, features):
    """(T, C) logits of one utterance (T, F), frame by frame."""
    encoder, head = system.encoder, system.heads[TEXT]
    config = encoder.emformer.config
    frames = encoder.subsampling(features[None], torch.tensor([len(features)]))[0][0]
    size, total = config.chunk_frames, len(frames)
    starts = range(0, total, size)
    blocks = [frames[first : first + encoder.block_frames] for first in starts]
    look_ahead = torch.arange(encoder.block_frames - 1, -1, -1)
    positions = sinusoids(look_ahead, config.dim).to(features.dtype)
    blocks = [block + positions[: len(block)] for block in blocks]
    carried = [block[:size].mean(0) for block in blocks]
    for layer in encoder.emformer.layers:
        normed = [layer.attention_norm(block) for block in blocks]
        means = [block[:size].mean(0) for block in normed]
        memory = means if config.memory == "mean" else carried
        attended = [
            block + reference_attention(layer.attention, config, normed[k], memory[:k], normed, k)
            for k, block in enumerate(blocks)
        ]
        carried = [
            reference_attention(layer.attention, config, mean[None], [], normed, k)[0]
            for k, mean in enumerate(means)
        ]
        if layer.convolution:
            gated = [F.glu(layer.convolution.gate(layer.convolution_norm(block))) for block in attended]
            attended = [
                block + reference_convolution(layer.convolution, size, gated, k)
                for k, block in enumerate(attended)
            ]
        blocks = [block + layer.feed_forward(layer.feed_forward_norm(block)) for block in attended]
    return head(encoder.emformer.norm(torch.cat([block[:size] for block in blocks])))


def reference_attention(attention, config, queries, memory, blocks, k):
    """What queries find in the memory, in what is left of block k, and in it."""
    size = config.chunk_frames
    before = [frame for block in blocks[:k] for frame in block[:size]]
    before = before[max(0, len(before) - config.left_context_frames) :]
    remembered = memory[max(0, len(memory) - config.memory_size) :]
    seen = torch.stack([*remembered, *before, *blocks[k]])
    query = attention.project(queries).chunk(3, dim=-1)[0]
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
        torch.testing.assert_close(logits_alone(system, features), reference(system, normalised).detach())


@settings(max_examples=40, deadline=None)
@given(ANY_SIZES, st.lists(st.integers(7, 90), min_size=1, max_size=4))
def test_batches_of_any_sizes_are_what_the_reference_says(sizes, lengths):
    """Utterances of unequal lengths, each its own; padding is NaN."""
    system, source = toy_online(**sizes), toy_batch(lengths, [1] * len(lengths)).source
    with torch.no_grad():
        logits = system.encode(source).logits()
        for n, length in enumerate(lengths):
            normalised = system.normalisation(source.values[n : n + 1, :length], torch.tensor([length]))[0]
            torch.testing.assert_close(one_of(logits, n).values[0], reference(system, normalised))


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_alone_as_in_a_batch(kind):
    """Outputs, lengths, and the gradients of features and parameters; padding is NaN."""
    system, batch = toy_online(**kind), toy_batch()
    features, lengths = batch.source.values.clone().requires_grad_(), batch.source.lengths
    together = system.encode(Padded(features, lengths))
    weight = torch.randn(together.logits().values.shape[1:], dtype=torch.double)

    def objective(encoded):
        logits, frames = encoded.logits()
        return sum((logits[n, :t] * weight[:t]).sum() for n, t in enumerate(frames))

    parameters = list(system.parameters())
    feature_gradient, *expected = torch.autograd.grad(objective(together), [features, *parameters])
    total = [torch.zeros_like(parameter) for parameter in parameters]
    for n in range(3):
        single = alone(batch, n).source
        single_features = single.values.clone().requires_grad_()
        own = system.encode(Padded(single_features, single.lengths))
        assert int(own.final.lengths) == int(together.final.lengths[n])
        torch.testing.assert_close(one_of(together.final, n).values, own.final.values)
        torch.testing.assert_close(one_of(together.logits(), n).values, own.logits().values)
        gradient, *parts = torch.autograd.grad(objective(own), [single_features, *parameters])
        torch.testing.assert_close(feature_gradient[n, : single.lengths], gradient[0])
        assert feature_gradient[n, single.lengths :].eq(0).all()
        total = [before + part for before, part in zip(total, parts, strict=True)]
    torch.testing.assert_close(total, expected)


def test_chunks_of_padding_attend_to_something():
    """Of a chunk's five frames, those of an utterance, or the first."""
    emformer = toy_online(left_context_frames=0, memory_size=0).encoder.emformer
    blocks = torch.zeros(2, 4, 5, 16)
    mask = emformer.context(blocks, torch.tensor([12, 2]), emformer.start(2)).mask.view(2, 4, 5)
    assert mask.amax(-1).eq(0).all()
    assert mask[0, :3].eq(0).all()
    assert mask[1].eq(0).sum(-1).tolist() == [2, 1, 1, 1]


def test_summaries_do_not_see_the_memory():
    """The last query of each block is the summary's; the first keys are the memory's. Two chunks were before
    those of the first utterance, the second one ends in its first block."""
    emformer = toy_online(memory="summary", left_context_frames=1, memory_size=3).encoder.emformer
    state = emformer.start(2)._replace(chunks=torch.tensor([2, 0]))
    mask = emformer.context(torch.zeros(2, 2, 5, 16), torch.tensor([6, 2]), state).mask.view(2, 2, 6, 9)
    seen = mask.eq(0).long()
    assert mask[seen == 0].eq(-torch.inf).all()
    for frame in range(5):
        assert seen[0, 0, frame].tolist() == [0, 1, 1, 1, 1, 1, 1, 1, 1]
        assert seen[0, 1, frame].tolist() == [1, 1, 1, 1, 1, 1, 1, 0, 0]
        assert seen[1, 0, frame].tolist() == [0, 0, 0, 0, 1, 1, 0, 0, 0]
        assert seen[1, 1, frame].tolist() == [0, 0, 1, 1, 1, 0, 0, 0, 0]
    assert seen[:, :, 5, :3].eq(0).all()
    assert seen[:, :, 5, 3:].equal(seen[:, :, 0, 3:])


def test_kinds_of_memory_have_the_same_parameters():
    """And another output, but where there is no memory: in the first chunk, or at all."""
    mean, summary = (toy_online(memory=memory) for memory in ("mean", "summary"))
    summary.load_state_dict(mean.state_dict())
    assert count_parameters(summary) == count_parameters(mean)
    features, size = random_features(80), mean.encoder.chunk_frames
    first, second = (logits_alone(system, features) for system in (mean, summary))
    torch.testing.assert_close(first[:size], second[:size])
    assert (first[size:] - second[size:]).abs().amax(-1).min() > 1e-6
    without = [toy_online(memory=memory, memory_size=0) for memory in ("mean", "summary")]
    assert logits_alone(without[0], features).equal(logits_alone(without[1], features))


def test_there_is_one_tap():
    source = toy_batch().source
    encoded = toy_online().encode(source)
    assert list(encoded.taps) == ["final"] == list(EmformerConfig.taps)
    assert encoded.final.lengths.tolist() == subsampled_lengths(source.lengths, 4).tolist()
    assert encoded.final.values.shape == (3, int(encoded.final.lengths.max()), 16)


def seen_frames(system, frames, chunk):
    """The first and last feature frame that a chunk's logits depend on."""
    features = random_features(frames)[None].requires_grad_()
    size = system.encoder.chunk_frames
    encoded = system.encode(Padded(features, torch.tensor([frames])))
    logits = encoded.logits().values[0, chunk * size : (chunk + 1) * size]
    (gradient,) = torch.autograd.grad((logits * torch.randn_like(logits)).sum(), features)
    seen = gradient[0].abs().sum(-1).nonzero()[:, 0]
    return int(seen[0]), int(seen[-1])


@pytest.mark.parametrize("right", [0, 1, 3])
@pytest.mark.parametrize("kernel_size", [None, 15])
@MEMORIES
def test_no_chunk_looks_beyond_its_right_context(right, kernel_size, memory):
    """However many layers there are; and it does look so far."""
    system = toy_online(right_context_frames=right, kernel_size=kernel_size, layers=4, memory=memory)
    hop, window = system.encoder.hop_frames, system.encoder.window_frames
    for chunk in range(4):
        assert seen_frames(system, 120, chunk)[1] == chunk * hop + window - 1


@pytest.mark.parametrize(
    ("left", "memory", "seen"),
    [(0, 0, 15), (2, 0, 13), (2, 1, 12), (4, 1, 11), (4, 3, 6), (1, 5, 0), (20, 0, 0)],
)
def test_a_layer_looks_back_at_left_context_and_memory(left, memory, seen):
    """The sixth chunk of three frames each begins with frame 15."""
    sizes = {"layers": 1, "kernel_size": None, "left_context_frames": left, "memory_size": memory}
    for kind in ("mean", "summary"):
        assert seen_frames(toy_online(**sizes, memory=kind, subsampling=1), 40, 5)[0] == seen


@pytest.mark.parametrize(
    ("layers", "mean", "summary"), [(1, 1, 1), (2, 2, 1), (3, 3, 2), (4, 4, 2), (5, 5, 3)]
)
def test_how_far_layers_look_back_by_a_memory_of_one_chunk(layers, mean, summary):
    """A mean is of what the layer below gives, which has looked back further. A summary is made by the
    layer below, of what goes into that one; and it does not see the memory."""
    sizes = {"kernel_size": None, "left_context_frames": 0, "right_context_frames": 0, "memory_size": 1}
    for memory, chunks in (("mean", mean), ("summary", summary)):
        system = toy_online(**sizes, layers=layers, memory=memory, subsampling=1)
        assert seen_frames(system, 40, 5)[0] == 15 - 3 * chunks


@MEMORIES
def test_later_features_change_nothing(memory):
    system = toy_online(layers=3, memory=memory)
    features = random_features(100)
    before = logits_alone(system, features)
    chunk, hop, window = system.encoder.chunk_frames, system.encoder.hop_frames, system.encoder.window_frames
    for k in (0, 2, 4):
        changed = features.clone()
        changed[k * hop + window :] *= -5
        after = logits_alone(system, changed)
        torch.testing.assert_close(after[: (k + 1) * chunk], before[: (k + 1) * chunk])
        assert not torch.allclose(after[(k + 1) * chunk :], before[(k + 1) * chunk :])


def test_frames_know_their_place_in_the_chunk():
    """In a constant input there is nothing else to know: frames of a chunk differ, chunks do not."""
    system = toy_online(left_context_frames=0, memory_size=0, kernel_size=None, subsampling=1)
    logits = logits_alone(system, torch.ones(12, FEATURES, dtype=torch.double)).view(4, 3, CLASSES)
    torch.testing.assert_close(logits[1], logits[0])
    assert (logits[0, 1:] - logits[0, :-1]).abs().amax(-1).min() > 1e-3


def test_dropout_is_drawn_for_training_alone():
    batch = toy_batch()
    system = toy_online().train()
    first, second = (system.encode(batch.source).logits().values for _ in range(2))
    assert not torch.allclose(first[0], second[0])
    system.eval()
    first, second = (system.encode(batch.source).logits().values for _ in range(2))
    assert torch.equal(first[0], second[0])


TOKENIZER = Tokenizer.train(["abc"], TokenConfig())  # five classes with blank and unknown


@MEMORIES
def test_saved_and_loaded(tmp_path, memory):
    system = toy_online(attention=True, memory=memory).float()
    save_model(tmp_path, system, {TEXT: TOKENIZER})
    loaded = load_model(tmp_path).system
    assert loaded.config == system.config
    assert loaded.config.streaming
    features = random_features(70, dtype=torch.float)
    assert torch.equal(logits_alone(loaded, features), logits_alone(system, features))
    streamed = push_all(EncoderStream(loaded), features, [20, 20])[1]
    torch.testing.assert_close(streamed, logits_alone(system, features), atol=1e-5, rtol=1e-5)


def test_an_encoder_that_does_not_say_its_kind_is_a_conformer(tmp_path):
    """The usual one need not be named."""
    system = toy_system().float()
    save_model(tmp_path, system, {TEXT: TOKENIZER})
    content = json.loads((tmp_path / "model.json").read_text())
    assert content["system"]["encoder"].pop("kind") == "conformer"
    (tmp_path / "model.json").write_text(json.dumps(content))
    loaded = load_model(tmp_path).system
    assert loaded.config == system.config
    assert not loaded.config.streaming


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"dim": 10}, "dim is 10, expected an even number that 4 heads divide"),
        ({"kernel_size": 4}, "kernel_size is 4, expected an odd number"),
        ({"kernel_size": 0}, "kernel_size"),
        ({"chunk_frames": 0}, "chunk_frames"),
        ({"right_context_frames": -1}, "right_context_frames"),
        ({"memory_size": -1}, "memory_size"),
        ({"memory": "sum"}, "memory"),
        ({"chunk_frames": 10_001}, "chunk_frames"),
        ({"left_context_frames": 10_001}, "left_context_frames"),
        ({"right_context_frames": 10_001}, "right_context_frames"),
        ({"memory_size": 10_001}, "memory_size"),
        ({"first_layers": 6}, "first_layers"),
        ({"kind": "conformer"}, "kind"),
    ],
)
def test_impossible_configurations(values, message):
    with pytest.raises(ValueError, match=message):
        EmformerConfig(**values)


def test_impossible_systems():
    with pytest.raises(ValueError, match="an encoder of kind emformer hears no utterance as a whole"):
        SystemConfig(encoder=EmformerConfig(), normalisation="utterance")
    with pytest.raises(ValueError, match="chunk_frames"):
        SystemConfig.model_validate({"encoder": {"chunk_frames": 3}})
    with pytest.raises(ValueError, match="there is no tap 'middle'; the encoder has final"):
        SystemConfig(encoder=EmformerConfig(), heads={TEXT: {"on": "middle"}})


def test_what_an_online_system_refuses():
    system, source = toy_online(), toy_batch().source
    with pytest.raises(ValueError, match="an encoder of kind emformer cannot be trimmed"):
        system.encode(source, TrimConfig())
    with pytest.raises(ValueError, match="utterance 1 has 6 frames, expected 7 or more"):
        system.encode(Padded(source.values, torch.tensor([20, 6, 20])))
    with pytest.raises(ValueError, match="an encoder of kind emformer has no attention maps of whole"):
        system.encoder_attention(one_of(source, 0))
