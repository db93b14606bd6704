"""Small random systems that have opinions: sharp outputs, so that searches have something to find."""

import torch

from brctc.models import AttentionConfig, Encoded, EncoderConfig, System, SystemConfig, TransducerConfig


def random_system(classes=4, *, attention=False, transducer=False, seed=0, sharpness=6.0, blank_bias=0.0):
    torch.manual_seed(seed)
    config = SystemConfig(
        encoder=EncoderConfig(
            subsampling=1,
            dim=16,
            heads=2,
            feed_forward_dim=32,
            first_layers=1,
            second_layers=1,
            kernel_size=3,
        ),
        attention=AttentionConfig(layers=2, dim=16, heads=2, feed_forward_dim=32) if attention else None,
        transducer=TransducerConfig(prediction_dim=12, prediction_layers=2, joint_dim=16)
        if transducer
        else None,
        normalisation="none",
    )
    system = System(config, feature_dim=8, vocab_size=classes)
    with torch.no_grad():
        outputs = [system.encoder.ctc]
        if system.attention is not None:
            outputs.append(system.attention.out)
        if system.transducer is not None:
            outputs.append(system.transducer.out)
            system.transducer.out.bias[0] += blank_bias / sharpness
            system.transducer.embedding.weight.mul_(4)
        for layer in outputs:
            layer.weight.mul_(sharpness)
            layer.bias.mul_(sharpness)
    return system.eval()


@torch.no_grad()
def random_encoded(system, lengths, seed=0) -> Encoded:
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(len(lengths), max(lengths), 8, generator=generator)
    return system.encode(features, torch.tensor(lengths))


def utterance(encoded, n) -> Encoded:
    """One utterance of a batch, without padding."""
    length = int(encoded.lengths[n])
    inter = int(encoded.inter_lengths[n])
    return Encoded(
        encoded.hidden[n : n + 1, :length],
        encoded.lengths[n : n + 1],
        encoded.logits[n : n + 1, :length],
        encoded.inter_logits[n : n + 1, :inter],
        encoded.inter_lengths[n : n + 1],
    )
