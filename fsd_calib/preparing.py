"""All that comes before the long work: traces, costs, a first handful of problems, and the plan they make.

Knows the order of these. How each is done is in the module of its name.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from fsd_calib.baseline import TRACED, measure_baseline, traces_along_target
from fsd_calib.certifying.sealed import TESTS_VERSION
from fsd_calib.chances import claim_of
from fsd_calib.early_stop import Chosen, choose, stopping_early
from fsd_calib.measuring.configuration import Configuration
from fsd_calib.measuring.costs import measure_costs
from fsd_calib.measuring.speed import pieces
from fsd_calib.planning import Effort, Handful, Plan, check_enough, expected_efforts, make_plan
from fsd_calib.run_facts import RunFacts, Timings, begun
from fsd_calib.searching.forecast import ReplayForecast
from fsd_calib.searching.space import Space, logit
from fsd_calib.shaping import Asked, shapes
from fsd_calib.tasks import Problem
from fsd_calib.wish import Wish
from fsd_calib.workbench import Workbench
from fsd_collectors.replay import CostModel, sweep
from fsd_collectors.replay.blocks import Traces
from fsd_decoding.profile_parts import EarlyStopInfo

_HANDFUL = 64  # problems
_PLAUSIBLE_SHARE = 0.97  # of drafted tokens accepted: about where thresholds that keep most accuracy lie
_COSTED = 24  # problems
_PASSES, _CANDIDATES = 4, 4  # what a search and a certificate take, in passes over their parts
_TIMED = 51  # tuning problems, the first of which warms up
_TIMED_BATCHES = 40  # and so many problems a stream, where there are several
_LOSSLESS = "coupled"  # its text is the target's own under any sampling: what differs is rounding
_SD_LENGTHS = range(1, 13)
_WAYS = 12  # three repeats of four configurations
_USUAL_LENGTH = 5  # tokens drafted where a batch's time is taken


@dataclass(frozen=True)
class Prepared:
    """sds: lossless decoding at the draft lengths that replay finds fastest for it, the best first. timed: problems
    on which speed will be measured."""

    bench: Workbench
    wish: Wish
    space: Space
    facts: RunFacts
    forecast: ReplayForecast
    sds: tuple[Configuration, ...]
    timed: tuple[Problem, ...]
    plan: Plan
    trials: int
    storage: str | None
    early_stop: EarlyStopInfo | None

    @property
    def alone(self) -> Configuration:
        return self.bench.configuration("target")

    @property
    def lossless(self) -> Configuration:
        return self.sds[0].under(_LOSSLESS)


def prepared(
    bench: Workbench,
    wish: Wish,
    space: Space,
    policies: Sequence[Asked],
    trials: int,
    storage: str | None,
    folder: Path | None,
    predictor: str | os.PathLike[str] | None,
) -> Prepared:
    """Raises UsageError where these problems are too few for the wish, whatever the outcomes."""
    _check_enough(wish, bench, *bench.sealed.at_best(wish.confidence))
    timed = _timed(bench, wish)
    chosen = None if predictor is None else choose(predictor, bench, space, folder)
    hidden = None if chosen is None else chosen.reads
    with traces_along_target(bench, space.divergences, bench.tuning.problems[:TRACED], hidden) as traces:
        shaped = shapes(policies, bench, space, traces)
        space = replace(space, policies=tuple(shaped))
        name = _name(bench, wish, space, chosen)
        if wish.guarantee != "none":
            bench = bench.certifying(name, () if chosen is None else chosen.trained())
        facts = begun(folder, name, bench.sealed, wish.confidence, partial(_timings, bench, wish))
        check = partial(_check_enough, wish, bench, bench.sealed.problems, facts.level(wish.confidence))
        check()
        costs = facts.costs.model
        early = None if chosen is None else stopping_early(chosen, traces, costs, bench, space, folder)
        forecast = ReplayForecast(traces, space, costs, stops=early.replayed if early else None, shapes=shaped)
        sds = tuple(bench.configuration("sd", length) for length in _fastest_for_sd(traces, costs))
    if early is not None:
        bench = bench.stopping_early(early.policies)
    family = space.families[0]
    fuzzy = family[len(family) // 2]
    fuzzy = fuzzy.at(forecast.threshold(fuzzy, logit(_PLAUSIBLE_SHARE)))
    baseline = measure_baseline(bench, sds[0].under(_LOSSLESS), _HANDFUL)
    handful = Handful.of(baseline.alone, baseline.lossless, bench.tuning.measure(fuzzy, _HANDFUL))
    check(handful.accuracy)
    each = baseline.alone.tokens / (handful.problems * bench.decode.seeds)
    served = each / forecast.measured(baseline.lossless) / wish.serve_batch
    efforts = _efforts(bench, facts, len(timed), served)
    claim = claim_of(wish, bench.sealed.problems)
    plan = make_plan(claim, handful, bench.sealed.problems, facts.level(wish.confidence), efforts)
    if storage is None and folder is not None:
        storage = str(folder / "study.log")
    return Prepared(
        bench, wish, space, facts, forecast, sds, timed, plan, trials, storage, early.info if early else None
    )


def _name(bench: Workbench, wish: Wish, space: Space, chosen: Chosen | None) -> str:
    """Of everything that decides how a calibration goes: the same command has the same name again."""
    asked = [[p.id, p.prompt, p.reference, p.part] for p in bench.task.problems]
    facts = {"identity": bench.identity, "wish": asdict(wish), "space": asdict(space), "problems": asked,
             "tests": TESTS_VERSION}  # fmt: skip
    if chosen is not None:
        facts["predictor"] = chosen.predictor.fingerprint
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def _timings(bench: Workbench, wish: Wish) -> Timings:
    problems = bench.tuning.problems[:_COSTED]
    costs = measure_costs(
        bench.decoder, [p.prompt for p in problems], [p.id for p in problems], bench.task.max_new_tokens,
        bench.task.stop, batch_size=wish.serve_batch, progress=bench.progress,
    ).model  # fmt: skip
    lossless = bench.configuration(_LOSSLESS, _USUAL_LENGTH)
    batch = bench.tuning.problems[: bench.batch_size]
    began = time.perf_counter()
    bench.decode.emitted(lossless, batch, bench.batch_size)
    return Timings(costs, (time.perf_counter() - began) / len(batch))


def _efforts(bench: Workbench, facts: RunFacts, timed: int, seconds_served: float) -> tuple[Effort, ...]:
    seeds = bench.decode.seeds
    tuning, certification = seeds * len(bench.tuning.problems), seeds * bench.sealed.problems
    return expected_efforts(
        tuning=tuning,
        certification=certification,
        searched=_PASSES * tuning,
        candidates=_CANDIDATES,
        timed=_WAYS * timed,
        exact_seconds=facts.seconds_each,
        fuzzy_seconds=facts.seconds_each,
        timed_seconds=seconds_served,
    )


def _check_enough(wish: Wish, bench: Workbench, problems: int, level: float, accuracy: float = 1.0) -> None:
    """Where nothing is tested, nothing is too little."""
    if wish.guarantee != "none":
        out = bench.sealed.whole - problems
        check_enough(claim_of(wish, problems), problems, level, accuracy, bench.decode.seeds, out)


def _timed(bench: Workbench, wish: Wish) -> tuple[Problem, ...]:
    """UsageError: too few for so many streams; better now than after the work."""
    most = _TIMED if wish.serve_batch == 1 else _TIMED_BATCHES * wish.serve_batch
    problems = bench.tuning.problems[:most]
    pieces(problems, wish.serve_batch)
    return problems


def _fastest_for_sd(traces: Traces, costs: CostModel) -> list[int]:
    """Costs are known to some per cent, so the two best by replay are timed later."""
    frame = sweep(traces, ["sd"], draft_lengths=_SD_LENGTHS, costs=costs)
    best_first = frame["tokens_per_second"].to_numpy().argsort()[::-1]
    return [int(frame["draft_length"].iloc[int(i)]) for i in best_first[:2]]
