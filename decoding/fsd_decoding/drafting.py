"""The draft phase of a round: ask for q, draw a token, decide whether to go on.

Knows drafters, sampling and when stop policies are asked. Knows nothing of verification or acceptance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fsd_decoding.batch import Batch
from fsd_decoding.drafter import Drafter
from fsd_decoding.sampling import Sampling
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
    return [_step(drafter, batch, sampling, step, reach) for step in range(draft_length)]


def draft_until(
    policy: StopPolicy,
    rows: Sequence[RowFacts | None],
    drafter: Drafter,
    batch: Batch,
    sampling: Sampling,
    draft_length: int,
    reach: int,
) -> Draft:
    """The same under a policy; ends early where it has stopped every row.

    What stops rows is kept on the host, so a policy that answers there costs no synchronisation, and any other one a
    step.
    """
    most = [row.request.draft_length if row else 0 for row in rows]
    logits: list[Tensor] = []
    counts, going = [0] * len(rows), [True] * len(rows)

    def those(answer: Answer) -> list[bool]:
        """Rows that were going on, and are in the answer."""
        return [was and chosen for was, chosen in zip(going, answered(answer, len(rows)), strict=True)]

    for step in range(draft_length):
        going = [was and step < L for was, L in zip(going, most, strict=True)]
        going = those(policy.goes_on(DraftState(batch, logits, rows, going)))
        if not any(going):
            if step == 0:  # the drafter reads on even where it drafts nothing, or it would miss these tokens for good
                drafter.logits(batch.tokens, batch.lengths, step, reach)
            break
        counts = [count + drafts for count, drafts in zip(counts, going, strict=True)]
        logits.append(_step(drafter, batch, sampling, step, reach))
        if (withheld := policy.withholds(DraftState(batch, logits, rows, going))) is not None:
            dropped = those(withheld)
            counts = [count - drops for count, drops in zip(counts, dropped, strict=True)]
            going = [was and not drops for was, drops in zip(going, dropped, strict=True)]
            if not any(going):
                break
    del logits[max(counts) :]  # what every row withheld need not be verified
    return Draft(logits, torch.tensor(counts).to(batch.lengths.device, non_blocking=True))


def _step(drafter: Drafter, batch: Batch, sampling: Sampling, step: int, reach: int) -> Tensor:
    logits = drafter.logits(batch.tokens, batch.lengths, step, reach)
    positions = batch.lengths[:, None] + step
    drawn = sampling.choose(logits, batch.tokens, batch.keys, positions)
    batch.tokens.scatter_(1, positions, drawn)
    return logits
