"""The transducer's networks: step by step as at once, and the joint by its formula."""

import pytest
import torch

from brctc.data import Padded
from brctc.models.transducer import BLANK
from tests.models.toys import CLASSES, TEXT, one_of, toy_batch, toy_system


@pytest.fixture(scope="module")
def transducer():
    return toy_system(transducer=True).decoders["transducer"]


def test_steps_as_the_whole_prediction_network(transducer):
    """With hypotheses that are reordered and repeated on the way."""
    targets = torch.tensor([[1, 2, 3], [4, 4, 1]])
    whole = transducer.predictions(targets)
    assert whole.shape == (2, 4, 14)
    prediction, state = transducer.predict(torch.full((2,), BLANK), transducer.initial_state(2))
    order = torch.tensor([0, 1])
    for u in range(4):
        torch.testing.assert_close(prediction, whole[order, u])
        if u == 3:
            break
        order = order[torch.tensor([[1, 0], [0, 1, 1], [2, 0]][u])]
        state = state.select(torch.tensor([[1, 0], [0, 1, 1], [2, 0]][u]))
        prediction, state = transducer.predict(targets[order, u], state)


def test_joint_by_its_formula(transducer):
    targets = torch.tensor([[1, 2, 3], [4, 4, 1]])
    hidden = torch.randn(2, 5, 16, dtype=torch.double)
    predictions = transducer.predictions(targets)
    whole = transducer.joint(hidden[:, :, None], predictions[:, None])
    assert whole.shape == (2, 5, 4, CLASSES)
    torch.testing.assert_close(whole.exp().sum(-1), torch.ones(2, 5, 4, dtype=torch.double))
    linear = torch.nn.functional.linear
    for t in range(5):
        frame = linear(hidden[:, t], transducer.project.weight, transducer.project.bias)
        for u in range(4):
            logits = linear((frame + predictions[:, u]).tanh(), transducer.out.weight, transducer.out.bias)
            torch.testing.assert_close(whole[:, t, u], logits.log_softmax(-1))
            step = transducer.joint_projected(transducer.project(hidden)[:, t], predictions[:, u])
            torch.testing.assert_close(step, whole[:, t, u])


def test_loss_is_that_of_the_joint(transducer):
    targets = toy_batch().targets[TEXT]
    memory = Padded(torch.randn(3, 9, 16, dtype=torch.double), torch.tensor([9, 7, 5]))
    memory.values[1, 7:] = 1e3  # behind the end
    found = transducer.loss(memory, targets)
    losses = []
    for n in range(3):
        hidden, own = one_of(memory, n).values[0], one_of(targets, n).values
        frames, labels = len(hidden), own[0].tolist()
        log_probs = transducer.joint(hidden[:, None], transducer.predictions(own)[0])
        # alpha[u]: the summed probability of all ways to have said u labels when frame t begins
        alpha = [torch.zeros((), dtype=torch.double)]
        for t in range(frames):
            row = []
            for u in range(len(labels) + 1):
                ways = [alpha[u]] if u < len(alpha) else []
                if u > 0:
                    ways.append(row[u - 1] + log_probs[t, u - 1, labels[u - 1]])
                row.append(torch.stack(ways).logsumexp(0))
            alpha = [value + log_probs[t, u, BLANK] for u, value in enumerate(row)]
        losses.append(-alpha[-1] / len(labels))
    torch.testing.assert_close(found, torch.stack(losses).mean())
