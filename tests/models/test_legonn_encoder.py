"""The LegoNN encoder: exact lengths, a sentence's encoding is its own, and positions that trimming keeps."""

import pytest
import torch

from brctc.data import Padded, pad
from brctc.models import LegoNNConfig, System, SystemConfig, TrimConfig, count_parameters
from brctc.models.phases import InPhases
from tests.models.toys import one_of

WORDS, CLASSES, TEXT = 9, 7, "translation"
TRIM = TrimConfig(threshold=0.5, margin=1, text=TEXT)


def legonn_system(**options) -> System:
    torch.manual_seed(0)
    sizes = {"dim": 12, "heads": 2, "feed_forward_dim": 20, "first_layers": 2, "second_layers": 1}
    config = SystemConfig.model_validate(
        {
            "encoder": {"kind": "legonn", **sizes, **options},
            "heads": {TEXT: {}},
            "normalisation": "none",
            "output": TEXT,
        }
    )
    system = System(config, WORDS, {TEXT: CLASSES}).double().eval()
    with torch.no_grad():
        system.heads[TEXT].bias[0] = 3.0  # most frames are blank
    return system


def sentences(lengths) -> Padded:
    generator = torch.Generator().manual_seed(1)
    return pad([torch.randint(WORDS, (length,), generator=generator) for length in lengths])


PHASES = pytest.mark.parametrize("phases", [1, 3])


@PHASES
@pytest.mark.parametrize("rate", [1, 2, 3, 5])
def test_up_sampled_lengths_are_exact(rate, phases):
    """Every length, alone and in batches: `rate` frames of each token, whatever the padding."""
    system = legonn_system(up_sampling=rate, phases=phases)
    config = system.config.encoder
    for lengths in [*([length] for length in range(1, 13)), [1, 12], [7, 3, 7, 1], list(range(1, 9))]:
        encoded = system.encode(sentences(lengths))
        for tap in ("middle", "trimmed", "final"):
            hidden, found = encoded.taps[tap]
            assert found.tolist() == [rate * length for length in lengths]
            assert found.tolist() == [config.frames_out(length) for length in lengths]
            assert hidden.shape == (len(lengths), rate * max(lengths), 12)
        assert encoded.logits().values.shape == (len(lengths), rate * max(lengths), CLASSES)


@PHASES
@pytest.mark.parametrize("middle_layers", [0, 1])
@pytest.mark.parametrize("trim", [None, TRIM], ids=["whole", "trimmed"])
def test_alone_as_in_a_batch(trim, middle_layers, phases):
    system = legonn_system(middle_layers=middle_layers, phases=phases)
    source = sentences([6, 2, 4])
    together = system.encode(source, trim)
    if trim:
        assert (together.final.lengths < together.taps["middle"].lengths).any()
    for n in range(3):
        own = system.encode(one_of(source, n), trim)
        for tap in own.taps:
            assert own.taps[tap].lengths[0] == together.taps[tap].lengths[n]
            torch.testing.assert_close(one_of(together.taps[tap], n).values, own.taps[tap].values)


@PHASES
def test_a_frame_is_of_its_token(phases):
    """Before any layer that mixes, frames 3 t to 3 t + 2 depend on token t alone; in phases, of L tokens,
    the frames t, 2 L - 1 - t and 2 L + t do."""
    system = legonn_system(phases=phases)
    encoder, config = system.encoder, system.config.encoder
    x = torch.randn(2, 5, 12, dtype=torch.double, requires_grad=True)
    up_sampled = encoder._up_sample(x, torch.tensor([5, 4]))
    frames, lengths = InPhases(up_sampled, phases).apart(up_sampled)
    assert lengths.tolist() == [15, 12]
    for n, size in enumerate((5, 4)):
        for frame in range(3 * size):
            (gradient,) = torch.autograd.grad(frames[n, frame].sum(), x, retain_graph=True)
            backwards = size <= frame < 2 * size
            in_phase = 2 * size - 1 - frame if backwards else frame % size
            token = frame // 3 if phases == 1 else in_phase
            assert gradient.abs().sum(2).gt(0).nonzero().tolist() == [[n, token]]
            assert config.source_tokens(size)[frame] == token
    same = (0, 1) if phases == 1 else (0, 9)
    assert not torch.allclose(frames[0, same[0]], frames[0, same[1]])  # the frames of a token differ


def test_trimming_keeps_the_beginning():
    """What is left of a sequence is encoded as the second half would encode it alone."""
    system = legonn_system()
    encoded = system.encode(sentences([6]), TRIM)
    kept = int(encoded.final.lengths[0])
    assert 0 < kept < 18
    expected = system.encoder.second(encoded.taps["middle"].values[:, :kept], torch.tensor([kept]))
    torch.testing.assert_close(encoded.final.values, expected)


def test_attention_maps():
    system = legonn_system(middle_layers=1)
    maps = system.encoder_attention(sentences([4]))
    assert [tuple(layer.shape) for layer in maps] == [(2, 4, 4)] * 2 + [(2, 12, 12)] * 2
    for layer in maps:
        torch.testing.assert_close(layer.sum(-1), torch.ones_like(layer[..., 0]))


def test_what_is_no_text_is_refused():
    system = legonn_system()
    with pytest.raises(ValueError, match=r"tokens are torch.float64 \(1, 4, 3\), expected integers \(N, T\)"):
        system.encode(Padded(torch.zeros(1, 4, 3, dtype=torch.double), torch.tensor([4])))
    with pytest.raises(ValueError, match=r"lengths\[0\] is 5, but there are 4 frames"):
        system.encode(Padded(torch.zeros(1, 4, dtype=torch.long), torch.tensor([5])))


def test_the_size_of_table_6():
    with torch.device("meta"):
        encoder = LegoNNConfig().build(10_000)
    dim, inner = 512, 1024
    attention = 4 * (dim * dim + dim)
    layer = attention + 2 * dim * inner + inner + dim + 2 * 2 * dim
    spread = 3 * (dim * dim + dim)
    norms = 3 * 2 * dim  # behind each stack; the one in the middle has no layers
    assert count_parameters(encoder) == 10_000 * dim + 12 * layer + spread + norms
