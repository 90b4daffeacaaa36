"""A model that reads the nodes of forests, those of several rows in one forward pass."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fsd_decoding.beams.forest import Forest
from fsd_decoding.graphs.callers import EagerCaller
from fsd_decoding.models.runner import ModelRunner
from fsd_decoding.models.slot_cache import Branches
from fsd_decoding.tensors import to_device


class ForestReader:
    """Gives the logits of the tokens that follow nodes.

    Args:
        runner: the model, with one row in its cache for each forest.
        number: its own, by which forests know what it has read.
        most: slots of a row that always suffice.
    """

    def __init__(self, runner: ModelRunner, number: int, most: int) -> None:
        self._runner, self._number, self._most = runner, number, most

    @property
    def device(self) -> torch.device:
        return torch.device(self._runner.device)

    @property
    def dtype(self) -> torch.dtype:
        """That of logits."""
        return torch.float64 if self._runner.model.dtype == torch.float64 else torch.float32

    def put(self, row: int, prompt: list[int]) -> None:
        """Reads a prompt into a row, all but its last token, which is node 0 of the row's forest."""
        tokens = to_device([prompt], self.device)
        self._runner.prefill(to_device([row], self.device), tokens, len(prompt) - 1)

    def __call__(self, forests: Sequence[Forest | None], wanted: Sequence[Sequence[int]]) -> list[Tensor]:
        """Returns raw logits (n, V) after the wanted nodes of each forest, by one forward pass.

        What the model has not read of the paths to them is read in the same pass. The cache grows where its slots do
        not suffice.

        Args:
            forests: of each row; None: the row is empty.
            wanted: nodes of each; they are read again where they were read before.
        """
        keep = max(map(len, wanted))
        fed = [
            [] if forest is None or not nodes else [*forest.unread(self._number, nodes), *nodes]
            for forest, nodes in zip(forests, wanted, strict=True)
        ]
        count, scratch = max(map(len, fed)), max(forest.used - 1 if forest else 0 for forest in forests) or 1
        starts, depths = np.ones(len(forests), np.int64), np.zeros((len(forests), scratch), np.int64)
        tokens, numbers, places = (np.zeros((len(forests), count), np.int64) for _ in range(3))
        seen = np.zeros((len(forests), count, scratch), np.bool_)
        for row, (forest, nodes) in enumerate(zip(forests, fed, strict=True)):
            if forest is None:
                continue
            padded = [0] * (count - len(nodes)) + nodes  # node 0 may be read again
            starts[row], numbers[row], tokens[row] = forest.start, padded, forest.tokens[padded]
            places[row], depths[row, : forest.used - 1] = forest.depths[padded], forest.depths[1 : forest.used]
            seen[row, :, : forest.used - 1] = forest.seen(padded)
            forest.read[self._number, padded] = True
        last = starts[:, None] - 1  # slot and position of node 0
        moved = [
            torch.from_numpy(each).to(self.device) for each in (tokens, last + places, starts, last + numbers, seen)
        ]
        tokens_fed, positions, first, slots, visible = moved
        branches = Branches(first, slots, visible, torch.from_numpy(depths).to(self.device))
        kv_length = int(starts.max()) + scratch
        if kv_length > self._runner.slots:  # by half as many as are needed, so that this is seldom
            self._runner.enlarge(min(EagerCaller().size(kv_length + scratch // 2), self._most))
        logits = self._runner.logits(tokens_fed, positions, kv_length, keep, branches=branches)
        return [logits[row, keep - len(nodes) :] for row, nodes in enumerate(wanted)]
