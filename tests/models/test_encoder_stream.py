"""Streams against whole utterances: the same frames, as soon as can be, of a state that stays small."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from brctc.data import pad
from brctc.models import EncoderStream, State, read_together
from brctc.models.subsampling import subsampled_lengths
from tests.models.toys import (
    ANY_SIZES,
    CLASSES,
    FEATURES,
    KINDS,
    MEMORIES,
    encode_alone,
    logits_alone,
    one_of,
    push_all,
    random_features,
    toy_config,
    toy_online,
    toy_system,
)

CHUNKS = [(1, 0), (1, 1), (2, 0), (2, 1), (2, 2), (3, 2), (4, 4), (8, 0), (8, 4), (8, 8)]


@pytest.mark.parametrize("kernel_size", [None, 7])
@pytest.mark.parametrize(("chunk", "right"), CHUNKS)
@MEMORIES
def test_streamed_as_whole(chunk, right, kernel_size, memory):
    """To 1e-5 in single precision, for lengths around all borders, single frames and odd portions."""
    sizes = {"chunk_frames": chunk, "right_context_frames": right, "kernel_size": kernel_size}
    system = toy_online(**sizes, memory=memory).float()
    hop, window = system.encoder.hop_frames, system.encoder.window_frames
    assert (hop, window) == (4 * chunk, 4 * (chunk + right) + 3)
    for length in (7, max(7, window - 1), window, window + 1, 3 * hop + 3, 3 * hop + 7, 101):
        features = random_features(length, dtype=torch.float)
        whole, whole_logits = encode_alone(system, features).final, logits_alone(system, features)
        for portions in ([], [1] * length, [5, 0, 17, 2, 29]):
            hidden, logits = push_all(EncoderStream(system), features, portions)
            assert len(logits) == int(whole.lengths)
            torch.testing.assert_close(hidden, whole.values[0], atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(logits.softmax(-1), whole_logits.softmax(-1), atol=1e-5, rtol=0)


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
    streams = [EncoderStream(system) for _ in portions]
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
            torch.testing.assert_close(logits, logits_alone(system, part))


@settings(max_examples=40, deadline=None)
@given(ANY_SIZES, st.lists(st.integers(0, 120), min_size=1, max_size=4))
def test_streams_of_any_sizes_are_a_batch(sizes, lengths):
    """Streams of unequal lengths, step by step together, against whole utterances in one batch."""
    system = toy_online(**sizes)
    streams = [EncoderStream(system) for _ in lengths]
    features = [random_features(length, seed) for seed, length in enumerate(lengths)]
    for stream, part in zip(streams, features, strict=True):
        stream.push(part)
        stream.finish()
    found = [read.logits for read in read_together(streams)]
    long_enough = [n for n, length in enumerate(lengths) if system.config.encoder.frames_out(length) > 0]
    if long_enough:
        with torch.no_grad():
            logits = system.encode(pad([features[n] for n in long_enough])).logits()
        for i, n in enumerate(long_enough):
            torch.testing.assert_close(found[n], one_of(logits, i).values[0])
    assert all(len(found[n]) == 0 for n in range(len(lengths)) if n not in long_enough)


def test_frames_come_as_soon_as_their_right_context():
    system = toy_online()
    hop, window = system.encoder.hop_frames, system.encoder.window_frames
    stream, features = EncoderStream(system), random_features(60)
    for frame in range(60):
        assert len(stream.read().logits) == 0
        stream.push(features[frame : frame + 1])
        if frame + 1 >= window and (frame + 1 - window) % hop == 0:
            assert stream.ready
            assert len(stream.read().logits) == system.encoder.chunk_frames


def windows_of(system, streams, seed=0):
    """Features of so many streams for one step, and how many each has: all."""
    window = system.encoder.window_frames
    features = random_features(streams * window, seed).view(streams, window, FEATURES)
    return features, torch.full((streams,), window)


def whole_step(system, features, state):
    return system.step(features, torch.full((len(features),), features.shape[1]), state)


@torch.no_grad()
@MEMORIES
def test_the_state_stays_as_small_as_it_is(memory):
    system = toy_online(memory=memory)
    encoder = system.encoder
    state = system.initial_state(2)
    sizes = [part.shape for part in state]
    stream = EncoderStream(system)
    for step in range(40):
        (hidden, _), state = system.step(*windows_of(system, 2, step), state)
        stream.push(random_features(17))
        stream.read()
        assert [part.shape for part in state] == sizes
        for part in (*state, *stream.state, *stream._portions):
            # nor does a small view hold on to something large
            assert part.untyped_storage().nbytes() <= part.numel() * part.element_size()
        assert sum(map(len, stream._portions)) < encoder.window_frames
        assert state.chunks.tolist() == [step + 1] * 2
        assert hidden.lengths.tolist() == [encoder.chunk_frames] * 2
    assert stream.state.chunks.tolist() == [(40 * 17 - encoder.window_frames) // encoder.hop_frames + 1]


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_step_is_pure(kind):
    """The same input gives the same output, bit by bit, and nothing that was passed has changed."""
    system = toy_online(**kind)
    state = system.initial_state(2)
    for seed in range(4):  # states that hold something
        features, lengths = windows_of(system, 2, seed)
        before = [part.clone() for part in (features, lengths, *state, *system.state_dict().values())]
        (hidden, logits), behind = system.step(features, lengths, state)
        (again, logits_again), behind_again = system.step(features, lengths, state)
        after = [features, lengths, *state, *system.state_dict().values()]
        assert all(map(torch.equal, before, after))
        found, found_again = (*hidden, logits, *behind), (*again, logits_again, *behind_again)
        assert all(map(torch.equal, found, found_again))
        # nor do the outputs share memory with the input: whoever writes into one changes no other
        given = {part.untyped_storage().data_ptr() for part in (features, *state) if part.numel()}
        assert given.isdisjoint(part.untyped_storage().data_ptr() for part in found if part.numel())
        state = behind


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_steps_take_features_as_they_were_extracted(kind):
    """Chunk by chunk through `step` alone, as a program would run that knows no Python: the same as encoding
    the whole, normalisation included, whatever lies behind the end."""
    system = toy_online(**kind)
    hop, window = system.encoder.hop_frames, system.encoder.window_frames
    mean, std = torch.linspace(-30, 30, FEATURES), torch.linspace(0.1, 20, FEATURES)
    system.set_statistics(mean, std)
    features = random_features(3 * hop + window + 5) * std + mean
    total = encode_alone(system, features).final
    state, hidden, logits = system.initial_state(1), [], []
    for first in range(0, len(features), hop):
        here = features[first : first + window]
        filled = torch.nn.functional.pad(here, (0, 0, 0, window - len(here)), value=torch.nan)
        output, state = system.step(filled[None], torch.tensor([len(here)]), state)
        frames = int(output.hidden.lengths)
        hidden.append(output.hidden.values[0, :frames])
        logits.append(output.logits[0, :frames])
    assert len(torch.cat(logits)) == int(total.lengths)
    torch.testing.assert_close(torch.cat(hidden), total.values[0])
    torch.testing.assert_close(torch.cat(logits), logits_alone(system, features))
    # the statistics are what makes it so
    system.set_statistics(torch.zeros(FEATURES), torch.ones(FEATURES))
    assert not torch.allclose(logits_alone(system, features), torch.cat(logits))


class Step(torch.nn.Module):
    def __init__(self, system):
        super().__init__()
        self.system = system

    def forward(self, features, lengths, state):
        return self.system.step(features, lengths, state)


@torch.no_grad()
@pytest.mark.slow
@pytest.mark.parametrize(("kernel_size", "memory"), [(None, "mean"), (7, "mean"), (7, "summary")])
def test_a_step_can_be_exported(kernel_size, memory):
    """One program for any number of streams; what runs elsewhere is what runs here."""
    system = toy_online(kernel_size=kernel_size, memory=memory).float()
    dynamic = {0: torch.export.Dim.DYNAMIC}
    state = system.initial_state(2)
    example = (*windows_of(system, 2), state)
    program = torch.export.export(
        Step(system),
        (example[0].float(), *example[1:]),
        dynamic_shapes=(dynamic, dynamic, State(*[dynamic] * len(state))),
    ).module()
    for streams in (2, 3, 7):
        state = expected_state = system.initial_state(streams)
        for seed in range(4):
            features, lengths = windows_of(system, streams, seed)
            if seed == 3:
                lengths[0] = 9  # this stream ends
            (hidden, logits), state = program(features.float(), lengths, state)
            expected, expected_state = system.step(features.float(), lengths, expected_state)
            assert torch.equal(hidden.lengths, expected.hidden.lengths)
            assert len(set(hidden.lengths.tolist())) == 1 + (seed == 3)
            torch.testing.assert_close(hidden.values, expected.hidden.values)
            torch.testing.assert_close(logits, expected.logits)
            torch.testing.assert_close(list(state), list(expected_state))


@torch.no_grad()
@MEMORIES
def test_states_are_selected_and_joined(memory):
    """A step of streams at different places, out of order, is each one's own step."""
    system = toy_online(memory=memory)
    features, _ = windows_of(system, 5)
    _, old = whole_step(system, features[:2], system.initial_state(2))
    _, old = whole_step(system, features[1:3], old)
    joined = system.encoder.join_states([old, system.initial_state(1)])
    assert isinstance(joined, State)
    assert joined.chunks.tolist() == [2, 2, 0]
    assert joined.select([2, 0]).chunks.tolist() == [0, 2]
    mixed, after = whole_step(system, features[2:], joined.select(torch.tensor([2, 0, 1])))
    first, _ = whole_step(system, features[2:3], system.initial_state(1))
    second, rest = whole_step(system, features[3:], old)
    torch.testing.assert_close(mixed.logits, torch.cat([first.logits, second.logits]))
    torch.testing.assert_close(mixed.hidden.values, torch.cat([first.hidden.values, second.hidden.values]))
    torch.testing.assert_close(list(after.select([1, 2])), list(rest))


def test_steps_that_do_not_fit():
    system = toy_online()
    full = torch.tensor([23, 23])
    cases = [
        ((2, 22, FEATURES), full - 1, 2, r"features have shape \(2, 22, 11\), expected \(N, 23, F\)"),
        ((2, 23, FEATURES), full, 3, "features are of 2 streams, the state of 3"),
        ((2, 23, 1), full, 2, r"features have shape \(2, 23, 1\), expected \(N, T, 11\)"),
        ((23, FEATURES), full, 2, r"features have shape \(23, 11\), expected \(N, T, 11\)"),
        ((2, 23, FEATURES), full[:1], 2, r"lengths have shape \(1,\) for 2 utterances"),
        ((2, 23, FEATURES), full + 1, 2, r"lengths\[0\] is 24, but there are 23 frames"),
    ]
    for shape, lengths, streams, message in cases:
        with pytest.raises(ValueError, match=message):
            system.step(torch.zeros(shape, dtype=torch.double), lengths, system.initial_state(streams))


def test_streams_that_do_not_fit():
    conformer = toy_system(toy_config())
    for call in (
        lambda: EncoderStream(conformer),
        lambda: conformer.initial_state(1),
        lambda: conformer.step(torch.zeros(1, 23, FEATURES), torch.tensor([23]), None),
    ):
        with pytest.raises(ValueError, match=r"need a streaming encoder .* the system has a conformer"):
            call()
    stream = EncoderStream(toy_online())
    with pytest.raises(ValueError, match=r"features have shape \(3, 7\), expected \(T, 11\)"):
        stream.push(torch.zeros(3, 7))
    with pytest.raises(ValueError, match="different systems"):
        read_together([stream, EncoderStream(toy_online())])
    assert read_together([]) == []
    stream.finish()
    hidden, logits = stream.read()
    assert (hidden.shape, logits.shape) == ((0, 16), (0, CLASSES))
    with pytest.raises(ValueError, match="the stream is finished"):
        stream.push(torch.zeros(3, FEATURES))
    stream.system.train()
    with pytest.raises(ValueError, match="in training mode"):
        stream.read()
