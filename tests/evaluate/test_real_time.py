"""Real-time factors of systems whose cost is known."""

import pytest
import torch

from brctc.evaluate import measure_rtf


class Scripted:
    """A system that takes the times it is told to, and writes down when it is called."""

    def __init__(self, name, calls, times):
        self.name, self.calls, self.times = name, calls, iter(times)

    def __call__(self, utterance):
        self.calls.append((self.name, utterance))
        return next(self.times)


def test_medians_ratio_and_interleaving():
    calls = []
    # per utterance: the warm-up, then three runs; outliers and the warm-up must not count
    slow = Scripted("slow", calls, [(9, 9), (1, 4), (1, 4), (1, 90)] * 2)
    fast = Scripted("fast", calls, [(9, 9), (0.5, 1), (50, 1), (0.5, 1)] * 2)
    rows = measure_rtf({"slow": slow, "fast": fast}, ["x", "y"], [4.0, 6.0], repeats=3)
    assert rows[0] == ("slow", 10, 2, 8, 0.2, 0.8, 1.0, 1.0)
    assert rows[1] == pytest.approx(("fast", 10, 1, 2, 0.1, 0.2, 0.3, 0.3))
    # both systems in every round, the first one changing; one utterance after the other
    rounds = [calls[i : i + 2] for i in range(0, len(calls), 2)]
    assert all({name for name, _ in pair} == {"slow", "fast"} for pair in rounds)
    assert [pair[0][0] for pair in rounds] == ["slow", "fast"] * 2 + ["fast", "slow"] * 2
    assert [pair[0][1] for pair in rounds] == ["x"] * 4 + ["y"] * 4


def test_runs_on_one_thread_and_restores():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        seen = []

        def system(utterance):
            seen.append(torch.get_num_threads())
            return 0.0, 1.0

        measure_rtf({"a": system}, [0], [1.0], repeats=1)
        assert seen == [1, 1]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (({}, [0], [1.0]), "no systems"),
        (({"a": lambda _: (0, 0)}, [0], [1.0, 2.0]), "1 utterances and 2 durations"),
        (({"a": lambda _: (0, 0)}, [], []), "last 0.0 s"),
        (({"a": lambda _: (0, 0)}, [0], [1.0], 0), "repeats is 0"),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(ValueError, match=message):
        measure_rtf(*arguments)
