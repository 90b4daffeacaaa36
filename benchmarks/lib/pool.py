"""A pool of real decodings at every threshold, which takes the place of models.

Making it takes more than an hour: `benchmarks/pool.py` and then `benchmarks/pool_replay.py`, which commit 63a8be76 is
the last to hold. Its files are in `benchmarks/results/pool`, and a test compares some of them with decoding anew.
A text holds for an interval of T, so a lookup returns what decoding the problem at that T gave. A calibration on the
pool is simulated only in which problems it draws: search, freezing and certificate are those of
`fsd_calib.calibration.api`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from fsd_calib import CostModel
from fsd_calib.calibration.plan import claim_of
from fsd_calib.calibration.run import HOPELESS, chance_of, pass_model_of
from fsd_calib.certification.attempt_ledger import AttemptLedger
from fsd_calib.certification.certificate import SequenceVerdict
from fsd_calib.certification.holdout import Holdout
from fsd_calib.certification.looks import Looks
from fsd_calib.measuring.evaluator import Decode, Evaluator
from fsd_calib.measuring.measurement import Decoding, Measurement, Seeds
from fsd_calib.options.goal import Goal
from fsd_calib.search.forecast import Forecast
from fsd_calib.search.max_speed import MaxSpeed
from fsd_calib.search.space import Space
from fsd_calib.search.trials import SearchResult, freeze, search
from fsd_calib.tasks.asking import Asking
from fsd_calib.tasks.base import Example, Problem, Task
from fsd_calib.tasks.kinds.arithmetic import ARITHMETIC
from fsd_common.progress.base import Silent
from fsd_data.problems import generate
from fsd_decoding.profile.certificate import attempt_level
from fsd_decoding.profile.setting import Setting
from lib.common.results import RESULTS

FOLDER = RESULTS / "pool"
TARGET = Setting("target", "js", 1)
CONFIDENCE = 0.95
LOOKS = Goal(min_acc=0.98).looks  # of the command
DELTA = attempt_level(CONFIDENCE, 1)  # the significance level of a first attempt
_BASELINE = 256  # tuning problems that the lossless rule decodes
_TRIALS = 30
_POINTS = 200  # thresholds per arm at which the truth is computed
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
    """All texts of some problems under one score and L, sorted by problem and T.

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
        about: the seed of the problems, the costs, and T_max by score.
        arms: by score and L.
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
            score, length = path.stem.split("-")
            arms[score, int(length)] = Arm(path.name, _columns(path), about["thresholds_below"][score])
        return cls(about, arms, _columns(folder / "target.parquet"))

    def space(self, rule: str = "fsd-coupled") -> Space:
        """All of its arms."""
        scores, lengths = (tuple(sorted(set(of))) for of in zip(*self.arms, strict=True))
        return Space((rule,), scores, lengths)

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
        right, alone = arm.correct[rows], self.target_right[problems]
        speed = float(self.costs.tokens_per_second(tokens, rounds, drafted))
        return Whole(float(right.sum() / alone.sum()), speed, float(alone.mean()), float((right != alone).mean()))

    def _arm(self, configuration: Setting) -> Arm:
        return self.arms[configuration.score, configuration.draft_length]


class Whole(NamedTuple):
    """What a configuration gives on problems of a pool, in truth."""

    retention: float
    tokens_per_second: float
    accuracy: float  # of the target
    churn: float


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
        self._counts = {(arm["score"], arm["draft_length"]): arm for arm in kept["arms"]}
        decoded = [np.interp(pool.about["thresholds_below"][name], s, self._grid) for name, s in self._scales.items()]
        self.lowest, self.highest = float(self._grid[0]), float(min(*decoded, self._grid[-1]))

    @classmethod
    def read(cls, pool: Pool, folder: Path = FOLDER) -> PooledForecast:
        return cls(pool, json.loads((folder / "replay.json").read_text()))

    def threshold(self, arm: Setting, logit_share: float) -> float:
        return float(np.interp(logit_share, self._grid, self._scales[arm.score]))

    def tokens_per_second(self, configuration: Setting) -> float:
        arm = self._counts[configuration.score, configuration.draft_length]
        assert configuration.threshold is not None
        at, thresholds = configuration.threshold, arm["threshold"]
        rounds, drafted = (np.interp(at, thresholds, arm[name]) for name in ("rounds", "drafted"))
        return float(self._costs.tokens_per_second(self._tokens, rounds, drafted))

    def measured(self, measurement: Measurement) -> float:
        return float(self._costs.tokens_per_second(measurement.tokens, measurement.rounds, measurement.drafted))


def _columns(path: Path) -> dict[str, NDArray[Any]]:
    table = pq.read_table(path)
    return {name: table[name].to_numpy() for name in table.column_names}


class Truth:
    """The true retention and speed of every arm at many thresholds, on problems of a pool by their numbers."""

    def __init__(self, pool: Pool, forecast: PooledForecast, space: Space, numbers: Rows) -> None:
        self.numbers = numbers
        self._pool, self._forecast, self._arms = pool, forecast, list(chain.from_iterable(space.families))

    def of(self, configuration: Setting) -> Whole:
        return self._pool.whole(configuration, self.numbers)

    @cached_property
    def lossless(self) -> float:
        """Tokens/s of the fastest lossless setting."""
        return max(self.of(arm.at(0.0)).tokens_per_second for arm in self._arms)

    def best(self, good: Callable[[Whole], bool]) -> float:
        """Returns tokens/s of the fastest setting that is good."""
        return max(whole.tokens_per_second for whole in self._swept if good(whole))

    @cached_property
    def _swept(self) -> list[Whole]:
        """Settings of every arm, evenly spaced in logit(u), and the lossless one."""
        shares = np.linspace(self._forecast.lowest, self._forecast.highest, _POINTS).tolist()
        return [
            self.of(arm.at(threshold))
            for arm in self._arms
            for threshold in sorted({0.0} | {self._forecast.threshold(arm, at) for at in shares})
        ]


# --- one calibration --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Spent:
    """What a step of a calibration decoded."""

    decodings: int
    tokens: int

    @classmethod
    def by(cls, counted: CountingPool) -> Spent:
        return cls(counted.decodings, counted.tokens)

    def __add__(self, other: Spent) -> Spent:
        return Spent(self.decodings + other.decodings, self.tokens + other.tokens)

    def __sub__(self, other: Spent) -> Spent:
        return Spent(self.decodings - other.decodings, self.tokens - other.tokens)


@dataclass(frozen=True)
class Calibrated:
    """The outcome of a calibration.

    `tuned` is the fastest feasible setting on the tuning part, which a search without a certificate would return.
    """

    tuned: Setting | None
    frozen: Sequence[Setting]
    certified: Setting | None
    trials: int
    baseline: Spent
    search: Spent
    certificate: Spent


def draw(pool: Pool, first: int, count: int, random: np.random.Generator) -> list[Problem]:
    """Draws `count` of the pool's `first` problems without replacement, in the pool's order."""
    return [pool.problems[i] for i in np.sort(random.choice(first, count, replace=False)).tolist()]


class Frozen(NamedTuple):
    """What was chosen on a tuning part, and what it showed."""

    settings: Sequence[Setting]
    tuning: Evaluator
    searched: SearchResult
    baseline: Spent


def freeze_on_pool(
    decode: CountingPool, forecast: Forecast, space: Space, tuning: Sequence[Problem], certification: int, wanted: float
) -> Frozen:
    """Runs the search and the freezing of `fsd-calibrate` with its defaults.

    Args:
        certification: Number of problems that will certify.
    """
    evaluator = Evaluator(decode, tuning, "tuning")
    lossless = _lossless(evaluator, space, forecast)
    alone = evaluator.measure(TARGET)
    baseline = Spent.by(decode)
    claim = claim_of(Goal(min_acc=wanted, confidence=CONFIDENCE), Looks.evenly(certification, LOOKS))
    bar = pass_model_of(claim, DELTA, alone)
    objective = MaxSpeed(chance_of(claim, DELTA), f"retention {wanted}", bar, lossless)
    searched = search(evaluator, alone, forecast, space, objective, None, "pool", _TRIALS, Silent())
    frozen = [
        configuration
        for configuration in freeze(searched, space, evaluator, alone, forecast, objective)
        if forecast.measured(evaluator.measure(configuration)) > lossless
        and objective.chance(evaluator.measure(configuration), alone) >= HOPELESS
    ]
    return Frozen(frozen, evaluator, searched, baseline)


def certify_on_pool(
    decode: Decode, frozen: Frozen, certification: Sequence[Problem], wanted: float, looks: int = LOOKS
) -> SequenceVerdict | None:
    """Certifies what was frozen, with a new ledger; None: nothing was."""
    if not frozen.settings:
        return None
    with AttemptLedger(None) as ledger:
        ledger.tuned_on("pool", frozen.tuning.problems)
        part = Holdout(Evaluator(decode, certification, "certification"), ledger, "pool", "pool, retention", "")
        claim = claim_of(Goal(min_acc=wanted, confidence=CONFIDENCE), Looks.evenly(len(certification), looks))
        return part.open(frozen.settings, TARGET, claim, CONFIDENCE).decide()


def calibrate_on_pool(
    decode: CountingPool,
    forecast: Forecast,
    space: Space,
    tuning: Sequence[Problem],
    certification: Sequence[Problem],
    wanted: float,
) -> Calibrated:
    """Runs the steps of `fsd-calibrate` with its defaults. Only the decoder is replaced, which counts each step."""
    frozen = freeze_on_pool(decode, forecast, space, tuning, len(certification), wanted)
    until_frozen, trials = Spent.by(decode), frozen.searched.trials
    verdict = certify_on_pool(decode, frozen, certification, wanted)
    passed = frozen.settings[: 0 if verdict is None or verdict.passed is None else verdict.passed + 1]
    held = [trial for trial in trials if trial.feasible]
    return Calibrated(
        tuned=max(held, key=lambda trial: trial.tokens_per_second).setting if held else None,
        frozen=frozen.settings,
        certified=max(passed, key=lambda c: forecast.measured(frozen.tuning.measure(c)), default=None),
        trials=len(trials),
        baseline=frozen.baseline,
        search=until_frozen - frozen.baseline,
        certificate=Spent.by(decode) - until_frozen,
    )


def _lossless(evaluator: Evaluator, space: Space, forecast: Forecast) -> float:
    """Returns tokens/s of the lossless rule, whose churn is the numerical floor, at its best draft length."""
    arms = [Setting("coupled", space.scores[0], length) for length in space.draft_lengths]
    best = max(arms, key=lambda arm: forecast.tokens_per_second(replace(arm, rule=space.rules[0], threshold=0.0)))
    return forecast.measured(evaluator.measure(best, _BASELINE))
