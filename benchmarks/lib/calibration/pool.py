"""A pool of real decodings at every threshold, which takes the place of models.

Making it takes more than an hour: `benchmarks/pool.py` and then `benchmarks/pool_replay.py`, which commit 63a8be76 is
the last to hold. Its files are in `benchmarks/results/pool`, and a test compares some of them with decoding anew.
A text holds for an interval of T, so a lookup returns what decoding the problem at that T gave. A calibration on the
pool is simulated only in which problems it draws.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from fsd_calib import CostModel
from fsd_calib.measuring.measurement import Decoding, Measurement, Seeds
from fsd_calib.tasks.asking import Asking
from fsd_calib.tasks.base import Example, Problem, Task
from fsd_calib.tasks.kinds.arithmetic import ARITHMETIC
from fsd_data.problems import generate
from fsd_decoding.profile.setting import Setting

FOLDER = Path(__file__).parents[2] / "results" / "pool"
TARGET = Setting("target", "js", 1)
_NO_END = 4.0  # above every threshold; ends of problem n are stored as 2 * _NO_END * n + end, so all are sorted

Rows = NDArray[np.intp]
Columns = Mapping[str, NDArray[Any]]


def pool_task(seed: int, count: int, tokenizer: Any = None) -> Task:
    """Returns `arithmetic` with the pool's problems: the generator's first, which calibrations deal out to seeds."""

    def read(seed: int, limit: int | None, data: Path | None) -> tuple[Sequence[Example], str]:
        problems = islice(generate(seed), limit)
        return [Example(p.question, p.answer) for p in problems], f"fsd_data.problems.generate(seed={seed})"

    return replace(ARITHMETIC, read=read).load(seed, count, None, Asking(tokenizer))


class Arm:
    """All texts of some problems under one divergence and L, sorted by problem and T.

    Args:
        columns: of the arm's file, without the problems' own.
        most: T_max, the largest threshold that was decoded.
    """

    def __init__(self, name: str, columns: Columns, most: float) -> None:
        self.most, self._name = most, name
        self.known = np.unique(columns["problem"])
        ends = np.minimum(columns["hi"].astype(np.float64), _NO_END)
        self._ends = 2 * _NO_END * columns["problem"] + ends
        self.correct, self.tokens, self.rounds, self.drafted, self.accepted = (
            columns[name] for name in ("correct", "tokens", "rounds", "drafted", "accepted")
        )
        self._decodings: dict[int, Seeds] = {}

    def rows(self, problems: Rows, threshold: float | None) -> Rows:
        """Returns the row that holds for each problem at a threshold. threshold: None for the lossless rule.

        Raises:
            ValueError: the threshold is larger than those that were decoded.
        """
        at = 0.0 if threshold is None else max(threshold, 0.0)
        if at > self.most:
            raise ValueError(f"{self._name} was decoded up to T = {self.most}, not at {at}")
        return np.searchsorted(self._ends, 2 * _NO_END * problems + at, side="right")

    def decoding(self, row: int) -> Seeds:
        if row not in self._decodings:
            counts = (int(column[row]) for column in (self.tokens, self.rounds, self.drafted, self.accepted))
            self._decodings[row] = (Decoding(bool(self.correct[row]), "", *counts),)
        return self._decodings[row]


class Pool:
    """All arms, and target-only decoding.

    Args:
        about: the seed of the problems, the costs, and T_max by divergence.
        arms: by divergence and L.
        alone: of target-only decoding: whether each problem is solved, and the tokens.
    """

    def __init__(self, about: Mapping[str, Any], arms: Mapping[tuple[str, int], Arm], alone: Columns) -> None:
        self.about, self.costs, self.arms = about, CostModel(**about["costs"]), arms
        self.target_right: NDArray[np.bool_] = alone["correct"]
        outcomes = zip(alone["correct"].tolist(), alone["tokens"].tolist(), strict=True)
        self._alone = [(Decoding(correct, "", tokens, tokens, 0, 0),) for correct, tokens in outcomes]

    @classmethod
    def read(cls, folder: Path = FOLDER) -> Pool:
        about, arms = json.loads((folder / "pool.json").read_text()), {}
        for path in sorted(folder.glob("*-*.parquet")):
            divergence, length = path.stem.split("-")
            arms[divergence, int(length)] = Arm(path.name, _columns(path), about["thresholds_below"][divergence])
        return cls(about, arms, _columns(folder / "target.parquet"))

    @cached_property
    def problems(self) -> tuple[Problem, ...]:
        return pool_task(self.about["seed"], len(self._alone)).problems

    @cached_property
    def _numbers(self) -> dict[int, int]:
        return {problem.id: number for number, problem in enumerate(self.problems)}

    def rows(self, configuration: Setting, problems: Sequence[Problem]) -> list[int]:
        """Returns for each problem a number that identifies its text among those of the configuration's arm."""
        numbers = [self._numbers[problem.id] for problem in problems]
        if configuration.rule == "target":
            return numbers
        rows: list[int] = self._arm(configuration).rows(np.array(numbers, np.intp), configuration.threshold).tolist()
        return rows

    def __call__(self, configuration: Setting, problems: Sequence[Problem]) -> list[Seeds]:
        """Decodes by lookup: the target, the lossless rules, which are all equal when greedy, and `fsd-coupled`."""
        rows = self.rows(configuration, problems)
        if configuration.rule == "target":
            return [self._alone[row] for row in rows]
        arm = self._arm(configuration)
        return [arm.decoding(row) for row in rows]

    def whole(self, configuration: Setting, problems: Rows | None = None) -> Whole:
        """Returns what a configuration gives on problems, by their numbers, or on all that its arm has."""
        arm = self._arm(configuration)
        problems = arm.known.astype(np.intp) if problems is None else problems
        rows = arm.rows(problems, configuration.threshold)
        tokens, rounds, drafted = (int(column[rows].sum()) for column in (arm.tokens, arm.rounds, arm.drafted))
        right = self.target_right[problems]
        return Whole(
            float(arm.correct[rows].sum() / right.sum()),
            float(self.costs.tokens_per_second(tokens, rounds, drafted)),
            arm.correct[rows],
            right,
        )

    def _arm(self, configuration: Setting) -> Arm:
        return self.arms[configuration.divergence, configuration.draft_length]


@dataclass(frozen=True, eq=False)
class Whole:
    """The true retention and speed of a configuration on all problems of a pool."""

    retention: float
    tokens_per_second: float
    right: NDArray[np.bool_]
    target_right: NDArray[np.bool_]


@dataclass
class CountingPool:
    """The pool as a `Decode` that counts what real decoding would have cost.

    Args:
        reuse: whether a decoded text is reused for its whole interval of T, as by the result cache; if not, every
            lookup counts as a decoding.
        copies: by id, the pool's problem that a copy stands for; each copy counts as a problem of its own.
    """

    pool: Pool
    reuse: bool
    copies: Mapping[int, Problem] = field(default_factory=dict)
    decodings: int = 0
    tokens: int = 0
    _seen: set[tuple[Setting, int, int]] = field(default_factory=set)

    def __call__(self, configuration: Setting, problems: Sequence[Problem]) -> list[Seeds]:
        originals = [self.copies.get(problem.id, problem) for problem in problems]
        decodings = self.pool(configuration, originals)
        for problem, row, seeds in zip(problems, self.pool.rows(configuration, originals), decodings, strict=True):
            text = (configuration.arm, problem.id, row)
            if not self.reuse or text not in self._seen:
                self._seen.add(text)
                self.decodings += 1
                self.tokens += seeds[0].tokens
        return decodings


class PooledForecast:
    """A forecast like `ReplayForecast`, from a replay along the target of 128 problems outside the pool.

    A calibration replays its own tuning problems; another sample, as here, errs a little more.

    Args:
        kept: thresholds at a grid of shares, and by arm the rounds and drafted tokens at each.
    """

    def __init__(self, pool: Pool, kept: Mapping[str, Any]) -> None:
        self._costs, self._tokens = pool.costs, kept["tokens"]
        self._grid = np.array(kept["logit_shares"])
        self._scales = {name: np.array(scale) for name, scale in kept["thresholds"].items()}
        self._counts = {(arm["divergence"], arm["draft_length"]): arm for arm in kept["arms"]}
        decoded = [np.interp(pool.about["thresholds_below"][name], s, self._grid) for name, s in self._scales.items()]
        self.lowest, self.highest = float(self._grid[0]), float(min(*decoded, self._grid[-1]))

    @classmethod
    def read(cls, pool: Pool, folder: Path = FOLDER) -> PooledForecast:
        return cls(pool, json.loads((folder / "replay.json").read_text()))

    def threshold(self, arm: Setting, logit_share: float) -> float:
        return float(np.interp(logit_share, self._grid, self._scales[arm.divergence]))

    def tokens_per_second(self, configuration: Setting) -> float:
        arm = self._counts[configuration.divergence, configuration.draft_length]
        assert configuration.threshold is not None
        at, thresholds = configuration.threshold, arm["threshold"]
        rounds, drafted = (np.interp(at, thresholds, arm[name]) for name in ("rounds", "drafted"))
        return float(self._costs.tokens_per_second(self._tokens, rounds, drafted))

    def measured(self, measurement: Measurement) -> float:
        return float(self._costs.tokens_per_second(measurement.tokens, measurement.rounds, measurement.drafted))


def _columns(path: Path) -> dict[str, NDArray[Any]]:
    table = pq.read_table(path)
    return {name: table[name].to_numpy() for name in table.column_names}
