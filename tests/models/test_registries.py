"""Kinds of encoders and decoders: found by name, refused with a hint, and added from outside."""

from typing import ClassVar, Literal

import pytest
import torch
from torch import nn

from brctc.config import Registry, describe_problems
from brctc.data import Padded, TokenConfig, Tokenizer, pad
from brctc.models import (
    DECODERS,
    ENCODERS,
    FINAL,
    AttentionConfig,
    ConformerConfig,
    Decoder,
    DecoderConfig,
    EmformerConfig,
    Encoder,
    EncoderConfig,
    EncoderStream,
    LegoNNConfig,
    StreamingEncoder,
    System,
    SystemConfig,
    TransducerConfig,
    load_model,
    save_model,
)
from tests.models.toys import TEXT, push_all, random_features, toy_batch

TOKENIZER = Tokenizer.train(["abc"], TokenConfig())  # five classes with blank and unknown


@pytest.fixture(autouse=True)
def registries_as_before(monkeypatch):
    """What a test registers is gone behind it."""
    for registry in (ENCODERS, DECODERS):
        monkeypatch.setattr(registry, "_kinds", dict(registry._kinds))


def test_kinds_that_are_built_in():
    assert {name: ENCODERS[name] for name in ENCODERS} == {
        "conformer": ConformerConfig,
        "emformer": EmformerConfig,
        "legonn": LegoNNConfig,
    }
    assert {name: DECODERS[name] for name in DECODERS} == {
        "attention": AttentionConfig,
        "transducer": TransducerConfig,
    }
    assert "emformer" in ENCODERS
    assert "attention" not in ENCODERS


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (
            {"encoder": {"kind": "conformr"}},
            "model: encoder.kind: there is no encoder 'conformr': did you mean 'conformer'? "
            "There are: conformer, emformer, legonn",
        ),
        (
            {"encoder": {"kind": "Emformer"}},
            "model: encoder.kind: there is no encoder 'Emformer': did you mean 'emformer'? "
            "There are: conformer, emformer, legonn",
        ),
        (
            {"decoders": {"d": {"kind": "transducr"}}},
            "model: decoders.d.kind: there is no decoder 'transducr': did you mean 'transducer'? "
            "There are: attention, transducer",
        ),
        (
            {"encoder": {"kind": "xyz"}},
            "model: encoder.kind: there is no encoder 'xyz'; There are: conformer, emformer, legonn",
        ),
        (
            {"encoder": {"kind": ["conformer"]}},
            "model: encoder.kind: there is no encoder ['conformer']: did you mean 'conformer'? "
            "There are: conformer, emformer, legonn",
        ),
        ({"decoders": {"d": {}}}, "model: decoders.d.kind: required; there are: attention, transducer"),
    ],
)
def test_unknown_kinds_are_refused(content, problem):
    with pytest.raises(ValueError, match=r"there is no|required") as found:
        SystemConfig.model_validate(content)
    assert describe_problems(found.value, SystemConfig, "model") == problem


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="there is no encoder 'conform': did you mean 'conformer'"):
        ENCODERS["conform"]
    with pytest.raises(ValueError, match="there is no thing 'a'; There are: none"):
        Registry("thing")["a"]


def test_an_encoder_that_says_no_kind_is_the_usual_one():
    config = SystemConfig.model_validate({"encoder": {"first_layers": 3}})
    assert config.encoder == ConformerConfig(first_layers=3)
    assert SystemConfig().encoder == ConformerConfig()


def test_keys_are_those_of_the_kind():
    with pytest.raises(ValueError, match="chunk_frames") as found:
        SystemConfig.model_validate({"encoder": {"kind": "conformer", "chunk_frames": 3}})
    assert describe_problems(found.value, SystemConfig, "m").startswith(
        "m: encoder.chunk_frames: unknown key"
    )
    with pytest.raises(ValueError, match="first_layer") as found:
        SystemConfig.model_validate({"encoder": {"kind": "conformer", "first_layer": 3}})
    problem = "m: encoder.first_layer: unknown key; did you mean encoder.first_layers?"
    assert describe_problems(found.value, SystemConfig, "m") == problem


def test_two_classes_of_one_name_are_refused():
    with pytest.raises(ValueError, match=r"encoder 'conformer' already: .*conformer_encoder.ConformerConfig"):

        @ENCODERS.register
        class Other(EncoderConfig):
            kind: Literal["conformer"] = "conformer"

    assert ENCODERS["conformer"] is ConformerConfig
    assert ENCODERS.register(ConformerConfig) is ConformerConfig  # the same one again, as when it is reloaded
    with pytest.raises(TypeError, match="Nameless needs a name"):

        @DECODERS.register
        class Nameless(DecoderConfig):
            kind: str


# encoders that this package has never heard of


class AverageConfig(EncoderConfig):
    """Taps of different sizes: every frame alone, and beside the mean of those so far."""

    taps: ClassVar[tuple[str, ...]] = ("frames", FINAL)
    streaming: ClassVar[bool] = True
    kind: Literal["average"] = "average"
    dim: int = 6

    def tap_dim(self, tap):
        return 2 * self.dim if tap == FINAL else self.dim

    @property
    def window_frames(self):
        return 4

    hop_frames = window_frames

    def build(self, input_size):
        return Average(self, input_size)


class Sums:
    """The state: a sum and a count of each stream."""

    def __init__(self, total, count):
        self.total, self.count = total, count

    def select(self, streams):
        return Sums(self.total[streams], self.count[streams])


class Average(StreamingEncoder):
    def __init__(self, config, input_size):
        super().__init__()
        self.linear = nn.Linear(input_size, config.dim)
        self.chunk_frames = self.hop_frames = self.window_frames = 4
        self.right_context_frames = 0

    def forward(self, source, trim=None):
        frames = self.linear(source.values)
        total, count = frames.cumsum(1), torch.arange(1, frames.shape[1] + 1)[:, None]
        final = torch.cat([frames, total / count], -1)
        return {"frames": Padded(frames, source.lengths), FINAL: Padded(final, source.lengths)}

    def initial_state(self, streams):
        return Sums(self.linear.weight.new_zeros(streams, len(self.linear.bias)), torch.zeros(streams))

    def join_states(self, states):
        return Sums(torch.cat([s.total for s in states]), torch.cat([s.count for s in states]))

    def step(self, features, lengths, state):
        frames = self.linear(features)
        total = state.total[:, None] + frames.cumsum(1)
        count = state.count[:, None] + torch.arange(1, 5)
        hidden = torch.cat([frames, total / count[:, :, None]], -1)
        return Padded(hidden, lengths), Sums(total[:, -1], count[:, -1])


class EmbeddingConfig(EncoderConfig):
    """A text is its source."""

    input: ClassVar[Literal["frames", "tokens"]] = "tokens"

    kind: Literal["embedding"] = "embedding"
    dim: int = 6

    def build(self, input_size):
        return Embedded(input_size, self.dim)


class Embedded(Encoder):
    def __init__(self, input_size, dim):
        super().__init__()
        self.table = nn.Embedding(input_size, dim)

    def forward(self, source, trim=None):
        return {FINAL: Padded(self.table(source.values), source.lengths)}


class CountConfig(DecoderConfig):
    kind: Literal["count"] = "count"

    def build(self, encoder_dim, vocab_size):
        return Count(encoder_dim, vocab_size)


class Count(Decoder):
    def __init__(self, encoder_dim, vocab_size):
        super().__init__()
        self.out = nn.Linear(encoder_dim, vocab_size)

    def loss(self, memory, targets):
        return self.out(memory.values).mean() * targets.lengths.sum()


def averaging_system() -> System:
    ENCODERS.register(AverageConfig)
    DECODERS.register(CountConfig)
    content = {
        "encoder": {"kind": "average", "dim": 3},
        "heads": {TEXT: {}, "other": {"on": "frames"}},
        "decoders": {"n": {"kind": "count"}, "m": {"kind": "count", "on": "frames", "text": "other"}},
    }
    torch.manual_seed(0)
    system = System(SystemConfig.model_validate(content), 11, {TEXT: 5, "other": 7})
    system.set_statistics(torch.randn(11), 1 + torch.rand(11))
    return system.eval()


@torch.no_grad()
def test_an_encoder_from_outside():
    """It builds, and encodes; heads and decoders are as large as the taps that they are on."""
    system = averaging_system()
    source = toy_batch(dtype=torch.float).source
    encoded = system.encode(source)
    frames = system.encoder.linear((source.values - system.normalisation.mean) / system.normalisation.std)
    for n, length in enumerate(source.lengths.tolist()):
        torch.testing.assert_close(encoded.taps["frames"].values[n, :length], frames[n, :length])
        means = torch.stack([frames[n, :t].mean(0) for t in range(1, length + 1)])
        torch.testing.assert_close(encoded.final.values[n, :length, 3:], means)
    assert encoded.logits().values.shape == (3, 63, 5)
    assert encoded.logits("frames", "other").values.shape == (3, 63, 7)
    assert [system.decoders[name].out.in_features for name in ("n", "m")] == [6, 3]
    assert [system.decoders[name].out.out_features for name in ("n", "m")] == [5, 7]
    assert system.decoder("count") is system.decoders["n"]


def test_streams_through_an_encoder_from_outside():
    system, features = averaging_system(), random_features(31, dtype=torch.float)
    with torch.no_grad():
        expected = system.encode(pad([features]))
        logits = expected.logits().values[0]
    for portions in ([], [1] * 31, [3, 9, 0, 11]):
        hidden, streamed = push_all(EncoderStream(system), features, portions)
        torch.testing.assert_close(hidden, expected.final.values[0])
        torch.testing.assert_close(streamed, logits)
    nothing = EncoderStream(system).read()
    assert (nothing.hidden.shape, nothing.logits.shape) == ((0, 6), (0, 5))


def test_a_text_as_source():
    ENCODERS.register(EmbeddingConfig)
    config = SystemConfig.model_validate({"encoder": {"kind": "embedding"}, "normalisation": "none"})
    system = System(config, 9, {TEXT: 5})
    source = pad([torch.tensor([8, 1, 1]), torch.tensor([3])])
    encoded = system.encode(source)
    torch.testing.assert_close(encoded.final.values, system.encoder.table.weight[source.values])
    assert encoded.logits().lengths.tolist() == [3, 1]
    with pytest.raises(ValueError, match="an encoder of kind embedding has no attention maps"):
        system.encoder_attention(pad([torch.tensor([8])]))
    with pytest.raises(ValueError, match=r"streams need a streaming encoder .* the system has a embedding"):
        system.initial_state(1)


def test_a_model_with_an_encoder_from_outside(tmp_path):
    """It is saved with all its keys, and loaded wherever its encoder is registered."""
    ENCODERS.register(AverageConfig)
    system = System(SystemConfig(encoder=AverageConfig(dim=4)), 11, {TEXT: 5}).eval()
    save_model(tmp_path, system, {TEXT: TOKENIZER})
    loaded = load_model(tmp_path).system
    assert loaded.config == system.config
    assert loaded.config.encoder.dim == 4
    source = pad([random_features(20, dtype=torch.float)])
    assert torch.equal(loaded.encode(source).logits().values, system.encode(source).logits().values)
    del ENCODERS._kinds["average"]
    with pytest.raises(ValueError, match=r"model\.json .*encoder\.kind: there is no encoder 'average'"):
        load_model(tmp_path)
