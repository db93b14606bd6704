"""Streams against whole utterances: the same frames, as soon as can be, of a state that stays small."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from brctc.models import State, Stream, read_together, subsampled_lengths
from tests.models.toys import (
    CLASSES,
    FEATURES,
    KINDS,
    encode_alone,
    push_all,
    random_features,
    toy_config,
    toy_online,
    toy_system,
)

CHUNKS = [(1, 0), (1, 1), (2, 0), (2, 1), (2, 2), (3, 2), (4, 4), (8, 0), (8, 4), (8, 8)]


@pytest.mark.parametrize("kernel_size", [None, 7])
@pytest.mark.parametrize(("chunk", "right"), CHUNKS)
def test_streamed_as_whole(chunk, right, kernel_size):
    """To 1e-5 in single precision, for lengths around all borders, single frames and odd portions."""
    system = toy_online(chunk_frames=chunk, right_context_frames=right, kernel_size=kernel_size).float()
    hop, window = system.encoder.hop_frames, system.encoder.window_frames
    assert (hop, window) == (4 * chunk, 4 * (chunk + right) + 3)
    for length in (7, max(7, window - 1), window, window + 1, 3 * hop + 3, 3 * hop + 7, 101):
        features = random_features(length, dtype=torch.float)
        whole = encode_alone(system, features)
        for portions in ([], [1] * length, [5, 0, 17, 2, 29]):
            hidden, logits = push_all(Stream(system), features, portions)
            assert len(logits) == int(whole.lengths)
            torch.testing.assert_close(hidden, whole.hidden[0], atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(logits.softmax(-1), whole.logits[0].softmax(-1), atol=1e-5, rtol=0)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(KINDS),
    st.lists(st.lists(st.integers(0, 40), max_size=6), min_size=1, max_size=4),
    st.data(),
)
def test_any_split_of_many_streams(kind, portions, data):
    """Streams of a batch start, wait and end at different times."""
    system = toy_online(**kind)
    features = [random_features(sum(sizes), seed) for seed, sizes in enumerate(portions)]
    streams = [Stream(system) for _ in portions]
    waiting = [
        list(part.split(sizes)) if sizes else [] for part, sizes in zip(features, portions, strict=True)
    ]
    found = [[] for _ in portions]
    while not all(stream.finished for stream in streams):
        n = data.draw(st.sampled_from([n for n, stream in enumerate(streams) if not stream.finished]))
        if waiting[n]:
            streams[n].push(waiting[n].pop(0))
        else:
            streams[n].finish()
        if data.draw(st.booleans()):
            for parts, read in zip(found, read_together(streams), strict=True):
                parts.append(read.logits)
    for parts, stream, part in zip(found, streams, features, strict=True):
        logits = torch.cat([*parts, stream.read().logits])
        expected = max(0, int(subsampled_lengths(torch.tensor(len(part)), system.config.encoder.subsampling)))
        assert logits.shape == (expected, CLASSES)
        if expected:
            torch.testing.assert_close(logits, encode_alone(system, part).logits[0])


def test_frames_come_as_soon_as_their_right_context():
    system = toy_online()
    hop, window = system.encoder.hop_frames, system.encoder.window_frames
    stream, features = Stream(system), random_features(60)
    for frame in range(60):
        assert len(stream.read().logits) == 0
        stream.push(features[frame : frame + 1])
        if frame + 1 >= window and (frame + 1 - window) % hop == 0:
            assert stream.ready
            assert len(stream.read().logits) == system.encoder.chunk_frames


@torch.no_grad()
def test_the_state_stays_as_small_as_it_is():
    system = toy_online()
    encoder = system.encoder
    state = encoder.start(2)
    sizes = [part.shape for part in state]
    stream = Stream(system)
    for step in range(40):
        chunk, state = encoder.step(torch.randn(2, encoder.window_frames, FEATURES).double(), state)
        stream.push(random_features(17))
        stream.read()
        assert [part.shape for part in state] == sizes
        for part in (*state, *stream.state, *stream._portions):
            # nor does a small view hold on to something large
            assert part.untyped_storage().nbytes() <= part.numel() * part.element_size()
        assert sum(map(len, stream._portions)) < encoder.window_frames
        assert state.chunks.tolist() == [step + 1] * 2
        assert chunk.lengths.tolist() == [encoder.chunk_frames] * 2
    assert stream.state.chunks.tolist() == [(40 * 17 - encoder.window_frames) // encoder.hop_frames + 1]


@torch.no_grad()
def test_states_are_selected_and_joined():
    """A step of streams at different places, out of order, is each one's own step."""
    system = toy_online()
    encoder = system.encoder
    features = random_features(5 * encoder.window_frames).view(5, encoder.window_frames, FEATURES)
    _, old = encoder.step(features[:2], encoder.start(2))
    _, old = encoder.step(features[1:3], old)
    joined = State.cat([old, encoder.start(1)])
    assert joined.chunks.tolist() == [2, 2, 0]
    assert joined.select([2, 0]).chunks.tolist() == [0, 2]
    mixed, after = encoder.step(features[2:], joined.select(torch.tensor([2, 0, 1])))
    first, _ = encoder.step(features[2:3], encoder.start(1))
    second, rest = encoder.step(features[3:], old)
    torch.testing.assert_close(mixed.logits, torch.cat([first.logits, second.logits]))
    torch.testing.assert_close(list(after.select([1, 2])), list(rest))


def test_steps_that_do_not_fit():
    encoder = toy_online().encoder
    with pytest.raises(ValueError, match=r"features have shape \(2, 22, 11\), expected \(N, 23, F\)"):
        encoder.step(torch.zeros(2, 22, FEATURES), encoder.start(2))
    with pytest.raises(ValueError, match="features are of 2 streams, the state of 3"):
        encoder.step(torch.zeros(2, 23, FEATURES), encoder.start(3))


def test_streams_that_do_not_fit():
    with pytest.raises(ValueError, match="a conformer, which takes no streams"):
        Stream(toy_system(toy_config()))
    stream = Stream(toy_online())
    with pytest.raises(ValueError, match=r"features have shape \(3, 7\), expected \(T, 11\)"):
        stream.push(torch.zeros(3, 7))
    with pytest.raises(ValueError, match="different systems"):
        read_together([stream, Stream(toy_online())])
    stream.finish()
    assert stream.read().logits.shape == (0, CLASSES)
    with pytest.raises(ValueError, match="the stream is finished"):
        stream.push(torch.zeros(3, FEATURES))
    stream.system.train()
    with pytest.raises(ValueError, match="in training mode"):
        stream.read()
