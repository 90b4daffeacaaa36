"""The draft phase of a round under a stop policy, which decides after each step whether to draft another token.

The host needs the policy's answer before the next draft step. `Steps` computes a draft step when
its logits are needed; `StepsAhead` computes one step ahead, so that the device works while the host waits for the
answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

from torch import Tensor

from fsd_decoding.batch import Batch, Row
from fsd_decoding.policies.stopping import Answer, DraftState, StopPolicy, as_bools
from fsd_decoding.tensors import to_device


class Steps:
    """Draft steps of one round, each computed when its logits are needed.

    Args:
        take: computes step 0, 1, … and returns its logits (B, 1, V).
        draft_length: the largest number of steps.
    """

    def __init__(self, take: Callable[[int], Tensor], draft_length: int) -> None:
        self._take, self._draft_length = take, draft_length
        self._logits: list[Tensor] = []

    @contextmanager
    def readable(self, count: int) -> Iterator[list[Tensor]]:
        """Yields the logits of the first `count` steps, which may be read inside the context."""
        self._compute(count)
        yield self._logits[:count]

    def end(self, count: int) -> list[Tensor]:
        """Ends the draft after `count` steps and returns their logits.

        Step 0 is computed even for `count` 0, because the drafter reads the last round's tokens in it.
        """
        self._compute(1)
        return self._logits[:count]

    def _compute(self, count: int) -> None:
        while len(self._logits) < min(count, self._draft_length):
            self._logits.append(self._take(len(self._logits)))


class SideStream(Protocol):
    """A second stream of work beside the one that steps run on; see `graphs.capture.CudaSideStream`."""

    def mark(self) -> Any:
        """Marks the end of the work that is queued on the main stream."""

    def run_after(self, mark: Any) -> AbstractContextManager[None]:
        """Inside, work goes to the side stream, ordered after the mark."""

    def wait_for(self, mark: Any) -> None:
        """Orders the main stream's further work after the mark."""

    def join(self) -> None:
        """Orders the main stream's further work after the side stream's work so far."""


class StepsAhead(Steps):
    """Draft steps of one round, each computed before the policy is asked about the previous one.

    At the end of a draft one step was computed in vain; the draft itself is the same. The policy's work runs on the
    side stream, ordered after the steps it may read but not after the next one.
    """

    def __init__(self, take: Callable[[int], Tensor], draft_length: int, side: SideStream) -> None:
        super().__init__(take, draft_length)
        self._side = side
        self._marks = [side.mark()]  # entry n: after the first n steps

    @contextmanager
    def readable(self, count: int) -> Iterator[list[Tensor]]:
        self._compute(count + 1)
        with self._side.run_after(self._marks[count]):
            yield self._logits[:count]

    def end(self, count: int) -> list[Tensor]:
        self._side.join()  # before the memory that the policy read is written again
        return super().end(count)

    def _compute(self, count: int) -> None:
        while len(self._logits) < min(count, self._draft_length):
            super()._compute(len(self._logits) + 1)
            self._marks.append(self._side.mark())


def draft_until(
    policy: StopPolicy, rows: Sequence[Row | None], batch: Batch, draft_length: int, steps: Steps
) -> tuple[list[Tensor], Tensor]:
    """Drafts up to `draft_length` tokens per row, until the policy has stopped every row.

    Returns the logits of the steps, and the number of tokens (B,) that each row proposes.

    Which rows have stopped is kept on the host. A policy that answers with host values costs no synchronisation; for
    any other one the host waits for the device, which `StepsAhead` keeps busy meanwhile.
    """
    lengths = [row.draft_length if row else 0 for row in rows]
    counts, going = [0] * len(rows), [True] * len(rows)

    def select_active(answer: Answer) -> list[bool]:
        """The rows that are still drafting and selected by the answer."""
        return [active and chosen for active, chosen in zip(going, as_bools(answer, len(rows)), strict=True)]

    for step in range(draft_length):
        going = [active and step < L for active, L in zip(going, lengths, strict=True)]
        with steps.readable(step) as logits:
            going = select_active(policy.goes_on(DraftState(batch, logits, rows, going)))
        if not any(going):
            break
        counts = [count + drafts for count, drafts in zip(counts, going, strict=True)]
        with steps.readable(step + 1) as logits:
            withheld = policy.withholds(DraftState(batch, logits, rows, going))
            dropped = None if withheld is None else select_active(withheld)
        if dropped is not None:
            counts = [count - drops for count, drops in zip(counts, dropped, strict=True)]
            going = [active and not drops for active, drops in zip(going, dropped, strict=True)]
            if not any(going):
                break
    drafted = steps.end(max(counts))  # a step whose token every row withheld need not be verified
    return drafted, to_device(counts, batch.lengths.device)
