"""The prediction and joint networks of a transducer, in training and step by step.

Axes: N utterances (or hypotheses), T frames, U labels, C classes.
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from brctc.data.batch import Padded
from brctc.models.base import DECODERS, Decoder, DecoderConfig, Dim, Layers
from brctc.models.base import Dropout as DropoutField
from brctc.models.layers import Dropout, without_autocast
from brctc.transducer import transducer_joint_loss

BLANK = 0  # also what stands before the first label


@DECODERS.register
class TransducerConfig(DecoderConfig):
    """An LSTM prediction network and a joint network. The defaults are those of table 3."""

    kind: Literal["transducer"] = "transducer"
    prediction_dim: Dim = 512
    prediction_layers: Layers = 1
    joint_dim: Dim = 512
    dropout: float = DropoutField

    def build(self, encoder_dim: int, vocab_size: int) -> "Transducer":
        return Transducer(self, encoder_dim, vocab_size)


class PredictionState(NamedTuple):
    """What the LSTM remembers of the labels so far: two times (layers, N, prediction_dim)."""

    hidden: Tensor
    cell: Tensor

    def select(self, index: Tensor) -> "PredictionState":
        """The hypotheses that an index (or a mask) over N names: reordered, repeated or dropped."""
        return PredictionState(self.hidden[:, index], self.cell[:, index])


class Transducer(Decoder):
    """log P(label | frame, labels before) = log_softmax(out(tanh(project(frame) + prediction))).

    Search: `prediction, state = predict(blanks, initial_state(n))`, then `joint` with a frame, and
    `predict` again with every label that is emitted. `project` all frames first and call
    `joint_projected` to save a product per call.
    """

    def __init__(self, config: TransducerConfig, encoder_dim: int, vocab_size: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, config.prediction_dim)
        self.dropout = Dropout(config.dropout)
        self.lstm = nn.LSTM(
            config.prediction_dim, config.prediction_dim, config.prediction_layers, batch_first=True
        )
        self.project = nn.Linear(encoder_dim, config.joint_dim)
        self.project_prediction = nn.Linear(config.prediction_dim, config.joint_dim, bias=False)
        self.out = nn.Linear(config.joint_dim, vocab_size)

    def predictions(self, targets: Tensor) -> Tensor:
        """(N, U + 1, joint_dim): before the first label of (N, U) targets, and behind each."""
        labels = nn.functional.pad(targets, (1, 0), value=BLANK)
        embedded = self.dropout(self.embedding(labels))
        with without_autocast(embedded.device):  # not every CPU has an LSTM of bfloat16
            output, _ = self.lstm(embedded)
        return self.project_prediction(self.dropout(output))

    def loss(self, memory: Padded, targets: Padded) -> Tensor:
        """The transducer loss: nats per label, averaged over utterances, like the CTC losses."""
        return transducer_joint_loss(
            self.project(memory.values),
            self.predictions(targets.values),
            self.out.weight,
            self.out.bias,
            targets.values,
            memory.lengths,
            targets.lengths,
        )

    def initial_state(self, n: int) -> PredictionState:
        """Nothing remembered, for n hypotheses."""
        weight = self.embedding.weight
        nothing = weight.new_zeros(self.lstm.num_layers, n, self.lstm.hidden_size)
        return PredictionState(nothing, nothing)

    def predict(self, tokens: Tensor, state: PredictionState) -> tuple[Tensor, PredictionState]:
        """(N, joint_dim) predictions, given the last label (N) of each hypothesis: blank at first."""
        output = self.dropout(self.embedding(tokens))
        hidden, cell = [], []
        # by cells: nn.LSTM lays its weights out anew at every call, which takes longer than a step
        for layer, weights in enumerate(self.lstm.all_weights):
            output, memory = torch.lstm_cell(output, (state.hidden[layer], state.cell[layer]), *weights)
            hidden.append(output)
            cell.append(memory)
        prediction = self.project_prediction(self.dropout(output))
        return prediction, PredictionState(torch.stack(hidden), torch.stack(cell))

    @property
    def joint_dim(self) -> int:
        """The size of a prediction."""
        return self.out.in_features

    @property
    def classes(self) -> int:
        """C"""
        return self.out.out_features

    def first_row(self) -> Tensor:
        """(1, R), before the first label: a prediction, and behind it the states of the LSTM."""
        size = self.joint_dim + 2 * self.lstm.num_layers * self.lstm.hidden_size
        row = self.out.weight.new_zeros(1, size)
        return self.follow(row, torch.full((1,), BLANK, device=row.device))

    def follow(self, rows: Tensor, tokens: Tensor) -> Tensor:
        """`predict` on rows, each behind another label: searches keep one tensor of them."""
        output = self.embedding(tokens)
        states = rows[:, self.joint_dim :].chunk(2 * self.lstm.num_layers, 1)
        new = []
        for layer, weights in enumerate(self.lstm.all_weights):
            new += torch.lstm_cell(output, states[2 * layer : 2 * layer + 2], *weights)
            output = new[-2]
        return torch.cat([self.project_prediction(output), *new], 1)

    def joint(self, encoder_frame: Tensor, prediction: Tensor) -> Tensor:
        """(..., C) log-probabilities for frames (..., D) and what `predict` gave; leading axes broadcast."""
        return self.joint_projected(self.project(encoder_frame), prediction)

    def joint_projected(self, projected_frame: Tensor, prediction: Tensor) -> Tensor:
        """`joint` for frames that went through `project` already."""
        return self.out(torch.tanh(projected_frame + prediction)).log_softmax(-1)
