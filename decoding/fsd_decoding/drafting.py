"""The draft phase of a round: ask for q, draw a token, decide whether to go on.

Knows drafters, sampling and when stop policies are asked. Knows nothing of verification or acceptance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from fsd_decoding.batch import Batch
from fsd_decoding.drafter import Drafter
from fsd_decoding.sampling import Sampling
from fsd_decoding.sending import sent
from fsd_decoding.stepping import Steps
from fsd_decoding.stop_policy import Answer, DraftState, RowFacts, StopPolicy, answered


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

    def those(answer: Answer) -> list[bool]:
        """Rows that were going on, and are in the answer."""
        return [was and chosen for was, chosen in zip(going, answered(answer, len(rows)), strict=True)]

    for step in range(draft_length):
        going = [was and step < L for was, L in zip(going, most, strict=True)]
        with steps.seen(step) as logits:
            going = those(policy.goes_on(DraftState(batch, logits, rows, going)))
        if not any(going):
            break
        counts = [count + drafts for count, drafts in zip(counts, going, strict=True)]
        with steps.seen(step + 1) as logits:
            withheld = policy.withholds(DraftState(batch, logits, rows, going))
            dropped = None if withheld is None else those(withheld)
        if dropped is not None:
            counts = [count - drops for count, drops in zip(counts, dropped, strict=True)]
            going = [was and not drops for was, drops in zip(going, dropped, strict=True)]
            if not any(going):
                break
    drafted = steps.end(max(counts))  # what every row withheld need not be verified
    return Draft(drafted, sent(counts, batch.lengths.device))
