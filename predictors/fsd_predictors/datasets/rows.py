"""Rows that models of acceptance are trained on, from traces along the target.

Knows how rounds are laid to make them, at which thresholds, and how many rows are kept. What a row says is
`examples.py`'s.

Rounds are laid over every completion as decoding would lay them, their history included, at T < 0 and at thresholds
drawn for each completion, even in logit(u); each draft is as long as chance has it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow.compute as pc

from fsd_collectors.replay.blocks import Array, Block, Traces, blocks
from fsd_collectors.replay.cases import Case, cases, check_lengths
from fsd_collectors.replay.counting import STEPPED_ROWS
from fsd_collectors.replay.rounds import Lanes, RoundPolicy, lanes_of, lay
from fsd_decoding.errors import UsageError
from fsd_predictors.datasets.examples import CEILING, Examining
from fsd_predictors.datasets.sample import Sample
from fsd_predictors.features.features import NO_HISTORY
from fsd_predictors.features.share_scale import ShareScale
from fsd_predictors.features.token_kinds import TokenKinds
from fsd_predictors.features.traced import COLUMNS, STATE, remembered, states_of

_LOSSLESS = -1.0
_LEAST = math.log(0.1 / 0.9)  # logit of the smallest share that is drawn: below, D accepts what is accepted anyway

Thresholds = int | Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class Rows:
    """Examples of a_j, `accepting`, and of b_{j+1}, `next`.

    T's share, the divergence and the step are among the features. problem, next_problem: (n,) and (m,) ids. hidden,
    next_hidden: (n, H) and (m, H), the draft's state that gave the last q.
    """

    accepting: Array  # (n, features)
    accepted: Array  # (n,) bool
    next: Array  # (m, features)
    next_accepted: Array  # (m,) bool
    problem: Array
    next_problem: Array
    hidden: Array | None
    next_hidden: Array | None

    def joined(self) -> Rows:
        """With the states, where there are any, behind the features, as models read them."""
        if self.hidden is None or self.next_hidden is None:
            return self
        accepting, following = (self.accepting, self.hidden), (self.next, self.next_hidden)
        return replace(self, accepting=np.column_stack(accepting), next=np.column_stack(following))


def training_rows(
    traces: Traces,
    rule: str,
    scale: ShareScale,
    kinds: TokenKinds,
    *,
    problems: Collection[int] | None = None,
    most: int = 16,
    thresholds: Thresholds = 6,
    seed: int = 0,
    limit: int = 300_000,
    ceiling: bool = False,
    hidden: bool = False,
) -> Rows:
    """Rows of the problems (all by default), for every divergence of the scale.

    Args:
        kinds: of the traces' tokenizer.
        most: tokens of the longest draft.
        thresholds: how many a completion, or those of each divergence; then of no other divergence.
        limit: of rows of either kind; of more, those of rounds that chance chooses are kept.
        ceiling: adds `examples.CEILING`.
        hidden: reads the draft's hidden states, which the traces must hold.

    Raises:
        UsageError: the traces are not along the target, hold no such divergence or no rows; the rule cannot be
            replayed or has no threshold.
    """
    where = None if problems is None else pc.field("problem").isin(list(problems))
    asked, random, sample = _cases(traces, rule, scale, thresholds, where), np.random.default_rng(seed), Sample(limit)
    shown = [*(CEILING if ceiling else ()), *([STATE] if hidden else ())]
    columns = ["problem", *(name for case in asked for name in case.columns), *COLUMNS, *shown]
    for block in blocks(traces, columns, where, STEPPED_ROWS):
        carried = _carried(block)
        for case in asked:
            lanes = _lanes(case, block, scale, check_lengths([most]), thresholds, random)
            _add(sample, Examining(case, block, scale, kinds, ceiling), lanes, carried, random)
    a, b = sample.columns("accepting"), sample.columns("next")
    return Rows(
        a["values"], a["accepted"], b["values"], b["accepted"], a["problem"], b["problem"],
        a.get("hidden"), b.get("hidden"),
    )  # fmt: skip


def _cases(traces: Traces, rule: str, scale: ShareScale, thresholds: Thresholds, where: Any) -> list[Case]:
    if isinstance(thresholds, int) and thresholds < 1:
        raise UsageError(f"thresholds={thresholds}; it must be 1 or more a completion, or those of each divergence")
    names = scale.divergences if isinstance(thresholds, int) else tuple(thresholds)
    for name in names:
        scale.index(name)
    asked = cases(traces, [rule], names, [_LOSSLESS], where)
    if asked[0].divergence is None:
        raise UsageError(f"rule {rule!r} has no threshold; train for a fuzzy one, which at T < 0 is lossless too")
    return asked


def _lanes(
    case: Case, block: Block, scale: ShareScale, most: Array, thresholds: Thresholds, random: np.random.Generator
) -> Lanes:
    """Every completion at several thresholds."""
    assert case.divergence is not None
    if isinstance(thresholds, int):
        each = _drawn(case.divergence, thresholds, len(block.starts), scale, random)
    else:
        each = np.repeat(np.asarray(thresholds[case.divergence], np.float64)[:, None], len(block.starts), 1)
    return replace(lanes_of(block, each[:, 0], most), thresholds=each.ravel())


def _drawn(divergence: str, count: int, completions: int, scale: ShareScale, random: np.random.Generator) -> Array:
    """T < 0, and of as many equal parts of logit(u) one T each: (count, completions)."""
    parts = (np.arange(count - 1)[:, None] + random.random((count - 1, completions))) / max(1, count - 1)
    least, most = scale.ends(divergence)
    least = min(max(least, _LEAST), most)
    fuzzy = scale.thresholds_of(divergence, least + parts * (most - least))
    return np.concatenate([np.full((1, completions), _LOSSLESS), fuzzy])


def _add(
    sample: Sample, examining: Examining, lanes: Lanes, carried: Mapping[str, Array], random: np.random.Generator
) -> None:
    """The examples of all rounds over the lanes, with what the block's rows (rows, …) carry."""
    policy = RoundPolicy((), lambda begins: random.integers(1, begins.lanes.most + 1), NO_HISTORY, remembered)
    for laid in lay(examining.case, examining.block, lanes, policy):
        keys = random.random(len(laid.lanes))
        for found in examining(laid, np.flatnonzero(keys < sample.below)):
            columns = {"values": found.values, "accepted": found.accepted}
            columns |= {name: column[found.at] for name, column in carried.items()}
            sample.add(found.forecast, keys[found.rounds], columns)


def _carried(block: Block) -> dict[str, Array]:
    states = states_of(block.columns)
    return {"problem": block.columns["problem"]} | ({} if states is None else {"hidden": states})
