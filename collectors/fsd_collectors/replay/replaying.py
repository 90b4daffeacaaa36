"""What decoding would do at another threshold, rule, length or stop policy, worked out from traces along the target.

Knows rules, thresholds and lengths as users give them, and what comes back. The counting is in `gaps.py` and
`lockstep.py`.

What the numbers mean. Every row of such a trace is one place of the target's own text with the token the draft
would propose there, so it is known exactly which of them a rule accepts at T. Rounds are laid over that text. As long
as decoding writes the target's text, they are its rounds, one for one. Where a fuzzy acceptance puts another token in
place of the target's (a **substitution**), real decoding goes on from there in another text, and replay goes on in
the target's: its counts hold on average as far as draft and target agree in such texts as they do in the target's own,
so they drift as substitutions grow. Sampled `sd` and `fsd-sd` draw tokens of their own even where they lose nothing:
then too the rounds are right on average only, but those tokens are no substitutions; `sd` and `coupled` have none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from fsd_collectors.replay.blocks import CACHED_ROWS, Array, Block, Traces, blocks
from fsd_collectors.replay.cases import Case, Thresholds, cases, check_lengths, grades_of
from fsd_collectors.replay.cost import CostModel
from fsd_collectors.replay.counting import STEPPED_ROWS, Walk, count_gaps, count_steps, walk
from fsd_collectors.replay.rounds import RoundPolicy, walk_rounds
from fsd_collectors.replay.stop_policy import Policy, reach

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Replayed:
    """Sums over completions.

    divergence, threshold: None for a rule that has none. tokens: emitted, those of the target's text. drafted: what
    the drafts of all rounds come to; they go on beyond the text's end, and what follows a rejected token there is
    not known: with a policy it is taken from the target's text, of which a draft is surer than of what it would have
    gone on to (for `coupled` on the bundled pair up to 8 % too many at L = 10, under 1 % at L = 5).
    tokens_per_round_error: standard error of `tokens_per_round` over completions (ratio estimator); NaN with a
    single one.
    """

    rule: str
    divergence: str | None
    threshold: float | None
    draft_length: int
    completions: int
    tokens: int
    rounds: int
    drafted: int
    substitutions: int
    tokens_per_round_error: float

    @property
    def tokens_per_round(self) -> float:
        return self.tokens / self.rounds

    @property
    def substitutions_per_completion(self) -> float:
        return self.substitutions / self.completions

    def tokens_per_second(self, costs: CostModel) -> float:
        return float(costs.tokens_per_second(self.tokens, self.rounds, self.drafted))


def replay(
    traces: Traces,
    rule: str = "fsd-coupled",
    divergence: str = "js",
    threshold: float = 0.1,
    draft_length: int = 5,
    stops: Policy | RoundPolicy | None = None,
    where: Any = None,
) -> Replayed:
    """One configuration over the completions that `where` chooses, as `traces.batches` takes it.

    `sd` and `coupled` have no use for `divergence` and `threshold`.

    Raises:
        UsageError: the rule cannot be replayed, the traces are not along the target, hold no such divergence or
            no rows; a threshold is NaN, a length below 1.
    """
    lengths = check_lengths([draft_length])
    (case,) = cases(traces, [rule], [divergence], [threshold], where)
    sums = np.zeros(3, np.int64)  # rounds, drafted tokens, substitutions
    moments = np.zeros((3, 3))  # of 1, tokens, rounds of a completion
    for block in blocks(traces, _columns([case], stops), where, STEPPED_ROWS):
        walked = _walker(stops, block, draft_length)(case, np.zeros(1, int), lengths)
        sums += [walked.rounds.sum(), walked.drafted.sum(), walked.substitutions.sum()]
        each = np.stack([np.ones(len(block.starts)), block.ends - block.starts, walked.rounds[0, 0]])
        moments += each @ each.T
    completions, tokens = (int(total) for total in moments[0, :2])
    rounds, drafted, substitutions = sums.tolist()
    return Replayed(
        rule=rule,
        divergence=case.divergence,
        threshold=None if case.divergence is None else float(threshold),
        draft_length=draft_length,
        completions=completions,
        tokens=tokens,
        rounds=rounds,
        drafted=drafted,
        substitutions=substitutions,
        tokens_per_round_error=_ratio_error(moments),
    )


def sweep(
    traces: Traces,
    rules: Sequence[str] = ("fsd-coupled",),
    divergences: Sequence[str] = ("js",),
    thresholds: Thresholds = 50,
    draft_lengths: Sequence[int] = range(1, 9),
    stops: Policy | RoundPolicy | None = None,
    where: Any = None,
    costs: CostModel | None = None,
) -> pd.DataFrame:
    """Every combination in one pass over the traces, out of core; fixed lengths cost little more than one.

    Args:
        thresholds: for all divergences, or by divergence, or how many quantiles of each (`quantiles.even_shares`; they
            take a pass of their own each). Equal ones count once.
        costs: adds `tokens_per_second`.

    Returns:
        a row for each rule, divergence, threshold (rising) and length, with what `Replayed` holds, less its error.
        Rules without a threshold have one row a length, `divergence` None and `threshold` NaN.

    Raises:
        UsageError: as `replay`.
    """
    lengths, asked = check_lengths(draft_lengths), cases(traces, rules, divergences, thresholds, where)
    sums = [np.zeros((3, len(case.thresholds), len(lengths)), np.int64) for case in asked]
    completions = tokens = 0
    for block in blocks(traces, _columns(asked, stops), where, CACHED_ROWS if stops is None else STEPPED_ROWS):
        completions, tokens = completions + len(block.starts), tokens + block.rows
        walker = None if stops is None else _walker(stops, block, int(lengths.max()))
        for total, case in zip(sums, asked, strict=True):
            if walker is None:
                total += count_gaps(grades_of(case, block), block, len(case.thresholds), lengths)
            else:
                total += count_steps(partial(walker, case), len(block.starts), len(case.thresholds), lengths)
    parts = [_cells(case, lengths, counts) for case, counts in zip(asked, sums, strict=True)]
    return _with_rates(parts, completions, tokens, costs)


def _columns(asked: Sequence[Case], stops: Policy | RoundPolicy | None) -> list[str]:
    return [name for case in asked for name in case.columns] + list(stops.columns if stops else ())


def _walker(stops: Policy | RoundPolicy | None, block: Block, most: int) -> Callable[[Case, Array, Array], Walk]:
    """Walks the block for a case, at places of its thresholds, with lengths."""
    if isinstance(stops, RoundPolicy):
        return lambda case, ks, lengths: walk_rounds(case, block, stops, ks, lengths)
    drafts = reach(stops, block, most)
    return lambda case, ks, lengths: walk(grades_of(case, block), block, drafts, ks, lengths)


def _cells(case: Case, lengths: Array, counts: Array) -> dict[str, Any]:
    """Columns of the case's rows, thresholds slower than lengths."""
    cells = len(case.thresholds) * len(lengths)
    shown = case.thresholds if case.divergence is not None else np.array([math.nan])
    return {
        "rule": [case.rule] * cells,
        "divergence": [case.divergence] * cells,
        "threshold": np.repeat(shown, len(lengths)),
        "draft_length": np.tile(lengths, len(case.thresholds)),
        **dict(zip(("rounds", "drafted", "substitutions"), counts.reshape(3, -1), strict=True)),
    }


def _with_rates(
    parts: Sequence[dict[str, Any]], completions: int, tokens: int, costs: CostModel | None
) -> pd.DataFrame:
    import pandas as pd

    frame = pd.concat([pd.DataFrame(part) for part in parts], ignore_index=True)
    frame.insert(4, "completions", completions)
    frame.insert(5, "tokens", tokens)
    frame["tokens_per_round"] = frame["tokens"] / frame["rounds"]
    frame["substitutions_per_completion"] = frame["substitutions"] / frame["completions"]
    if costs is not None:
        frame["tokens_per_second"] = costs.tokens_per_second(frame["tokens"], frame["rounds"], frame["drafted"])
    return frame


def _ratio_error(moments: Array) -> float:
    """Of tokens over rounds, from sums of products of (1, tokens, rounds): (3, 3). Cochran (1977), 6.4."""
    completions, tokens, rounds = moments[0]
    if completions < 2:
        return math.nan
    weights = np.array([0.0, 1.0, -tokens / rounds])  # a completion's residual: tokens - ratio * rounds
    residuals = max(0.0, float(weights @ moments @ weights))
    return math.sqrt(residuals * completions / (completions - 1)) / float(rounds)
