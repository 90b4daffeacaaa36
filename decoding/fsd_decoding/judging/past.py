"""What is known of a text before each drafted token: what its earlier rounds replaced, and the phase that it is in.

A token replaces another where a drafted one is rejected. What the target adds to a draft that is kept whole replaces
none, as nothing was drafted there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fsd_decoding.batch import Request
from fsd_decoding.policies.markers import Automaton
from fsd_decoding.tensors import to_device
from fsd_decoding.walk import Path

_KEPT = 0.5 ** (1 / 8)  # what each token leaves of the weight of those replaced before it


class Past:
    """The past of the texts in B rows.

    Args:
        reading: reads the phase; None: there is none, and all is outside.
    """

    def __init__(self, rows: int, device: torch.device, reading: Automaton | None) -> None:
        self._reading = reading
        self._since = torch.zeros(rows, dtype=torch.int64, device=device)  # tokens since the last one replaced
        self._lately = torch.zeros(rows, dtype=torch.float64, device=device)  # sum of the weights of those replaced
        self._states = torch.zeros(rows, dtype=torch.int64, device=device)  # of the reading

    def start(self, rows: Tensor, requests: Sequence[Request]) -> None:
        """Begins texts in `rows` (R,)."""
        self._since[rows] = to_device([request.begun for request in requests], rows.device)
        self._lately[rows] = 0.0
        if self._reading is not None:
            states = [self._reading.read(request.prompt)[-1] for request in requests]
            self._states[rows] = to_device(states, rows.device)

    def keep(self, rows: Tensor) -> None:
        """Drops all rows but these (R,), which are renumbered in this order."""
        self._since, self._lately, self._states = self._since[rows], self._lately[rows], self._states[rows]

    def before(self, drafted: Tensor) -> Tensor:
        """Returns what is known before each of n tokens in a row, the ones before it kept: (B, n, 3) of ids (B, n).

        log(1 + tokens since one was replaced, or since the text began); how many were replaced, each by its weight;
        and whether the token is inside the phase.
        """
        ahead = torch.arange(drafted.shape[1], device=drafted.device)
        inside = torch.zeros_like(drafted)
        if self._reading is not None:
            inside = self._reading.along(self._states, drafted)[:, :-1] >= self._reading.inside
        known = (self._since[:, None] + ahead).log1p(), self._lately[:, None] * _KEPT**ahead, inside
        return torch.stack([each.double() for each in known], -1)

    def add(self, tokens: Tensor, counts: Tensor, replaced: Tensor) -> None:
        """Goes on behind the first `counts` (B,) of tokens (B, n), whose last one replaced another or not (B,) bool."""
        self._since = torch.where(replaced, 0, self._since + counts)
        self._lately = self._lately * _KEPT**counts + replaced
        if self._reading is not None:
            self._states = self._reading.along(self._states, tokens).gather(1, counts[:, None]).squeeze(1)

    def add_round(self, path: Path) -> None:
        """Goes on behind a round of decoding."""
        self.add(path.emitted, path.accepted + 1, ~path.whole)


def past_of(place: int, replaced: Sequence[int], before: Sequence[int], reading: Automaton | None) -> list[float]:
    """Returns what is known before the token at a place of a text, as `Past.before` does.

    Args:
        replaced: the places of tokens that replaced others.
        before: the tokens before it, the prompt included.
    """
    earlier = [each for each in replaced if each < place]
    since = place - max(earlier) - 1 if earlier else place
    inside = reading is not None and reading.read(before)[-1] >= reading.inside
    return [math.log1p(since), sum(_KEPT ** (place - each - 1) for each in earlier), float(inside)]
