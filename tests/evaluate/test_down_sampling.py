"""The down-sampling factor and its oracle."""

import pytest
import torch

from brctc.evaluate import down_sampling


def test_over_the_corpus_and_not_a_mean_of_utterances():
    found = down_sampling(torch.tensor([100, 50]), [20, 40], [5, 10])
    assert found == (60 / 150, 15 / 150)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([10, 10], [5], [1, 1]), "2 lengths before, 1 after trimming and 2 target lengths"),
        (([10, 10], [5, 11], [1, 1]), "utterance 1 has 10 frames and keeps 11"),
        (([], [], []), "no frames"),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(ValueError, match=message):
        down_sampling(*arguments)
