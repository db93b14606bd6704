"""What a search finds, and the tree in which it keeps its prefixes."""

from dataclasses import dataclass


@dataclass
class Hypothesis:
    """A token sequence with its log score."""

    tokens: list[int]
    score: float
    frames: list[int] | None = None
    """Encoder frame in which each token begins, counted from 0, where the search knows it."""
    last_frames: list[int] | None = None
    """The last frame of each token's run: CTC may repeat a token; other searches say it in one frame."""


class PrefixTree:
    """Every prefix that a search has met, once: equal prefixes have equal numbers. 0 is the empty one."""

    def __init__(self) -> None:
        self.parent = [-1]
        self.token = [-1]
        self._children: dict[tuple[int, int], int] = {}

    def child(self, prefix: int, token: int) -> int:
        """The number of the prefix that `token` makes of `prefix`."""
        key = prefix, token
        found = self._children.get(key)
        if found is None:
            found = self._children[key] = len(self.parent)
            self.parent.append(prefix)
            self.token.append(token)
        return found

    def tokens(self, prefix: int) -> list[int]:
        """The tokens of a prefix, first to last."""
        found = []
        while prefix:
            found.append(self.token[prefix])
            prefix = self.parent[prefix]
        return found[::-1]
