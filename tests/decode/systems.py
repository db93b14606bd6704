"""Small random systems that have opinions: sharp outputs, so that searches have something to find."""

import torch

from brctc.data import Padded
from brctc.models import AttentionConfig, ConformerConfig, Encoded, System, SystemConfig, TransducerConfig

TEXT = "transcript"


def random_system(classes=4, *, attention=False, transducer=False, seed=0, sharpness=6.0, blank_bias=0.0):
    torch.manual_seed(seed)
    decoders = {}
    if attention:
        decoders["attention"] = AttentionConfig(layers=2, dim=16, heads=2, feed_forward_dim=32)
    if transducer:
        decoders["transducer"] = TransducerConfig(prediction_dim=12, prediction_layers=2, joint_dim=16)
    config = SystemConfig(
        encoder=ConformerConfig(
            subsampling=1,
            dim=16,
            heads=2,
            feed_forward_dim=32,
            first_layers=1,
            second_layers=1,
            kernel_size=3,
        ),
        decoders=decoders,
        normalisation="none",
    )
    system = System(config, 8, {TEXT: classes})
    with torch.no_grad():
        if transducer:
            system.decoders["transducer"].out.bias[0] += blank_bias / sharpness
            system.decoders["transducer"].embedding.weight.mul_(4)
        for layer in (system.heads[TEXT], *(decoder.out for decoder in system.decoders.values())):
            layer.weight.mul_(sharpness)
            layer.bias.mul_(sharpness)
    return system.eval()


@torch.no_grad()
def random_encoded(system, lengths, seed=0) -> Encoded:
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(len(lengths), max(lengths), 8, generator=generator)
    encoded = system.encode(Padded(features, torch.tensor(lengths)))
    encoded.logits()  # computed here, without gradients
    return encoded


def utterance(sequences: Padded, n) -> Padded:
    """One utterance of a batch, without padding."""
    length = int(sequences.lengths[n])
    return Padded(sequences.values[n : n + 1, :length], sequences.lengths[n : n + 1])
