"""Capture and replay of steps: a replay launches the same kernels at the same addresses, without Python.

How a device captures is passed in; `cuda.py` has CUDA graphs.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from fsd_decoding.graphs.callers import Caller, Eager, GraphKey, power_of_two
from fsd_decoding.graphs.host_sync import HostSyncDetector
from fsd_decoding.graphs.recent import RecentlyUsed
from fsd_decoding.graphs.tracing import capturing

Capture = Callable[[Callable[[], None]], Callable[[], None]]
"""Records the work that a function launches, without running it, and returns a function that runs it."""


@dataclass(frozen=True)
class _Step:
    """A captured step."""

    inputs: list[Tensor]  # the tensors it reads; arguments of later calls are copied here
    args: tuple[Any, ...]  # kept alive, because a graph holds addresses only
    replay: Callable[[], None]


_State = Literal["new", "once", "never"]
"""A step without a graph: not called yet, called once, or impossible to capture."""


class Captured:
    """Calls a step directly the first time, which also loads its kernels, captures it the second time, then replays it.

    So a shape that occurs once costs no capture, and no step runs twice. Steps return a tensor or a list of tensors,
    whose memory is shared by all results of the same shape: copy what is kept beyond the next call. State that a step
    reads or writes besides its tensor arguments must stay at its address and be written in place.

    Args:
        inner: calls a step where it is not replayed.
        capture: records a step on the device.
    """

    can_reshape = results_persist = False

    def __init__(self, inner: Caller, capture: Capture) -> None:
        self._inner, self._capture = inner, capture
        self._uncompiled = None if isinstance(inner, Eager) else Captured(Eager(), capture)
        self._steps: RecentlyUsed[_Step | _State] = RecentlyUsed()
        self._results: dict[Hashable, Any] = {}

    @property
    def uncompiled(self) -> Captured:
        return self if self._uncompiled is None else self._uncompiled

    def size(self, needed: int) -> int:
        """Rounds up by at most an eighth of the size, which limits both unused slots and the number of graphs."""
        eighth = max(64, power_of_two(needed) // 16)
        return max(self._inner.size(needed), -(-needed // eighth) * eighth)

    def rows(self, requests: int, batch_size: int) -> int:
        return min(batch_size, power_of_two(requests))

    def __call__(self, key: GraphKey, function: Callable[..., Any], *args: Any) -> Any:
        step_id = function, key
        step = self._steps.get(step_id, lambda: "new")
        if step == "once":
            step = self._capture_step(key, function, args) or "never"
        if isinstance(step, _Step):
            result = self._replay(step, key, function, args)
        elif step == "new":
            step, result = self._call_first(key, function, args)
        else:
            result = self._call(key, function, args)
        self._steps.put(step_id, step)
        return result

    def __len__(self) -> int:
        """Number of graphs."""
        return sum(isinstance(step, _Step) for step in self._steps.values())

    def _call_first(self, key: GraphKey, function: Callable[..., Any], args: tuple[Any, ...]) -> tuple[_State, Any]:
        """Calls a step directly; the state returned says whether the next call may capture it."""
        if not isinstance(self._inner, Eager):
            return "once", self._call(key, function, args)  # a step compiled as one full graph reads no values
        with HostSyncDetector() as detector:
            result = self._call(key, function, args)
        if detector.at is None:
            return "once", result
        _warn(function, f"{detector.at} waits for a value")
        return "never", result

    def _replay(self, step: _Step, key: GraphKey, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        for captured, passed in zip(step.inputs, _tensors(args), strict=True):
            if captured is not passed:
                captured.copy_(passed)
        step.replay()
        return self._results[function, key.shape]

    def _capture_step(self, key: GraphKey, function: Callable[..., Any], args: tuple[Any, ...]) -> _Step | None:
        """Captures a step; None, after a warning, where that fails."""
        try:
            with capturing():
                replay = self._capture(lambda: self._call(key, function, args))
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            _warn(function, str(error.__context__ or error))
            return None
        return _Step(_tensors(args), args, replay)

    def _call(self, key: GraphKey, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Calls the step directly, and copies its result to the memory that results of its shape share."""
        result, shape = self._inner(key, function, *args), (function, key.shape)
        if shape not in self._results:
            self._results[shape] = result.clone() if isinstance(result, Tensor) else [one.clone() for one in result]
        else:
            for shared, new in zip(_tensors([self._results[shape]]), _tensors([result]), strict=True):
                shared.copy_(new)
        return self._results[shape]


def _warn(function: Callable[..., Any], reason: str) -> None:
    one_line = " ".join(reason.split())
    warnings.warn(
        f"step {function.__name__!r} cannot be captured as a graph, so rounds are slower: {one_line:.200}", stacklevel=2
    )


def _tensors(values: Iterable[Any]) -> list[Tensor]:
    """The tensors among the values and inside lists among them."""
    lists = (value if isinstance(value, list) else [value] for value in values)
    return [item for items in lists for item in items if isinstance(item, Tensor)]
