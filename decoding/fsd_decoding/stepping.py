"""When draft steps are taken under a stop policy: as they are asked for, or one ahead of the question.

Knows neither what a step does nor what a policy asks, nor what a device's streams are (`cuda.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

from torch import Tensor


class Steps:
    """Takes a step when its logits are to be seen.

    Args:
        take: takes step 0, 1, … and returns its logits (B, 1, V).
        most: steps there may be.
    """

    def __init__(self, take: Callable[[int], Tensor], most: int) -> None:
        self._take, self._most = take, most
        self._logits: list[Tensor] = []

    @contextmanager
    def seen(self, count: int) -> Iterator[list[Tensor]]:
        """Within, the first `count` steps may be looked at."""
        self._reach(count)
        yield self._logits[:count]

    def end(self, count: int) -> list[Tensor]:
        """No more questions; the first `count` steps are drafted.

        Step 0 is taken even then: the drafter reads on in it, or would miss tokens for good.
        """
        self._reach(1)
        return self._logits[:count]

    def _reach(self, count: int) -> None:
        while len(self._logits) < min(count, self._most):
            self._logits.append(self._take(len(self._logits)))


class Side(Protocol):
    """A place for work beside that of steps; see `cuda.SideStream`."""

    def mark(self) -> Any: ...
    def behind(self, mark: Any) -> AbstractContextManager[None]: ...
    def after(self, mark: Any) -> None: ...
    def join(self) -> None: ...


class StepsAhead(Steps):
    """Takes the next step before a policy is asked about the last one: the host awaits the answer while the device
    works. At the end of a draft one step was in vain; what is drafted stays the same.

    A policy's own work goes to the side, behind the steps it may look at and not behind the next.
    """

    def __init__(self, take: Callable[[int], Tensor], most: int, side: Side) -> None:
        super().__init__(take, most)
        self._side = side
        self._marks = [side.mark()]  # behind so many steps

    @contextmanager
    def seen(self, count: int) -> Iterator[list[Tensor]]:
        self._reach(count + 1)
        with self._side.behind(self._marks[count]):
            yield self._logits[:count]

    def end(self, count: int) -> list[Tensor]:
        self._side.join()  # before the memory it looked at is used again
        return super().end(count)

    def _reach(self, count: int) -> None:
        while len(self._logits) < min(count, self._most):
            super()._reach(len(self._logits) + 1)
            self._marks.append(self._side.mark())
