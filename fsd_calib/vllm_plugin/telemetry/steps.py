"""The log of a model runner's steps: what was accepted by what, brought to the host without waiting for the device."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fsd_calib.vllm_plugin.draft_logits import Layout
from fsd_calib.vllm_plugin.judge import Judged
from fsd_calib.vllm_plugin.running_requests import RunningRequest

Array = NDArray[Any]


@dataclass(frozen=True)
class Step:
    """A step on the host: N drafted tokens of B requests."""

    ids: Sequence[str]  # B
    requests: Sequence[RunningRequest]  # B
    layout: Layout
    accepted: Array  # (B,) drafted tokens that vLLM accepted
    sampled: Array  # (B, L + 1) tokens it emitted, padded with -1
    facts: Array  # (3 or more, N) of the drafted tokens: D, 1 where D <= T, 1 where it is the target's argmax

    @property
    def divergences(self) -> Array:
        """D: (N,)."""
        return self.facts[0]

    @property
    def fuzzy(self) -> Array:
        """Whether D <= T: (N,) bool."""
        return self.facts[1] > 0

    @property
    def most_likely(self) -> Array:
        """Whether it is the target's argmax, processed: (N,) bool."""
        return self.facts[2] > 0

    @property
    def kept(self) -> Array:
        """Which drafted tokens were accepted: (N,) bool."""
        kept: Array = self.layout.place < self.accepted[self.layout.owner]
        return kept

    @property
    def decided(self) -> Array:
        """The accepted tokens and the first rejected one of each request: (N,) bool."""
        decided: Array = self.layout.place <= self.accepted[self.layout.owner]
        return decided

    @property
    def needed(self) -> Array:
        """Which accepted tokens needed D <= T: (N,) bool.

        Those of greedy requests that are not the target's argmax. Of sampled requests, all with D <= T: whether vLLM's
        own draw would have accepted them is not known.
        """
        greedy = np.array([request.greedy for request in self.requests])[self.layout.owner]
        needed: Array = self.kept & self.fuzzy & ~(greedy & self.most_likely)
        return needed


class Listener(Protocol):
    """Receives steps and the ids of finished requests, in order."""

    def add(self, step: Step) -> None: ...
    def finish(self, ids: Iterable[str]) -> None: ...


class StepLog:
    """Hands steps to listeners as soon as they are on the host.

    Copies go on while the device works on the next step; they are looked at when the following step is added.
    """

    def __init__(self, listeners: Sequence[Listener]) -> None:
        self._listeners = listeners
        self._sent: deque[_Sent] = deque()

    def add(self, requests: Sequence[RunningRequest], judged: Judged, most_likely: Tensor, sampled: Tensor) -> None:
        """Takes a step.

        Args:
            most_likely: (N,) bool.
            sampled: (B, L + 1) token ids, padded with -1.
        """
        self._sent.append(_Sent(requests, judged, most_likely, sampled))
        while self._sent and self._sent[0].arrived:
            self._hand_on(self._sent.popleft())

    def finish(self, ids: Iterable[str]) -> None:
        """Takes the ids of requests that have finished, all of whose steps were added."""
        while self._sent:
            self._hand_on(self._sent.popleft())
        for listener in self._listeners:
            listener.finish(ids)

    def _hand_on(self, sent: _Sent) -> None:
        step = sent.step()
        for listener in self._listeners:
            listener.add(step)


class _Sent:
    """A step that is being copied to the host."""

    def __init__(
        self, requests: Sequence[RunningRequest], judged: Judged, most_likely: Tensor, sampled: Tensor
    ) -> None:
        self._requests, self._judged = requests, judged
        facts = torch.stack([judged.divergences.float(), judged.fuzzy.float(), most_likely.float()])  # (3, N)
        self._copies = [_to_host(facts), _to_host(sampled)]
        self._event = None
        if sampled.is_cuda:
            self._event = torch.cuda.Event()
            self._event.record(torch.cuda.current_stream(sampled.device))

    @property
    def arrived(self) -> bool:
        return self._event is None or self._event.query()

    def step(self) -> Step:
        """The step, for which it waits if it has not arrived."""
        if self._event is not None:
            self._event.synchronize()
        facts, sampled = (copy.numpy() for copy in self._copies)
        accepted = (sampled != -1).sum(1) - 1
        return Step(self._judged.requests, self._requests, self._judged.layout, accepted, sampled, facts)


def _to_host(tensor: Tensor) -> Tensor:
    if not tensor.is_cuda:
        return tensor.clone()  # vLLM may write into it later
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)
