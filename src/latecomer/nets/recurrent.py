"""Networks for sequences, in plain tensor operations: torch's own LSTM does not map over clients."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..task import one_hot
from .shape import sequence


class LSTM(nn.Module):
    """Two LSTM layers of 256 that predict the character after a sequence, as in LEAF and kNN-Per."""

    def __init__(self, shape: tuple[int, ...], outputs: int, embedding: int = 8, hidden: int = 256) -> None:
        super().__init__()
        sequence(shape, "lstm")
        self.vocabulary = outputs  # a character in a sequence and the one after it are numbered alike
        self.embedding = nn.Embedding(outputs, embedding)
        self.lower = Recurrent(embedding, hidden)
        self.upper = Recurrent(hidden, hidden)
        self.head = Readout(hidden, outputs)

    def forward(self, x: Tensor) -> Tensor:
        table = self.embedding.weight
        characters = one_hot(x, self.vocabulary).to(table.dtype) @ table  # [size, length, embedding]
        below, cell_below = self.lower(characters)
        above, cell_above = self.upper(below)
        states = [cell_below, cell_above, below[..., -1, :], above[..., -1, :]]
        return self.head(torch.cat(states, -1))  # type: ignore[no-any-return]


class Recurrent(nn.Module):
    """One layer: the hidden states of all steps, [size, length, hidden], and the last cell state."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.inward = nn.Linear(inputs, 4 * hidden)  # input, forget, candidate and output gate, in torch's order
        self.onward = nn.Linear(hidden, 4 * hidden)
        for weight in self.parameters():
            nn.init.uniform_(weight, -(hidden**-0.5), hidden**-0.5)  # as torch's own

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        steps = self.inward(x).unbind(-2)  # all steps in one product
        hidden = cell = torch.zeros_like(steps[0].chunk(4, -1)[0])
        states = []
        for step in steps:
            take, keep, candidate, show = (step + self.onward(hidden)).chunk(4, -1)
            cell = keep.sigmoid() * cell + take.sigmoid() * candidate.tanh()
            hidden = show.sigmoid() * cell.tanh()
            states.append(hidden)
        return torch.stack(states, -2), cell


class Readout(nn.Linear):
    """A linear layer on the last state it is given; kNN-Per compares examples by all that it is given."""

    def forward(self, states: Tensor) -> Tensor:
        return super().forward(states[..., -self.in_features :])
