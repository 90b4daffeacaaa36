"""Steps captured once and replayed: all that they launched, at the addresses it had, and no Python.

Knows which tensors a step is given and which it returns. Knows neither what a step does nor how a device captures:
CUDA graphs are in `cuda.py`.
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
from fsd_decoding.graphs.tracing import capturing

Capture = Callable[[Callable[[], None]], Callable[[], None]]
"""Goes through a function without doing what that launches; what it returns does it, whenever it is called."""


_MOST = 256  # steps remembered, most of them with a graph: a server may be asked for any number of temperatures


@dataclass(frozen=True)
class _Step:
    inputs: list[Tensor]  # where it reads what it is given
    holds: tuple[Any, ...]  # whatever else it was given: a graph knows addresses only
    replay: Callable[[], None]


_State = Literal["new", "once", "never"]
"""Of a step without a graph: not called yet, called once, or not to be captured."""


class Captured:
    """Calls a step as it is the first time, which also loads what it needs; captures it the second time; then replays.

    So a shape that comes once costs no capture, and no step ever runs twice. Steps return a tensor or a list of
    them, which lie where the last call of their shape put them: whoever keeps one takes a copy. What else a step
    is given must stay where it is in memory, and be written in place.
    """

    reshapes = keeps = False

    def __init__(self, inner: Caller, capture: Capture) -> None:
        self._inner, self._capture = inner, capture
        self._uncompiled = None if isinstance(inner, Eager) else Captured(Eager(), capture)
        self._steps: dict[Hashable, _Step | _State] = {}  # the latest called last
        self._results: dict[Hashable, Any] = {}

    @property
    def uncompiled(self) -> Captured:
        return self if self._uncompiled is None else self._uncompiled

    def size(self, needed: int) -> int:
        """Steps of an eighth, so that at most that much is read in vain and graphs stay few."""
        eighth = max(64, power_of_two(needed) // 16)
        return max(self._inner.size(needed), -(-needed // eighth) * eighth)

    def rows(self, requests: int, batch_size: int) -> int:
        return min(batch_size, power_of_two(requests))

    def __call__(self, key: GraphKey, function: Callable[..., Any], *args: Any) -> Any:
        place = function, key
        step = self._steps.pop(place, "new")
        if step == "once":
            step = self._captured(key, function, args) or "never"
        if isinstance(step, _Step):
            made = self._replayed(step, key, function, args)
        elif step == "new":
            step, made = self._tried(key, function, args)
        else:
            made = self._done(key, function, args)
        self._steps[place] = step
        if len(self._steps) > _MOST:
            del self._steps[next(iter(self._steps))]
        return made

    def __len__(self) -> int:
        """How many graphs there are."""
        return sum(isinstance(step, _Step) for step in self._steps.values())

    def _tried(self, key: GraphKey, function: Callable[..., Any], args: tuple[Any, ...]) -> tuple[_State, Any]:
        """The first call, and what it says of the next."""
        if not isinstance(self._inner, Eager):
            return "once", self._done(key, function, args)  # what was compiled as a whole looks at nothing
        with HostSyncDetector() as looked:
            made = self._done(key, function, args)
        if looked.at is None:
            return "once", made
        _warn(function, f"{looked.at} waits for a value")
        return "never", made

    def _replayed(self, step: _Step, key: GraphKey, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        for own, given in zip(step.inputs, _tensors(args), strict=True):
            if own is not given:
                own.copy_(given)
        step.replay()
        return self._results[function, key.shape]

    def _captured(self, key: GraphKey, function: Callable[..., Any], args: tuple[Any, ...]) -> _Step | None:
        try:
            with capturing():
                replay = self._capture(lambda: self._done(key, function, args))
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            _warn(function, str(error.__context__ or error))
            return None
        return _Step(_tensors(args), args, replay)

    def _done(self, key: GraphKey, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Calls the step, and puts what it returns where results of its shape lie."""
        made, shape = self._inner(key, function, *args), (function, key.shape)
        if shape not in self._results:
            self._results[shape] = made.clone() if isinstance(made, Tensor) else [one.clone() for one in made]
        else:
            for own, new in zip(_tensors([self._results[shape]]), _tensors([made]), strict=True):
                own.copy_(new)
        return self._results[shape]


def _warn(function: Callable[..., Any], reason: str) -> None:
    shown = " ".join(reason.split())
    warnings.warn(f"{function.__name__} cannot be captured, so that rounds are slower: {shown:.200}", stacklevel=2)


def _tensors(values: Iterable[Any]) -> list[Tensor]:
    """Those among the values, and in lists among them."""
    lists = (value if isinstance(value, list) else [value] for value in values)
    return [one for some in lists for one in some if isinstance(one, Tensor)]
