"""Training rows for the models of acceptance, from traces along the target.

Decoding is simulated over every completion, history included, at T < 0 and at thresholds drawn for each completion
evenly in logit(u); each draft has a random length. `examples.py` turns the rounds into labelled rows.
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
from fsd_collectors.replay.rounds import Lanes, RoundPolicy, lanes_of, simulate_rounds
from fsd_common.errors import UsageError
from fsd_predictors.datasets.examples import CEILING, ExampleMaker
from fsd_predictors.datasets.sample import Sample
from fsd_predictors.features.features import NO_HISTORY
from fsd_predictors.features.from_traces import COLUMNS, STATE, states_of, updated_history
from fsd_predictors.features.share_scale import ShareScale
from fsd_predictors.features.token_kinds import TokenKinds

_LOSSLESS = -1.0
_LEAST = math.log(0.1 / 0.9)  # logit of the smallest share drawn: below it D accepts what is accepted anyway

Thresholds = int | Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class Rows:
    """n examples of a_j, `accepting`, and m of b_{j+1}, `next`.

    The threshold's share, the divergence and the step are among the features.
    """

    accepting: Array  # (n, features)
    accepted: Array  # (n,) bool
    next: Array  # (m, features)
    next_accepted: Array  # (m,) bool
    problem: Array  # (n,) ids
    next_problem: Array  # (m,) ids
    hidden: Array | None  # (n, H) the draft's hidden state that gave the last q
    next_hidden: Array | None  # (m, H)

    def joined(self) -> Rows:
        """Returns the rows as models read them: with the hidden states, where there are any, after the features."""
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
    """Makes the training rows of the problems (all by default) for every divergence of the scale.

    Args:
        traces: traces along the target.
        rule: a fuzzy acceptance rule.
        scale: scale of T, whose divergences are used.
        kinds: token kinds of the traces' tokenizer.
        problems: ids of the problems to use.
        most: length of the longest draft.
        thresholds: number of thresholds drawn for each completion, or the thresholds by divergence; divergences not
            named there are left out.
        seed: seed of the thresholds, the draft lengths and the sample.
        limit: maximum number of rows of each model; beyond it a random sample of whole rounds is kept.
        ceiling: adds the features `examples.CEILING`.
        hidden: adds the draft's hidden states, which the traces must hold.

    Raises:
        UsageError: the traces are not along the target, lack a divergence or hold no rows; the rule cannot be
            replayed or has no threshold.
    """
    where = None if problems is None else pc.field("problem").isin(list(problems))
    selected = _cases(traces, rule, scale, thresholds, where)
    random, sample = np.random.default_rng(seed), Sample(limit)
    extra = [*(CEILING if ceiling else ()), *([STATE] if hidden else ())]
    columns = ["problem", *(name for case in selected for name in case.columns), *COLUMNS, *extra]
    for block in blocks(traces, columns, where, STEPPED_ROWS):
        carried = _carried(block)
        for case in selected:
            lanes = _lanes(case, block, scale, check_lengths([most]), thresholds, random)
            _add(sample, ExampleMaker(case, block, scale, kinds, ceiling), lanes, carried, random)
    a, b = sample.columns("accepting"), sample.columns("next")
    return Rows(
        a["values"], a["accepted"], b["values"], b["accepted"], a["problem"], b["problem"],
        a.get("hidden"), b.get("hidden"),
    )  # fmt: skip


def _cases(traces: Traces, rule: str, scale: ShareScale, thresholds: Thresholds, where: Any) -> list[Case]:
    if isinstance(thresholds, int) and thresholds < 1:
        raise UsageError(f"thresholds={thresholds}; it must be a number of 1 or more, or thresholds by divergence")
    names = scale.divergences if isinstance(thresholds, int) else tuple(thresholds)
    for name in names:
        scale.index(name)
    selected = cases(traces, [rule], names, [_LOSSLESS], where)
    if selected[0].divergence is None:
        raise UsageError(f"rule {rule!r} has no threshold; train for a fuzzy rule, which is lossless at T < 0 too")
    return selected


def _lanes(
    case: Case, block: Block, scale: ShareScale, most: Array, thresholds: Thresholds, random: np.random.Generator
) -> Lanes:
    """Returns a lane for every completion at each of its thresholds."""
    assert case.divergence is not None
    if isinstance(thresholds, int):
        each = _draw_thresholds(case.divergence, thresholds, len(block.starts), scale, random)
    else:
        each = np.repeat(np.asarray(thresholds[case.divergence], np.float64)[:, None], len(block.starts), 1)
    return replace(lanes_of(block, each[:, 0], most), thresholds=each.ravel())


def _draw_thresholds(
    divergence: str, count: int, completions: int, scale: ShareScale, random: np.random.Generator
) -> Array:
    """Draws thresholds (count, completions): T < 0, and one from each of count - 1 equal intervals of logit(u)."""
    parts = (np.arange(count - 1)[:, None] + random.random((count - 1, completions))) / max(1, count - 1)
    least, most = scale.ends(divergence)
    least = min(max(least, _LEAST), most)
    fuzzy = scale.thresholds_of(divergence, least + parts * (most - least))
    return np.concatenate([np.full((1, completions), _LOSSLESS), fuzzy])


def _add(
    sample: Sample, maker: ExampleMaker, lanes: Lanes, carried: Mapping[str, Array], random: np.random.Generator
) -> None:
    """Adds the examples of all rounds over the lanes, each with the `carried` columns (rows, …) of its row."""
    policy = RoundPolicy((), lambda starts: random.integers(1, starts.lanes.most + 1), NO_HISTORY, updated_history)
    for rounds in simulate_rounds(maker.case, maker.block, lanes, policy):
        keys = random.random(len(rounds.lanes))
        for examples in maker(rounds, np.flatnonzero(keys < sample.below)):
            columns = {"values": examples.values, "accepted": examples.accepted}
            columns |= {name: column[examples.at] for name, column in carried.items()}
            sample.add(examples.forecast, keys[examples.rounds], columns)


def _carried(block: Block) -> dict[str, Array]:
    states = states_of(block.columns)
    return {"problem": block.columns["problem"]} | ({} if states is None else {"hidden": states})
