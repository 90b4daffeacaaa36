"""Training rows for the models of acceptance, from traces along the target.

Decoding is simulated over every completion, history included, at T < 0 and at thresholds drawn for each completion
evenly in logit(u); each draft has a random length. There is one example of a_j for each drafted token that verification
reached, all tokens before it being accepted, and one of b_{j+1} for each accepted token, labelled by the text's next
row. Tokens after one that ends the text do not count: there b is false and the round gives no further examples. The row
after a text's last one is not in the traces, so the last token is an example of b only where it ends the text.

Only problems of the tuning part are used: a certificate must not rest on problems that the predictor was trained on.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow.compute as pc

from fsd_collectors.replay.blocks import Array, Block, Traces, blocks
from fsd_collectors.replay.cases import Case, cases, check_lengths
from fsd_collectors.replay.counting import STEPPED_ROWS
from fsd_collectors.replay.rounds import (
    DraftVerifier,
    Lanes,
    RoundPolicy,
    Rounds,
    lanes_of,
    simulate_rounds,
)
from fsd_collectors.store import reading
from fsd_common.argument_checks import named
from fsd_common.errors import UsageError
from fsd_predictors.features import (
    COLUMNS,
    FEATURES,
    NO_HISTORY,
    ROLES,
    STATE,
    Forecast,
    TokenKinds,
    drafted,
    feature_values,
    matrix,
    round_context,
    states_of,
    updated_history,
)
from fsd_predictors.share_scale import ShareScale

LEAST = 50  # problems: with fewer, the calibration and the evaluation are noise
_TUNING = ("split", "==", "tuning")

_SALT = b"fsd-calib/predictor/1\n"
_CALIBRATION, _EVALUATION = 0.2, 0.2  # shares


@dataclass(frozen=True)
class ProblemSplit:
    """Ids of the problems of each part; the parts are disjoint."""

    training: tuple[int, ...]
    calibration: tuple[int, ...]
    evaluation: tuple[int, ...]


def split_problems(traces: reading.Traces, limit: int | None = None) -> ProblemSplit:
    """Splits the first `limit` tuning problems of the traces by a hash of their ids.

    Raises:
        UsageError: there are too few.
    """
    table = traces.to_pandas(["problem"], where=[_TUNING], table="completions")
    ids = [int(each) for each in table["problem"].unique()[:limit]]
    if len(ids) < LEAST:
        within = "" if limit is None else f" within {named('limit')}"
        raise UsageError(
            f"the traces hold {len(ids)} problems of the tuning part{within}; a "
            f"predictor needs at least {LEAST}, better 1000: collect more with fsd-collect"
        )
    ids.sort(key=lambda problem: hashlib.sha256(_SALT + str(problem).encode()).digest())
    # shares of the sorted ids: exact even where there are few
    first, second = round(len(ids) * (1 - _CALIBRATION - _EVALUATION)), round(len(ids) * (1 - _EVALUATION))
    return ProblemSplit(tuple(ids[:first]), tuple(ids[first:second]), tuple(ids[second:]))


def problem_filter(ids: Sequence[int]) -> list[tuple[str, str, Any]]:
    """Returns the `where` of `Traces.batches` that selects the rows of these problems."""
    return [("problem", "in", list(ids))]


_KEY = "key"


class Sample:
    """Named tables of rows, of which the largest keeps at most `limit` rows.

    `below` bounds the keys: groups whose key is not smaller need not be added any more.
    """

    def __init__(self, limit: int) -> None:
        self.below = 1.0
        self._limit = limit
        self._tables: dict[str, list[Mapping[str, Array]]] = {}

    def add(self, table: str, keys: Array, columns: Mapping[str, Array]) -> None:
        """Adds rows to a table.

        Args:
            keys: (n,) keys of the rows' groups, in [0, 1).
            columns: (n, …) each; the same names in every call.
        """
        parts = self._tables.setdefault(table, [])
        parts.append({_KEY: keys, **columns})
        if sum(len(part[_KEY]) for part in parts) > 2 * self._limit:
            self._thin()

    def columns(self, table: str) -> Mapping[str, Array]:
        """Returns the kept rows of a table, with their keys."""
        self._thin()
        return self._tables[table][0]

    def _thin(self) -> None:
        whole = {table: _joined(parts) for table, parts in self._tables.items()}
        for columns in whole.values():
            if len(keys := columns[_KEY]) > self._limit:
                self.below = min(self.below, float(np.partition(keys, self._limit)[self._limit]))
        self._tables = {table: [_below(columns, self.below)] for table, columns in whole.items()}


def _joined(parts: list[Mapping[str, Array]]) -> Mapping[str, Array]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _below(columns: Mapping[str, Array], key: float) -> Mapping[str, Array]:
    kept = columns[_KEY] < key
    return columns if kept.all() else {name: column[kept] for name, column in columns.items()}


@dataclass(frozen=True)
class Examples:
    """n examples of one forecast."""

    forecast: Forecast
    values: Array  # (n, features)
    accepted: Array  # (n,) bool
    at: Array  # (n,) row of the last drafted token
    rounds: Array  # (n,) index of the example's round


@dataclass(frozen=True)
class ExampleMaker:
    """Makes examples of rounds over a block."""

    case: Case
    block: Block
    scale: ShareScale
    kinds: TokenKinds

    def __call__(self, rounds: Rounds, chosen: Array) -> Iterator[Examples]:
        """Yields the examples of the rounds at indices `chosen` (c,), one step of the drafts after another."""
        verified, going, step = rounds.verified, chosen, 0
        while len(going := going[self._has_token(rounds, going, step)]):
            starts, accepted = rounds.starts.select(going), verified.accepted[going] > step
            steps = [drafted(self.block.columns, starts.rows + i, self.kinds) for i in range(step + 1)]
            values = matrix(feature_values(steps, round_context(starts, self.scale)))
            at, ends = starts.rows + step, values[:, FEATURES.index("ends")] > 0
            yield Examples("accepting", values, accepted, at, going)
            following = np.minimum(at + 1, starts.lanes.ends - 1)
            next_accepted = ~ends & self._verifier.accepts(following, starts.lanes.thresholds)
            kept = np.flatnonzero(accepted & (ends | (at + 1 < starts.lanes.ends)))
            yield Examples("next", values[kept], next_accepted[kept], at[kept], going[kept])
            going, step = going[accepted & ~ends], step + 1

    @cached_property
    def _verifier(self) -> DraftVerifier:
        return DraftVerifier(self.case, self.block)

    def _has_token(self, rounds: Rounds, chosen: Array, step: int) -> Array:
        """Returns whether the draft of each chosen round has a token at this step, within the text."""
        starts = rounds.starts
        return (rounds.verified.drafted[chosen] > step) & (starts.rows[chosen] + step < starts.lanes.ends[chosen])


_LOSSLESS = -1.0
_LEAST = math.log(0.1 / 0.9)  # logit of the smallest share drawn: below it D accepts what is accepted anyway

Thresholds = int | Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class Rows:
    """n examples of one forecast; the threshold's share, the score and the step are among the features."""

    values: Array  # (n, features)
    accepted: Array  # (n,) bool labels
    problem: Array  # (n,) ids
    hidden: Array | None = None  # (n, H) the draft's hidden state that gave the last q

    def joined(self) -> Rows:
        """Returns the rows as models read them: with the hidden states, where there are any, after the features."""
        return self if self.hidden is None else replace(self, values=np.column_stack([self.values, self.hidden]))


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
    hidden: bool = False,
) -> dict[Forecast, Rows]:
    """Makes the training rows of the problems (all by default) for every score of the scale.

    Args:
        traces: traces along the target.
        rule: a fuzzy acceptance rule.
        scale: scale of T, whose scores are used.
        kinds: token kinds of the traces' tokenizer.
        problems: ids of the problems to use.
        most: length of the longest draft.
        thresholds: number of thresholds drawn for each completion, or the thresholds by score; scores not
            named there are left out.
        seed: seed of the thresholds, the draft lengths and the sample.
        limit: maximum number of rows of each model; beyond it a random sample of whole rounds is kept.
        hidden: adds the draft's hidden states, which the traces must hold.

    Raises:
        UsageError: the traces are not along the target, lack a score or hold no rows; the rule cannot be
            replayed or has no threshold.
    """
    where = None if problems is None else pc.field("problem").isin(list(problems))
    selected = _cases(traces, rule, scale, thresholds, where)
    random, sample = np.random.default_rng(seed), Sample(limit)
    columns = ["problem", *(name for case in selected for name in case.columns), *COLUMNS, *([STATE] if hidden else ())]
    for block in blocks(traces, columns, where, STEPPED_ROWS):
        carried = _carried(block)
        for case in selected:
            lanes = _lanes(case, block, scale, check_lengths([most]), thresholds, random)
            _add(sample, ExampleMaker(case, block, scale, kinds), lanes, carried, random)
    kept = {forecast: sample.columns(forecast) for forecast in ROLES}
    return {
        forecast: Rows(of["values"], of["accepted"], of["problem"], of.get("hidden")) for forecast, of in kept.items()
    }


def _cases(traces: Traces, rule: str, scale: ShareScale, thresholds: Thresholds, where: Any) -> list[Case]:
    if isinstance(thresholds, int) and thresholds < 1:
        raise UsageError(f"thresholds={thresholds}; it must be a number of 1 or more, or thresholds by score")
    names = scale.scores if isinstance(thresholds, int) else tuple(thresholds)
    for name in names:
        scale.index(name)
    selected = cases(traces, [rule], names, [_LOSSLESS], where)
    if selected[0].score is None:
        raise UsageError(f"rule {rule!r} has no threshold; train for a fuzzy rule, which is lossless at T < 0 too")
    return selected


def _lanes(
    case: Case, block: Block, scale: ShareScale, most: Array, thresholds: Thresholds, random: np.random.Generator
) -> Lanes:
    """Returns a lane for every completion at each of its thresholds."""
    assert case.score is not None
    if isinstance(thresholds, int):
        each = _draw_thresholds(case.score, thresholds, len(block.starts), scale, random)
    else:
        each = np.repeat(np.asarray(thresholds[case.score], np.float64)[:, None], len(block.starts), 1)
    return replace(lanes_of(block, each[:, 0], most), thresholds=each.ravel())


def _draw_thresholds(score: str, count: int, completions: int, scale: ShareScale, random: np.random.Generator) -> Array:
    """Draws thresholds (count, completions): T < 0, and one from each of count - 1 equal intervals of logit(u)."""
    parts = (np.arange(count - 1)[:, None] + random.random((count - 1, completions))) / max(1, count - 1)
    least, most = scale.ends(score)
    least = min(max(least, _LEAST), most)
    fuzzy = scale.thresholds_of(score, least + parts * (most - least))
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
