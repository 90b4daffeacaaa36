"""The tokens of one prompt's beams: a tree behind the prompt, each of whose nodes has a KV slot of its own.

Beams share the nodes of their common beginning, so that its keys and values are stored once. Nodes that no beam leads
through any more are freed, and their slots taken by new ones; nothing is moved.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fsd_decoding import noise

READERS = 2
"""Models that read a forest: 0 is the target, 1 the draft."""


class Forest:
    """A growing tree. Node 0 is the prompt's last token, and node n > 0 is in the nth slot behind the prompt.

    Args:
        start: tokens of the prompt.
        last: the prompt's last token.
        key: noise key of the prompt (2,), from `noise.problem_keys`.
    """

    def __init__(self, start: int, last: int, key: Tensor) -> None:
        self.start = start
        self._size = 64
        self.tokens = np.zeros(self._size, np.int64)
        self.parents = np.full(self._size, -1, np.int64)
        self.depths = np.zeros(self._size, np.int64)
        self._keys = np.zeros((self._size, 2), np.int64)
        self._seen = np.zeros((self._size, self._size), np.bool_)  # which nodes are on the path to each, itself too
        self.read = np.zeros((READERS, self._size), np.bool_)
        self.tokens[0], self._keys[0] = last, key.numpy()
        self._children: dict[tuple[int, int], int] = {}
        self._free: list[int] = []
        self._next = 1

    @property
    def used(self) -> int:
        """The number behind the largest one in use."""
        return self._next

    def find(self, node: int, token: int) -> int | None:
        """Returns the child of a node with this token, if there is one."""
        return self._children.get((node, token))

    def child(self, node: int, token: int) -> int:
        """Returns the child of a node with this token, which is made where there is none."""
        if (found := self.find(node, token)) is not None:
            return found
        new = heapq.heappop(self._free) if self._free else self._next
        self._next = max(self._next, new + 1)
        if new >= self._size:
            self._enlarge()
        self.tokens[new], self.parents[new], self.depths[new] = token, node, self.depths[node] + 1
        self._keys[new] = noise.extended_key(self._keys[node], token)
        self._seen[new] = self._seen[node]
        self._seen[new, new] = True
        self.read[:, new] = False
        self._children[node, token] = new
        return new

    def _enlarge(self) -> None:
        more = self._size
        for name in ("tokens", "parents", "depths"):
            setattr(self, name, np.pad(getattr(self, name), (0, more)))
        self._keys = np.pad(self._keys, ((0, more), (0, 0)))
        self._seen = np.pad(self._seen, ((0, more), (0, more)))
        self.read = np.pad(self.read, ((0, 0), (0, more)))
        self._size += more

    def path(self, node: int) -> list[int]:
        """Returns the tokens from the first behind the prompt to a node."""
        tokens = []
        while node:
            tokens.append(int(self.tokens[node]))
            node = int(self.parents[node])
        return tokens[::-1]

    def keys(self, nodes: Sequence[int]) -> Tensor:
        """Returns the noise keys of the texts that end at nodes, which are hashes of their tokens: (n, 2)."""
        return torch.from_numpy(self._keys[list(nodes)])

    def seen(self, nodes: Sequence[int]) -> npt.NDArray[np.bool_]:
        """Returns which of nodes 1 … `used` - 1 are on the path to each node, itself included: (n, used - 1)."""
        return self._seen[list(nodes), 1 : self.used]

    def unread(self, reader: int, nodes: Sequence[int]) -> list[int]:
        """Returns the nodes before these on their paths, parents first, that a model has not read."""
        on_paths = self._on_paths(nodes)
        on_paths[0], on_paths[list(nodes)] = True, False
        return np.flatnonzero(on_paths & ~self.read[reader, : self.used]).tolist()

    def _on_paths(self, nodes: Sequence[int]) -> npt.NDArray[np.bool_]:
        """Which nodes are on the path to any of these: (used,)."""
        return np.asarray(self._seen[list(nodes), : self.used].any(0))

    def prune(self, nodes: Iterable[int]) -> None:
        """Frees all nodes except those on the paths to these."""
        kept = self._on_paths(list(nodes))
        kept[0] = True
        for pair, node in list(self._children.items()):
            if not kept[node]:
                del self._children[pair]
                heapq.heappush(self._free, node)
        self._next = int(np.flatnonzero(kept)[-1]) + 1
        self._free = [node for node in self._free if node < self._next]
        heapq.heapify(self._free)
