"""`replay` and `sweep`: what decoding would do at another threshold, rule, draft length or stop policy.

Both simulate rounds over traces along the target. Each row of such traces is a position of the target's own text with
the token that the draft would propose there, so it is known exactly which tokens a rule accepts at T. As long as
decoding would write the target's text, the simulated rounds are those of decoding, one for one.

Where fuzzy acceptance replaces the target's token by another (a substitution), decoding would continue with another
text, while replay continues with the target's. From there on the counts are right on average, as far as draft and
target agree in such texts as often as in the target's own; they drift as substitutions become more frequent. Sampled
`sd` and `fsd-sd` draw tokens of their own even where they accept losslessly: there too the counts are right on average
only, though these tokens are no substitutions. `sd` and `coupled` have no substitutions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fsd_collectors.replay.blocks import CACHED_ROWS, Array, Block, Traces, blocks
from fsd_collectors.replay.cases import Case, Thresholds, acceptance_levels, cases, check_lengths
from fsd_collectors.replay.cost import CostModel
from fsd_collectors.replay.counting import (
    LANES,
    STEPPED_ROWS,
    Policy,
    count_fixed_lengths,
    count_in_lockstep,
    reach,
)
from fsd_collectors.replay.rounds import RoundPolicy, count_with_policy

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Replayed:
    """Result of a replay, summed over completions.

    Args:
        score, threshold: None for a rule that has none.
        tokens: emitted tokens, which are those of the target's text.
        rounds: number of rounds.
        drafted: drafted tokens of all rounds, those beyond the end of a text included, also where it ended by its
            limit, beyond which decoding drafts nothing. With a policy they are an
            estimate: the traces do not hold what a draft would propose after a rejected token, so the target's text
            stands in, of which the draft is more certain than of its own continuation (for `coupled` on the bundled
            pair up to 8 % too many at L = 10, under 1 % at L = 5).
        substitutions: accepted tokens that differ from the target's.
        tokens_per_round_error: standard error of `tokens_per_round` over completions (ratio estimator); NaN with a
            single completion.
    """

    rule: str
    score: str | None
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
    score: str = "js",
    threshold: float = 0.1,
    draft_length: int = 5,
    stops: Policy | RoundPolicy | None = None,
    where: Any = None,
) -> Replayed:
    """Replays one configuration over the completions that `where` selects.

    Args:
        traces: traces along the target.
        rule: acceptance rule, one of `cases.REPLAYABLE`.
        score, threshold: of a fuzzy rule; `sd` and `coupled` ignore them.
        draft_length: L, the largest draft length.
        stops: policy that ends drafts early.
        where: selects whole completions, see `Traces.batches`.

    Raises:
        UsageError: the rule cannot be replayed, the traces are not along the target, lack the score or hold no
            rows; the threshold is NaN, or the draft length below 1.
    """
    lengths = check_lengths([draft_length])
    (case,) = cases(traces, [rule], [score], [threshold], where)
    sums = np.zeros(3, np.int64)  # rounds, drafted tokens, substitutions
    moments = np.zeros((3, 3))  # of 1, tokens, rounds of a completion
    for block in blocks(traces, _columns([case], stops), where, STEPPED_ROWS):
        counts = _counter(stops, block, draft_length)(case, np.zeros(1, int), lengths)
        sums += counts.sum((1, 2, 3))
        each = np.stack([np.ones(len(block.starts)), block.ends - block.starts, counts[0, 0, 0]])
        moments += each @ each.T
    completions, tokens = (int(total) for total in moments[0, :2])
    rounds, drafted, substitutions = sums.tolist()
    return Replayed(
        rule, case.score, None if case.score is None else float(threshold), draft_length, completions, tokens,
        rounds, drafted, substitutions, _ratio_error(moments),
    )  # fmt: skip


def sweep(
    traces: Traces,
    rules: Sequence[str] = ("fsd-coupled",),
    scores: Sequence[str] = ("js",),
    thresholds: Thresholds = 50,
    draft_lengths: Sequence[int] = range(1, 9),
    stops: Policy | RoundPolicy | None = None,
    where: Any = None,
    costs: CostModel | None = None,
) -> pd.DataFrame:
    """Replays every combination in one pass over the traces, out of core.

    Without `stops`, many draft lengths take hardly longer than one.

    Args:
        traces: traces along the target.
        rules: acceptance rules, of `cases.REPLAYABLE`.
        scores: scores of the fuzzy rules.
        thresholds: thresholds for all scores; or thresholds by score; or the number of quantiles of each
            score (at `cases.even_shares`), which take one more pass per score. Duplicates count
            once.
        draft_lengths: largest draft lengths.
        stops: policy that ends drafts early.
        where: selects whole completions, see `Traces.batches`.
        costs: adds the column `tokens_per_second`.

    Returns:
        A row for each rule, score, threshold (rising) and draft length, with the fields of `Replayed` except its
        error. Rules without a threshold have one row per draft length, with `score` None and `threshold` NaN.

    Raises:
        UsageError: as `replay`.
    """
    lengths, selected = check_lengths(draft_lengths), cases(traces, rules, scores, thresholds, where)
    sums = [np.zeros((3, len(case.thresholds), len(lengths)), np.int64) for case in selected]
    completions = tokens = 0
    for block in blocks(traces, _columns(selected, stops), where, CACHED_ROWS if stops is None else STEPPED_ROWS):
        completions, tokens = completions + len(block.starts), tokens + block.rows
        counter = _counter(stops, block, int(lengths.max()))
        for total, case in zip(sums, selected, strict=True):
            if stops is None and not case.window:
                total += count_fixed_lengths(acceptance_levels(case, block), block, len(case.thresholds), lengths)
            else:
                step = max(1, LANES // (len(lengths) * len(block.starts)))
                for k in range(0, len(case.thresholds), step):
                    ks = np.arange(k, min(k + step, len(case.thresholds)))
                    total[:, ks] += counter(case, ks, lengths).sum(-1)
    parts = [_cells(case, lengths, counts) for case, counts in zip(selected, sums, strict=True)]
    return _with_rates(parts, completions, tokens, costs)


def _columns(selected: Sequence[Case], stops: Policy | RoundPolicy | None) -> list[str]:
    return [name for case in selected for name in case.columns] + list(stops.columns if stops else ())


def _counter(stops: Policy | RoundPolicy | None, block: Block, most: int) -> Callable[[Case, Array, Array], Array]:
    """Returns a function that counts a case's rounds in the block, by indices of thresholds and draft lengths.

    It returns rounds, drafted tokens and substitutions: (3, thresholds, lengths, completions).
    """
    if isinstance(stops, RoundPolicy):
        return lambda case, ks, lengths: count_with_policy(case, block, stops, ks, lengths)
    drafts = reach(stops, block, most)
    return lambda case, ks, lengths: count_in_lockstep(
        acceptance_levels(case, block), block, drafts, ks, lengths, case.window
    )


def _cells(case: Case, lengths: Array, counts: Array) -> dict[str, Any]:
    """Returns the columns of the case's rows; draft lengths vary fastest."""
    cells = len(case.thresholds) * len(lengths)
    shown = case.thresholds if case.score is not None else np.array([math.nan])
    return {
        "rule": [case.rule] * cells,
        "score": [case.score] * cells,
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
    """Returns the standard error of the ratio of tokens to rounds (Cochran 1977, section 6.4).

    Args:
        moments: (3, 3) sums over completions of the products of (1, tokens, rounds).
    """
    completions, tokens, rounds = moments[0]
    if completions < 2:
        return math.nan
    weights = np.array([0.0, 1.0, -tokens / rounds])  # residual of a completion: tokens - ratio * rounds
    residuals = max(0.0, float(weights @ moments @ weights))
    return math.sqrt(residuals * completions / (completions - 1)) / float(rounds)
