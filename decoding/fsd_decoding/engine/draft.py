"""The draft phase of a round: ask for q, draw a token, decide whether to go on.

Knows drafters, sampling and when stop policies are asked. Knows nothing of verification or acceptance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from fsd_decoding.batch import Batch
from fsd_decoding.drafters.base import Drafter
from fsd_decoding.policies.stopping import Answer, DraftState, RowFacts, StopPolicy, as_bools
from fsd_decoding.sampling import Sampling
from fsd_decoding.tensors import to_device

# MERGED: """When draft steps are taken under a stop policy: as they are asked for, or one ahead of the question.
#
# Knows neither what a step does nor what a policy asks, nor what a device's streams are (`cuda.py`).
# """


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


@dataclass(frozen=True)
class Draft:
    """What a round drafted: tokens that stand behind the rows' texts.

    A row's first `counts` are proposed; what follows them is rubbish.
    """

    logits: list[Tensor]  # L times (B, 1, V), raw
    counts: Tensor  # (B,)


def draft_steps(drafter: Drafter, batch: Batch, sampling: Sampling, draft_length: int, reach: int) -> list[Tensor]:
    """Drafts `draft_length` = L tokens a row, writes them behind its text and returns L logits (B, 1, V).

    `reach` is at least the largest of `batch.lengths` and L. No step depends on a tensor's value, so the whole
    phase may be one graph.
    """
    return [draft_step(drafter, batch, sampling, step, reach) for step in range(draft_length)]


def draft_step(drafter: Drafter, batch: Batch, sampling: Sampling, step: int, reach: int) -> Tensor:
    """One of them."""
    logits = drafter.logits(batch.tokens, batch.lengths, step, reach)
    positions = batch.lengths[:, None] + step
    drawn = sampling.choose(logits, batch.tokens, batch.keys, positions)
    batch.tokens.scatter_(1, positions, drawn)
    return logits


def draft_until(
    policy: StopPolicy, rows: Sequence[RowFacts | None], batch: Batch, draft_length: int, steps: Steps
) -> Draft:
    """The same under a policy; ends early where it has stopped every row.

    What stops rows is kept on the host. A policy that answers there costs no synchronisation; any other one waits
    for the device, which `StepsAhead` keeps busy meanwhile.
    """
    most = [row.request.draft_length if row else 0 for row in rows]
    counts, going = [0] * len(rows), [True] * len(rows)

    def select_active(answer: Answer) -> list[bool]:
        """Rows that were going on, and are in the answer."""
        return [was and chosen for was, chosen in zip(going, as_bools(answer, len(rows)), strict=True)]

    for step in range(draft_length):
        going = [was and step < L for was, L in zip(going, most, strict=True)]
        with steps.seen(step) as logits:
            going = select_active(policy.goes_on(DraftState(batch, logits, rows, going)))
        if not any(going):
            break
        counts = [count + drafts for count, drafts in zip(counts, going, strict=True)]
        with steps.seen(step + 1) as logits:
            withheld = policy.withholds(DraftState(batch, logits, rows, going))
            dropped = None if withheld is None else select_active(withheld)
        if dropped is not None:
            counts = [count - drops for count, drops in zip(counts, dropped, strict=True)]
            going = [was and not drops for was, drops in zip(going, dropped, strict=True)]
            if not any(going):
                break
    drafted = steps.end(max(counts))  # what every row withheld need not be verified
    return Draft(drafted, to_device(counts, batch.lengths.device))
