"""The Transformer decoder of the hybrid CTC/attention system, in training and step by step.

Axes: N utterances, B hypotheses of each, T frames, U tokens, D features, H heads, C classes.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from brctc.data.batch import Padded
from brctc.models.base import (
    DECODERS,
    AttentionDropout,
    Decoder,
    DecoderConfig,
    Dim,
    Heads,
    Layers,
    check_heads,
)
from brctc.models.base import Dropout as DropoutField
from brctc.models.layers import (
    DotProductAttention,
    Dropout,
    FeedForward,
    attention_mask,
    join_heads,
    residual_linear,
    split_heads,
    split_parts,
)
from brctc.models.positions import frame_positions

IGNORED = -100  # a gold token that is padding


@DECODERS.register
class AttentionConfig(DecoderConfig):
    """A Transformer decoder. The defaults are those of table 3."""

    kind: Literal["attention"] = "attention"
    layers: Layers = 6
    dim: Dim = 512
    heads: Heads = 4
    feed_forward_dim: Dim = 2048
    dropout: float = DropoutField
    attention_dropout: float = AttentionDropout
    """As a Conformer's, of the attention to the tokens so far and to the encoder."""
    label_smoothing: float = Field(0.1, ge=0, lt=1)

    @model_validator(mode="after")
    def _check(self) -> "AttentionConfig":
        check_heads(self.dim, self.heads)
        return self

    def build(self, encoder_dim: int, vocab_size: int) -> "AttentionDecoder":
        return AttentionDecoder(self, encoder_dim, vocab_size)


class Memory(NamedTuple):
    """The encoder's frames as every layer attends to them, projected once."""

    keys: tuple[Tensor, ...]
    """Each (N, H, T, D / H)."""
    values: tuple[Tensor, ...]
    mask: Tensor
    """(N, 1, 1, T)"""
    positions: Tensor
    """(T + 1, D), of the tokens: an output has no more than there are frames, and its end."""

    def select(self, utterances: Tensor) -> "Memory":
        """The utterances of an index (or a mask) over N."""
        keys = tuple(key[utterances] for key in self.keys)
        values = tuple(value[utterances] for value in self.values)
        return Memory(keys, values, self.mask[utterances], self.positions)


class Cache(NamedTuple):
    """What the layers remember of the tokens so far."""

    past: tuple[Tensor, ...]
    """Each layer's keys and values: (N, B, 2, H, U, D / H)."""

    @property
    def tokens(self) -> int:
        """U, how many steps were taken."""
        return self.past[0].shape[4]

    def reorder(self, parents: Tensor) -> "Cache":
        """The hypotheses (N, B'), each continuing the old one that `parents` names: 0 to B - 1."""
        size, beam = self.past[0].shape[:2]
        if size > 1:
            parents = parents + torch.arange(0, size * beam, beam, device=parents.device)[:, None]
        # as one axis: indices along two are several times slower
        rows, shape = parents.flatten(), (*parents.shape, *self.past[0].shape[2:])
        return Cache(tuple(past.flatten(0, 1).index_select(0, rows).view(shape) for past in self.past))

    def select(self, utterances: Tensor) -> "Cache":
        """The utterances of an index (or a mask) over N."""
        return Cache(tuple(past[utterances] for past in self.past))


class DecoderLayer(nn.Module):
    """Attention to the tokens so far, attention to the encoder, a feed-forward, each behind a norm."""

    def __init__(self, config: AttentionConfig, memory_dim: int) -> None:
        super().__init__()
        dim = config.dim
        self.heads = config.heads
        self.self_norm = nn.LayerNorm(dim)
        self.project = nn.Linear(dim, 3 * dim)
        self.self_out = residual_linear(dim, dim)
        self.cross_norm = nn.LayerNorm(dim)
        self.query = nn.Linear(dim, dim)
        self.key_value = nn.Linear(memory_dim, 2 * dim)
        self.cross_out = residual_linear(dim, dim)
        self.feed_forward_norm = nn.LayerNorm(dim)
        self.feed_forward = FeedForward(dim, config.feed_forward_dim, config.dropout, nn.ReLU())
        self.dropout = Dropout(config.dropout)
        self.attend = DotProductAttention(config.attention_dropout)

    def memory(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        key, value = split_parts(self.key_value(hidden), 2, self.heads)
        return key, value

    def forward(self, x: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        """All tokens (N, U, D) at once; none sees a later one."""
        return self._look_up(self._look_back(x), key, value, mask)

    def cross_weights(self, x: Tensor, key: Tensor, mask: Tensor) -> Tensor:
        """(N, H, U, T): what `forward` takes from each frame."""
        query = split_heads(self.query(self.cross_norm(self._look_back(x))), self.heads)
        return self.attend.weights(query, key, mask)

    def _look_back(self, x: Tensor) -> Tensor:
        query, own_key, own_value = split_parts(self.project(self.self_norm(x)), 3, self.heads)
        attended = join_heads(self.attend(query, own_key, own_value, causal=True))
        return x + self.dropout(self.self_out(attended))

    def step(
        self, x: Tensor, key: Tensor, value: Tensor, mask: Tensor, past: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """One token (N, B, D) behind those of `past`, which it joins."""
        own = self.project(self.self_norm(x)).view(*x.shape[:2], 3, self.heads, 1, -1)
        new = own[:, :, 1:]
        remembered = new if past is None else torch.cat([past, new], dim=4)
        # hypotheses remember different tokens: they are a batch here ...
        query, (own_key, own_value) = own[:, :, 0].flatten(0, 1), remembered.flatten(0, 1).unbind(1)
        attended = self.attend(query, own_key, own_value)
        x = x + self.self_out(attended.reshape(x.shape))
        # ... but they look at the same frames: there they are a sequence, and no frame is copied
        return self._look_up(x, key, value, mask), remembered

    def _look_up(self, x: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        query = split_heads(self.query(self.cross_norm(x)), self.heads)
        attended = join_heads(self.attend(query, key, value, mask))
        x = x + self.dropout(self.cross_out(attended))
        return x + self.feed_forward(self.feed_forward_norm(x))


class AttentionDecoder(Decoder):
    """Predicts a target's tokens one after the other, then `end`, which also starts every sentence.

    Search: `memory = start(hidden, lengths)`, then `log_probs, cache = step(memory, tokens, cache)`
    with the last token of each hypothesis, `end` at first.
    """

    def __init__(self, config: AttentionConfig, memory_dim: int, vocab_size: int) -> None:
        super().__init__()
        self.end = vocab_size
        self.label_smoothing = config.label_smoothing
        self.embedding = nn.Embedding(vocab_size + 1, config.dim)
        self.dropout = Dropout(config.dropout)
        layers = [DecoderLayer(config, memory_dim) for _ in range(config.layers)]
        self.layers: Sequence[DecoderLayer] = nn.ModuleList(layers)  # pyright: ignore[reportAttributeAccessIssue]
        self.norm = nn.LayerNorm(config.dim)
        self.out = nn.Linear(config.dim, vocab_size + 1)

    def forward(self, hidden: Tensor, lengths: Tensor, targets: Tensor) -> Tensor:
        """(N, U + 1, C) logits: of each target token, and of the end, given those before it."""
        memory = self.start(hidden, lengths)
        tokens = F.pad(targets, (1, 0), value=self.end)
        x = self.embedding(tokens)
        x = self.dropout(x + frame_positions(tokens.shape[1], x))
        for layer, key, value in zip(self.layers, memory.keys, memory.values, strict=True):
            x = layer(x, key, value, memory.mask)
        return self.out(self.norm(x))

    @torch.no_grad()
    def attention_weights(self, hidden: Padded, targets: Tensor) -> Tensor:
        """(N, L, H, U + 1, T): what each of L layers takes from each frame, for every token and the end."""
        memory = self.start(*hidden)
        tokens = F.pad(targets, (1, 0), value=self.end)
        x = self.embedding(tokens)
        x = x + frame_positions(tokens.shape[1], x)
        found = []
        for layer, key, value in zip(self.layers, memory.keys, memory.values, strict=True):
            found.append(layer.cross_weights(x, key, memory.mask))
            x = layer(x, key, value, memory.mask)
        return torch.stack(found, 1)

    def loss(self, memory: Padded, targets: Padded) -> Tensor:
        """Cross-entropy against (1 - s) of the gold token and s of all classes alike; s is label_smoothing.

        Summed over an utterance's tokens and its end, divided by its target length, averaged over
        the batch: the unit of the CTC losses, so that weights between them mean what they say.
        """
        logits, gold = self(*memory, targets.values), self._gold(targets)
        losses = F.cross_entropy(
            logits.flatten(0, 1),
            gold.flatten(),
            ignore_index=IGNORED,
            reduction="none",
            label_smoothing=self.label_smoothing,
        )
        lengths = targets.lengths.to(gold.device)
        return (losses.view(gold.shape).sum(1) / lengths.clamp(min=1)).mean()

    def count_right(self, memory: Padded, targets: Padded) -> tuple[int, int]:
        """How many next tokens are right, given the true ones before, and of how many; the ends count."""
        gold = self._gold(targets)
        best = self(*memory, targets.values).argmax(-1)
        return int((best == gold).sum()), int((gold != IGNORED).sum())

    def _gold(self, targets: Padded) -> Tensor:
        """(N, U + 1): the targets and their ends; IGNORED behind them."""
        gold = F.pad(targets.values, (0, 1))
        place = torch.arange(gold.shape[1], device=gold.device)
        last = targets.lengths.to(gold.device)[:, None]
        return gold.masked_fill(place == last, self.end).masked_fill(place > last, IGNORED)

    def start(self, hidden: Tensor, lengths: Tensor) -> Memory:
        """What `step` needs of the encoder's output."""
        keys, values = zip(*(layer.memory(hidden) for layer in self.layers), strict=True)
        frames = hidden.shape[1]
        mask = attention_mask(lengths, frames, keys[0])
        return Memory(keys, values, mask, frame_positions(frames + 1, self.embedding.weight))

    def step(self, memory: Memory, tokens: Tensor, cache: Cache | None = None) -> tuple[Tensor, Cache]:
        """(N, B, C) log-probabilities of the next token, given the last one (N, B) of each hypothesis.

        The cache remembers the tokens before; None at the beginning. `cache.reorder` follows the
        beam's choice.
        """
        x = self.embedding(tokens) + memory.positions[cache.tokens if cache else 0]
        past = []
        for i, layer in enumerate(self.layers):
            x, new = layer.step(
                x, memory.keys[i], memory.values[i], memory.mask, cache.past[i] if cache else None
            )
            past.append(new)
        return self.out(self.norm(x)).log_softmax(-1), Cache(tuple(past))
