"""Table 3's systems have the parameters that its numbers say, part by part."""

import pytest
import torch

from brctc.models import (
    AttentionConfig,
    ConformerConfig,
    EmformerConfig,
    System,
    SystemConfig,
    TransducerConfig,
    count_parameters,
)

FEATURES, CHARACTERS = 83, 4231  # 80 filters and 3 of pitch; Aishell-1
DIM, FEED_FORWARD, LAYERS, KERNEL, DECODER_LAYERS, JOINT, LSTM = 512, 2048, 12, 31, 6, 512, 512


def linear(inputs, outputs, bias=True):
    return inputs * outputs + bias * outputs


NORM = 2 * DIM
FEED_FORWARD_PARAMETERS = linear(DIM, FEED_FORWARD) + linear(FEED_FORWARD, DIM)
ATTENTION = 4 * linear(DIM, DIM)


def system(**decoders):
    with torch.device("meta"):
        return System(SystemConfig(decoders=decoders), FEATURES, {"transcript": CHARACTERS})


def with_head(found):
    """The encoder and its CTC head, which the paper's numbers count as one."""
    return count_parameters(found.encoder) + count_parameters(found.heads)


def test_encoder():
    whole = system()
    encoder = whole.encoder
    # 83 features, windows of 3 that move by 2: 41, then 20
    convolutions = (1 * 9 * DIM + DIM) + (DIM * 9 * DIM + DIM)
    assert count_parameters(encoder.subsampling) == convolutions + linear(20 * DIM, DIM)
    # relative positions: a projection without bias, and two vectors
    attention = ATTENTION + linear(DIM, DIM, bias=False) + 2 * DIM
    convolution = linear(DIM, 2 * DIM) + (KERNEL * DIM + DIM) + NORM + linear(DIM, DIM)
    layer = 2 * FEED_FORWARD_PARAMETERS + attention + convolution + 5 * NORM
    assert len(encoder.first.layers) == len(encoder.second.layers) == LAYERS // 2
    for half in (encoder.first, encoder.second):
        assert count_parameters(half) == LAYERS // 2 * layer
    assert count_parameters(whole.heads) == linear(DIM, CHARACTERS)
    assert count_parameters(whole) == with_head(whole) == 85_663_367


def test_hybrid():
    hybrid = system(attention=AttentionConfig())
    layer = 2 * ATTENTION + FEED_FORWARD_PARAMETERS + 3 * NORM
    classes = CHARACTERS + 1  # start and end of sentence
    decoder = classes * DIM + DECODER_LAYERS * layer + NORM + linear(DIM, classes)
    assert count_parameters(hybrid.decoders) == decoder
    assert count_parameters(hybrid) == with_head(hybrid) + decoder == 115_226_383


def test_transducer():
    transducer = system(transducer=TransducerConfig())
    lstm = 4 * (LSTM * LSTM + LSTM * LSTM + 2 * LSTM)
    joint = linear(DIM, JOINT) + linear(LSTM, JOINT, bias=False) + linear(JOINT, CHARACTERS)
    decoder = CHARACTERS * LSTM + lstm + joint
    assert count_parameters(transducer.decoders) == decoder
    assert count_parameters(transducer) == with_head(transducer) + decoder == 92_626_190


@pytest.mark.parametrize(
    ("config", "values", "message"),
    [
        (ConformerConfig, {"dim": 10, "heads": 4}, "dim is 10, expected an even number that 4 heads divide"),
        (ConformerConfig, {"kernel_size": 30}, "kernel_size is 30, expected an odd number"),
        (ConformerConfig, {"subsampling": 3}, "subsampling"),
        (ConformerConfig, {"layers": 12}, "layers"),
        (ConformerConfig, {"dropout": 1.0}, "dropout"),
        (ConformerConfig, {"kind": "emformer"}, "kind"),
        (ConformerConfig, {"first_layers": 1001}, "first_layers"),
        (ConformerConfig, {"dim": 65538}, "dim"),
        (ConformerConfig, {"feed_forward_dim": 65537}, "feed_forward_dim"),
        (EmformerConfig, {"layers": 1001}, "layers"),
        (AttentionConfig, {"layers": 1001}, "layers"),
        (AttentionConfig, {"dim": 65538, "heads": 2}, "dim"),
        (AttentionConfig, {"dim": 9, "heads": 3}, "dim is 9"),
        (AttentionConfig, {"label_smoothing": 1.0}, "label_smoothing"),
        (TransducerConfig, {"joint_dim": 0}, "joint_dim"),
        (TransducerConfig, {"prediction_layers": 1001}, "prediction_layers"),
        (TransducerConfig, {"prediction_dim": 65537}, "prediction_dim"),
    ],
)
def test_impossible_configurations(config, values, message):
    with pytest.raises(ValueError, match=message):
        config(**values)
