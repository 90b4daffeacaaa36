"""The log of a model runner's steps: what was accepted by what, brought to the host without waiting for the device."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fsd_calib.vllm_plugin.draft_logits import Layout
from fsd_calib.vllm_plugin.judge import Judged
from fsd_calib.vllm_plugin.on_host import JudgedOnHost
from fsd_calib.vllm_plugin.running_requests import RunningRequest
from fsd_collectors.collection.measures import Measures

Array = NDArray[Any]

_TOGETHER = 16  # steps
_NOTHING: Array = np.empty((3, 0), np.float32)  # facts of no token


@dataclass(frozen=True)
class Step:
    """A step on the host: N drafted tokens of B requests, those whose logits were compared."""

    ids: Sequence[str]  # B
    requests: Sequence[RunningRequest]  # B
    layout: Layout
    accepted: Array  # (B,) drafted tokens that vLLM accepted
    sampled: Array  # (B, L + 1 or 1) tokens it emitted, padded with -1
    facts: Array  # (3 or more, N) of the drafted tokens: the score, infinite where no T accepts; 1 where it is at most
    # T; 1 where the token is the target's argmax; if recorded, the columns of `Measures`
    drafted: Array  # (B,) drafted tokens that it verified, also those whose logits were not compared
    begins: Array  # (B,) where the emitted tokens begin, counted from the prompt's first token
    emits: Array  # (B,) bool: whether they count; those of a prompt that is not yet read to its end do not

    @property
    def scores(self) -> Array:
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

    @cached_property
    def kept(self) -> Array:
        """Which drafted tokens were accepted: (N,) bool."""
        kept: Array = self.layout.place < self.accepted[self.layout.owner]
        return kept

    @cached_property
    def decided(self) -> Array:
        """The accepted tokens and the first rejected one of each request: (N,) bool."""
        decided: Array = self.layout.place <= self.accepted[self.layout.owner]
        return decided

    @cached_property
    def needed(self) -> Array:
        """Which accepted tokens needed D <= T: (N,) bool.

        Those of greedy requests that are not the target's argmax. Of sampled requests, all with D <= T: whether vLLM's
        own draw would have accepted them is not known.
        """
        greedy = np.array([request.greedy for request in self.requests])[self.layout.owner]
        needed: Array = self.kept & self.fuzzy & ~(greedy & self.most_likely)
        return needed


class Emitted(NamedTuple):
    """What a step emitted for B requests, on the device."""

    sampled: Tensor  # `Step.sampled`
    ends: Tensor  # (B,) tokens of the prompt, the text and the drafts that the step verified
    drafted: Sequence[int]  # B numbers of these drafts
    emits: Array  # `Step.emits`


class Listener(Protocol):
    """Receives steps and the ids of finished requests, in order."""

    def add(self, step: Step) -> None: ...
    def finish(self, ids: Iterable[str]) -> None: ...


class StepTelemetry(Protocol):
    """What a model runner hands its steps to."""

    @property
    def listens(self) -> bool:
        """Whether it is told of steps: of the workers that sample the same tokens, one is."""
        ...

    @property
    def log(self) -> StepLog: ...
    @property
    def measures(self) -> Measures | None:
        """Columns of traces to compute for every drafted token; None: none."""
        ...

    def close(self) -> None:
        """Brings what was seen of the last steps to where it belongs."""
        ...


class StepLog:
    """Hands steps to listeners as soon as they are on the host.

    Copies go on while the device works on the next steps. Some steps are handed on together, or when requests finish:
    one at a time would take longer, as what listens has left the processor's cache by the next step.
    """

    def __init__(self, listeners: Sequence[Listener]) -> None:
        self._listeners = listeners
        self._sent: deque[_Sent | tuple[str, ...]] = deque()  # steps, and ids of requests that finished between them

    def add(
        self, ids: Sequence[str], requests: Sequence[RunningRequest], judged: Judged | None, emitted: Emitted
    ) -> None:
        """Takes a step of B requests; `judged` None: no drafted token's D is known."""
        self._sent.append(_Sent(tuple(ids), requests, judged, emitted))
        if len(self._sent) >= _TOGETHER:
            self._hand_on(wait=False)

    def finish(self, ids: Iterable[str]) -> None:
        """Takes the ids of requests that have finished, all of whose steps were added."""
        self._sent.append(tuple(ids))
        self._hand_on(wait=False)

    def flush(self) -> None:
        """Hands on all steps that were added."""
        self._hand_on(wait=True)

    def _hand_on(self, wait: bool) -> None:
        while self._sent:
            sent = self._sent[0]
            if isinstance(sent, _Sent) and not (wait or sent.arrived):
                return
            self._sent.popleft()
            if isinstance(sent, _Sent):
                step = sent.step()
                for listener in self._listeners:
                    listener.add(step)
            else:
                for listener in self._listeners:
                    listener.finish(sent)


class _Sent:
    """A step that is being copied to the host."""

    def __init__(
        self, ids: Sequence[str], requests: Sequence[RunningRequest], judged: Judged | None, emitted: Emitted
    ) -> None:
        self._ids, self._requests, self._drafted, self._emits = ids, requests, emitted.drafted, emitted.emits
        self._judged = judged
        self._facts = None if judged is None or isinstance(judged, JudgedOnHost) else _on_host(judged.facts)
        self._sampled, self._ends = _to_host(emitted.sampled), _to_host(emitted.ends)
        self._event = None
        if emitted.sampled.is_cuda:
            self._event = torch.cuda.Event()
            self._event.record(torch.cuda.current_stream(emitted.sampled.device))

    @property
    def arrived(self) -> bool:
        return self._event is None or self._event.query()

    def step(self) -> Step:
        """Returns the step, for which it waits if it has not arrived."""
        if self._event is not None:
            self._event.synchronize()
        layout = Layout([0] * len(self._ids)) if self._judged is None else self._judged.layout
        found = self._judged.facts if isinstance(self._judged, JudgedOnHost) else self._facts
        facts, sampled, ends = map(np.asarray, (_NOTHING if found is None else found, self._sampled, self._ends))
        accepted = (sampled != -1).sum(1) - 1
        drafted = np.asarray(self._drafted, ends.dtype)
        return Step(self._ids, self._requests, layout, accepted, sampled, facts, drafted, ends - drafted, self._emits)


def _on_host(facts: Array | Sequence[Tensor]) -> Array | Tensor:
    """Returns rows of facts as one array or tensor, nobody else's, on the host or on the way there."""
    rows = (each if each.is_floating_point() else each.float() for each in facts)
    return _to_host(torch.cat([each.reshape(-1, each.shape[-1]) for each in rows]))


def _to_host(tensor: Tensor) -> Array | Tensor:
    if not tensor.is_cuda:
        return tensor.numpy().copy()  # vLLM may write into it later
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)
