"""A small neural network on the features and, optionally, the draft's hidden state, non-decreasing in T.

logit = f_0(x) + Σ_k softplus(f_k(x))·r_k(share), where f is an unconstrained network of all other columns x and each
piece r_k of the share is non-decreasing. It is trained by torch and evaluated by numpy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn

from fsd_predictors.models.base import AcceptanceModel, Array, Parts
from fsd_predictors.models.monotone import Encoding

_ROWS_A_STEP = 512
_SHARE_KNOTS = 5
_ENCODINGS = ("features", "state", "rising")


class MLP(AcceptanceModel):
    """A network of two hidden layers.

    Args:
        hidden: number of columns at the end of X that hold the hidden state.
        width: width of both hidden layers.
        knots: knots of each other column's encoding.
        steps: steps of AdamW (Loshchilov and Hutter 2019), with 512 rows each.
    """

    kind: ClassVar[str] = "head"

    def __init__(
        self,
        share: int = 0,
        hidden: int = 0,
        width: int = 64,
        knots: int = 8,
        steps: int = 4000,
        learning_rate: float = 5e-3,
        weight_decay: float = 1e-4,
        seed: int = 0,
    ) -> None:
        self.share = share
        self.hidden = hidden
        self.width = width
        self.knots = knots
        self.steps = steps
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.seed = seed

    def _fit(self, rows: Array, accepted: Array) -> None:
        end = rows.shape[1] - self.hidden
        features = [column for column in range(end) if column != self.share]
        self.features_ = Encoding.of(rows, features, self.knots)
        self.state_ = Encoding.of(rows, range(end, rows.shape[1]), 0)
        self.rising_ = Encoding.of(rows, [self.share], _SHARE_KNOTS)
        network = self._train(self._inputs(rows), self.rising_(rows), accepted)
        self.weights_ = [each.detach().double().numpy() for each in network.parameters()]

    def _train(self, inputs: Array, rising: Array, accepted: Array) -> nn.Module:
        x, r, y = (torch.from_numpy(np.asarray(each, np.float32)) for each in (inputs, rising, accepted))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            network = _network(x.shape[1], self.width, r.shape[1])
            optimiser = torch.optim.AdamW(network.parameters(), self.learning_rate, weight_decay=self.weight_decay)
            schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, self.steps)
            for _ in range(self.steps):
                chosen = torch.randint(len(x), (_ROWS_A_STEP,))
                loss = nn.functional.binary_cross_entropy_with_logits(_logits(network(x[chosen]), r[chosen]), y[chosen])
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                schedule.step()
        return network

    def _inputs(self, rows: Array) -> Array:
        if not self.hidden:
            return self.features_(rows)
        return np.concatenate([self.features_(rows), self.state_(rows) / math.sqrt(self.hidden)], axis=1)

    def logits(self, rows: Array) -> Array:
        first, first_bias, second, second_bias, last, last_bias = self.weights_
        inner = np.maximum(self._inputs(rows) @ first.T + first_bias, 0)
        inner = np.maximum(inner @ second.T + second_bias, 0)
        outputs = inner @ last.T + last_bias
        logits: Array = outputs[:, 0] + (np.logaddexp(0, outputs[:, 1:]) * self.rising_(rows)).sum(1)
        return logits

    def logit(self, values: Sequence[float]) -> float:
        return float(self.logits(np.array([values], np.float64))[0])

    def parts(self) -> Parts:
        arrays = {f"weight.{place}": each for place, each in enumerate(self.weights_)}
        for name in _ENCODINGS:
            arrays |= getattr(self, f"{name}_").arrays(name)
        return Parts({"kind": self.kind, "parameters": self.get_params(), "features": self.n_features_in_}, arrays)

    @classmethod
    def from_parts(cls, parts: Parts) -> Self:
        model = cls(**parts.numbers["parameters"])
        model.n_features_in_ = parts.numbers["features"]
        model.features_, model.state_, model.rising_ = (Encoding.from_arrays(parts.arrays, name) for name in _ENCODINGS)
        model.weights_ = [parts.arrays[f"weight.{place}"] for place in range(6)]
        return model


def _network(inputs: int, width: int, rising: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1 + rising)
    )


def _logits(outputs: Tensor, rising: Tensor) -> Tensor:
    """Returns the logits (n,) from the network's outputs (n, 1 + k) and the share's pieces (n, k)."""
    return outputs[:, 0] + (nn.functional.softplus(outputs[:, 1:]) * rising).sum(1)
