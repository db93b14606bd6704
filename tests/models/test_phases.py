"""Frames in phases: the order, in batches and alone, and an encoder whose halves have different orders."""

import pytest
import torch

from brctc.data import Padded, pad
from brctc.models import ConformerConfig
from brctc.models.phases import InPhases, phase_order
from tests.models.toys import one_of

ENCODER = ConformerConfig(
    dim=12,
    heads=2,
    feed_forward_dim=16,
    first_layers=1,
    second_layers=1,
    kernel_size=3,
    subsampling=1,
    phases=3,
)


def test_order_by_hand():
    assert phase_order(7, 3) == [0, 3, 6, 4, 1, 2, 5]
    assert phase_order(2, 3) == [0, 1]
    assert phase_order(5, 1) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("phases", [1, 2, 3, 5])
def test_every_length_in_a_batch(phases):
    lengths = torch.tensor([*range(1, 14), 7])
    values = torch.arange(13.0)[None, :, None].expand(len(lengths), 13, 2)
    source = Padded(values, lengths)
    found = InPhases(source, phases).apart(source)
    assert found.lengths is lengths
    for row, length in zip(found.values, lengths.tolist(), strict=True):
        assert row[:length, 0].tolist() == phase_order(length, phases)
        assert row[length:, 0].tolist() == list(range(length, 13))  # padding is where it was


@pytest.mark.parametrize("phases", [1, 2, 3, 5])
@pytest.mark.parametrize("kept", [1, 2, 5, 8, 13])
def test_what_is_kept_goes_back_into_order(phases, kept):
    lengths = torch.tensor([*range(1, 14), 7])
    source = Padded(torch.arange(13.0)[None, :, None].expand(len(lengths), 13, 2), lengths)
    order = InPhases(source, phases)
    left = lengths.clamp(max=kept)
    found = order.joined(Padded(order.apart(source).values[:, :kept], left))
    assert found.lengths is left
    for row, length in zip(found.values, lengths.tolist(), strict=True):
        expected = sorted(phase_order(length, phases)[:kept])
        assert row[: len(expected), 0].tolist() == expected


@pytest.mark.parametrize("positions", ["relative", "sinusoidal"])
def test_a_conformer_in_phases(positions):
    """The middle is in phases, both halves are in time; alone as in a batch; maps are of the same orders."""
    torch.manual_seed(0)
    encoder = ENCODER.model_copy(update={"positions": positions}).build(4).double().eval()
    source = pad([torch.randn(length, 4, dtype=torch.double) for length in (8, 5)])
    taps = encoder(source)
    entered = encoder._enter(source)
    in_time = encoder.first(*entered)
    for n, length in enumerate((8, 5)):
        expected = in_time[n, phase_order(length, 3)]
        torch.testing.assert_close(taps["middle"].values[n, :length], expected)
        torch.testing.assert_close(taps["trimmed"].values[n, :length], in_time[n, :length])
        alone = encoder(one_of(source, n))
        torch.testing.assert_close(one_of(taps["final"], n).values, alone["final"].values)
    first, second = encoder.attention_weights(source)
    expected = encoder.second.attention_weights(*taps["trimmed"])[1][0]
    torch.testing.assert_close(second, expected)
    assert first.shape == second.shape == (2, 2, 8, 8)


def test_a_frame_knows_its_phase():
    """Else nothing could tell the frames of a lasting sound apart."""
    encoder = ENCODER.build(4).double().eval()
    entered = encoder._enter(Padded(torch.zeros(1, 6, 4, dtype=torch.double), torch.tensor([6]))).values[0]
    torch.testing.assert_close(entered[:3], entered[3:])
    assert not torch.allclose(entered[0], entered[1])
    assert ENCODER.model_copy(update={"phases": 1}).build(4).phase_embedding is None


def test_trimming_leaves_whole_phases_first():
    encoder = ENCODER.build(4).double().eval()
    source = pad([torch.randn(9, 4, dtype=torch.double)])
    kept = encoder(source, lambda _, middle: Padded(middle.values[:, :4], torch.tensor([4])))
    expected = encoder.first(*encoder._enter(source))[:, [0, 3, 6, 7]]
    torch.testing.assert_close(kept["trimmed"].values, expected)
    assert kept["final"].lengths.tolist() == [4]
