"""Small systems and batches for tests, in double precision where results are compared."""

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from brctc.data import Batch, Padded, pad
from brctc.models import (
    AttentionConfig,
    ConformerConfig,
    EmformerConfig,
    EncoderStream,
    System,
    SystemConfig,
    TransducerConfig,
    TrimConfig,
)

FEATURES, CLASSES = 11, 5
TEXT = "transcript"


def make_batch(source: Padded, targets: Padded) -> Batch:
    """Utterances whose texts nobody reads."""
    ids = [f"u{n}" for n in range(len(source.lengths))]
    return Batch(ids, source, {TEXT: [""] * len(ids)}, {TEXT: targets})


def one_of(sequences: Padded, n: int) -> Padded:
    """One sequence of a batch, without padding."""
    length = int(sequences.lengths[n])
    return Padded(sequences.values[n : n + 1, :length], sequences.lengths[n : n + 1])


def alone(batch: Batch, n: int) -> Batch:
    """One utterance of a batch, without padding."""
    return make_batch(one_of(batch.source, n), one_of(batch.targets[TEXT], n))


def toy_batch(lengths=(63, 40, 29), target_lengths=(4, 5, 2), dtype=torch.double, padding=torch.nan) -> Batch:
    """Random features; what is behind an utterance's end must not be seen."""
    generator = torch.Generator().manual_seed(1)
    features = [torch.randn(t, FEATURES, generator=generator, dtype=dtype) for t in lengths]
    labels = [torch.randint(1, CLASSES, (u,), generator=generator) for u in target_lengths]
    values = pad_sequence(features, batch_first=True, padding_value=padding)
    return make_batch(Padded(values, torch.tensor(lengths)), pad(labels))


def toy_config(attention=False, transducer=False, normalisation="global", **encoder) -> SystemConfig:
    sizes = {"dim": 16, "heads": 2, "feed_forward_dim": 24, "kernel_size": 7, "subsampling_channels": 3}
    decoders = {}
    if attention:
        decoders["attention"] = AttentionConfig(layers=2, dim=12, heads=2, feed_forward_dim=20)
    if transducer:
        decoders["transducer"] = TransducerConfig(prediction_dim=10, prediction_layers=2, joint_dim=14)
    return SystemConfig(
        encoder=ConformerConfig(**{**sizes, "first_layers": 2, "second_layers": 1, **encoder}),
        decoders=decoders,
        normalisation=normalisation,
    )


def toy_online_config(attention=False, **encoder) -> SystemConfig:
    sizes = {"dim": 16, "heads": 2, "feed_forward_dim": 24, "kernel_size": 7, "subsampling_channels": 3}
    contexts = {"chunk_frames": 3, "left_context_frames": 4, "right_context_frames": 2, "memory_size": 2}
    emformer = EmformerConfig(**{**sizes, **contexts, "layers": 2, **encoder})
    return toy_config(attention).model_copy(update={"encoder": emformer})


def ready_to_compare(system: System) -> System:
    """In double precision, without dropout, and with no weight close to zero, as residual branches are at
    first."""
    system.double().eval()
    if system.config.normalisation == "global":
        system.set_statistics(0.3 * torch.randn(system.input_size), 0.5 + torch.rand(system.input_size))
    with torch.no_grad():
        for parameter in system.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return system


def toy_system(config: SystemConfig | None = None, seed=0, **options) -> System:
    torch.manual_seed(seed)
    return ready_to_compare(System(config or toy_config(**options), FEATURES, {TEXT: CLASSES}))


def small_system(config: SystemConfig, seed=0) -> System:
    """As training begins: in single precision, with small residual branches."""
    torch.manual_seed(seed)
    return System(config, FEATURES, {TEXT: CLASSES})


TRIM = TrimConfig(threshold=0.3, margin=1)


def finish_early(system: System, batch: Batch) -> None:
    """Fits the CTC output so that most frames of the second part of each utterance are blanks: TRIM trims."""
    with torch.no_grad():
        hidden, lengths = system.encode(batch.source).taps["middle"]
        frames = torch.cat([hidden[n, :length] for n, length in enumerate(lengths)])
        late = [torch.arange(int(length)) >= length * (0.6 - 0.1 * n) for n, length in enumerate(lengths)]
        wanted = torch.cat(late).to(frames.dtype)[:, None] * 10 - 5
        fit = torch.linalg.lstsq(torch.cat([frames, torch.ones_like(frames[:, :1])], 1), wanted).solution
        head = system.heads[TEXT]
        head.weight.mul_(0.1)
        head.bias.zero_()
        head.weight[0] = fit[:-1, 0]
        head.bias[0] = fit[-1, 0]


def learnable_batch(utterances=6, seed=0) -> Batch:
    """Each label is a pattern of its own over 12 frames, somewhere in quiet noise."""
    generator = torch.Generator().manual_seed(seed)
    patterns = torch.randn(CLASSES, 12, FEATURES, generator=generator)
    features, targets = [], []
    for n in range(utterances):
        labels = torch.randint(1, CLASSES, (2 + n % 3,), generator=generator)
        gaps = [torch.zeros(4 + (n + u) % 5, FEATURES) for u in range(len(labels) + 1)]
        parts = [part for u, label in enumerate(labels) for part in (gaps[u], patterns[label])]
        line = torch.cat([*parts, gaps[-1]])
        features.append(line + 0.1 * torch.randn(line.shape, generator=generator))
        targets.append(labels)
    return make_batch(pad(features), pad(targets))


def toy_online(attention=False, **encoder) -> System:
    return toy_system(toy_online_config(attention, **encoder))


def random_features(frames, seed=0, dtype=torch.double) -> Tensor:
    return torch.randn(frames, FEATURES, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def encode_alone(system, features):
    with torch.no_grad():
        return system.encode(pad([features]))


def logits_alone(system, features) -> Tensor:
    """(T, C): the CTC output of one utterance."""
    with torch.no_grad():
        return encode_alone(system, features).logits().values[0]


KINDS = [
    {},
    {"kernel_size": None, "memory_size": 0},
    {"left_context_frames": 0, "kernel_size": 9},
    {"chunk_frames": 4, "left_context_frames": 2, "right_context_frames": 0, "memory_size": 3},
    {"chunk_frames": 1, "left_context_frames": 3, "right_context_frames": 1, "memory_size": 5},
    {"chunk_frames": 2, "left_context_frames": 0, "right_context_frames": 3, "memory_size": 0, "layers": 3},
    {"subsampling": 1, "memory_size": 1},
    {"subsampling": 2, "left_context_frames": 7},
    {"memory": "summary"},
    {"memory": "summary", "memory_size": 0},
    {"memory": "summary", "kernel_size": None, "left_context_frames": 0, "memory_size": 4, "layers": 3},
    {"memory": "summary", "chunk_frames": 4, "right_context_frames": 0, "memory_size": 1},
    {"memory": "summary", "chunk_frames": 1, "right_context_frames": 3, "memory_size": 5, "subsampling": 1},
]
MEMORIES = pytest.mark.parametrize("memory", ["mean", "summary"])
ANY_SIZES = st.fixed_dictionaries(
    {
        "memory": st.sampled_from(["mean", "summary"]),
        "memory_size": st.integers(0, 6),
        "chunk_frames": st.integers(1, 6),
        "left_context_frames": st.integers(0, 9),
        "right_context_frames": st.integers(0, 7),
        "kernel_size": st.sampled_from([None, 3, 7]),
        "layers": st.integers(1, 4),
        "subsampling": st.sampled_from([1, 4]),
    }
)


def push_all(stream: EncoderStream, features, portions):
    """Reads after every portion; what is left behind the last one comes at once."""
    read, first = [], 0
    for size in portions:
        stream.push(features[first : first + size])
        first += size
        read.append(stream.read())
    stream.push(features[first:])
    stream.finish()
    read.append(stream.read())
    return torch.cat([part.hidden for part in read]), torch.cat([part.logits for part in read])
