"""A state in the caches of a Zipformer, and a prediction network without a state, before they are graphs."""

import pytest
import torch

from brctc.export.sherpa_modules import CONTEXT, ContextDecoderModule, PackedStepModule
from brctc.models.exported_encoder import END, graph_outputs
from tests.export.small import ONLINE, TRANSDUCER, small_model

KINDS = [
    {},
    {"kernel_size": None},
    {"memory_size": 0},
    {"left_context_frames": 0},
    {"left_context_frames": 0, "memory_size": 0, "kernel_size": None},
    {"right_context_frames": 0, "memory": "summary", "subsampling": 1},
]


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_packed_step_is_a_step(kind):
    system = small_model(ONLINE | kind).system
    step = PackedStepModule(system, graph_outputs(system.config, None))
    caches = [torch.zeros_like(example.value) for example in step.examples()[1:]]
    state, window = system.initial_state(2), step.examples()[0].value.shape[1]
    for seed in range(5):
        x = torch.randn(2, window, 80, generator=torch.Generator().manual_seed(seed))
        lengths = torch.tensor([window, window - 3 if seed == 4 else window])
        expected, state = system.step(x, lengths, state)
        ended = x.masked_fill(torch.arange(window)[:, None] >= lengths[:, None, None], END)
        log_probs, *caches = step(ended, caches)
        frames = expected.hidden.lengths.tolist()
        for n, count in enumerate(frames):
            found = log_probs[n, :count]
            torch.testing.assert_close(found, expected.logits[n, :count].log_softmax(-1))
        for example, cache in zip(step.examples()[1:], caches, strict=True):
            assert cache.shape == example.value.shape, example.name
    assert frames[1] < frames[0] or kind.get("right_context_frames") is None


@torch.no_grad()
def test_the_last_labels_are_enough():
    """Exact for up to 63 labels; behind that, the LSTM begins with the first label that is left."""
    transducer = small_model(decoders={"transducer": TRANSDUCER}).system.decoders["transducer"]
    module = ContextDecoderModule(transducer)
    labels = torch.randint(1, transducer.classes, (1, 80), generator=torch.Generator().manual_seed(0))
    expected = transducer.predictions(labels)
    for before in (-1, 0):  # what stands before the blank
        for count in (0, 1, 2, 30, CONTEXT - 1):
            history = [before] * CONTEXT + [0] + labels[0, :count].tolist()
            found = module(torch.tensor([history[-CONTEXT:]]))
            torch.testing.assert_close(found, expected[:, count])
    cut = module(labels[:, -CONTEXT:])
    embedded = transducer.embedding(labels[:, -CONTEXT:])
    torch.testing.assert_close(cut, transducer.project_prediction(transducer.lstm(embedded)[0][:, -1]))
