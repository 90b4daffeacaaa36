"""Preparation of a calibration: traces, costs, a pilot on the first problems, and the plan that follows from them."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial

from fsd_calib.calibration.baseline import TRACED, Baseline, measure_baseline, traces_along_target
from fsd_calib.calibration.goal import Goal
from fsd_calib.calibration.numerical_floor import judge
from fsd_calib.calibration.pass_probability import claim_of
from fsd_calib.calibration.plan import Pilot, Plan, PlannedStep, check_enough, make_plan, planned_steps
from fsd_calib.calibration.policy_families import PolicyChoice, Shaped, shapes
from fsd_calib.calibration.predictor import Chosen, EarlyStop, choose, stopping_early
from fsd_calib.calibration.run_config import RunConfig
from fsd_calib.calibration.run_facts import RecordedCosts, RunFacts, Timings, begin_or_resume
from fsd_calib.calibration.session import Session
from fsd_calib.calibration.timing import Timer, TimingRequest
from fsd_calib.certification.holdout import TESTS_VERSION
from fsd_calib.measuring.configuration import Configuration
from fsd_calib.measuring.measurement import Measurement
from fsd_calib.measuring.round_costs import measure_costs
from fsd_calib.search.forecast import DraftForecasts, Forecast, ReplayForecast
from fsd_calib.search.space import Space, logit
from fsd_collectors.collection.hidden_states import Width
from fsd_collectors.replay import CostModel, sweep
from fsd_collectors.store.reading import Traces
from fsd_decoding.profile.parts import EarlyStopInfo

_PILOT = 64  # problems
_PLAUSIBLE_SHARE = 0.97  # of drafted tokens accepted: about where thresholds that keep most accuracy lie
_COSTED = 24  # problems
_PASSES, _CANDIDATES = 3, 6  # cost of a search, and the most a certificate can cost, in passes over their parts
_LOSSLESS = "coupled"  # gives the target's own text under any sampling, except for rounding
SD_LENGTHS = range(1, 13)
"""Draft lengths of `sd`, whatever is searched."""

_USUAL_LENGTH = 5  # tokens drafted when a batch is timed


@dataclass(frozen=True)
class Prepared:
    """The measurements that the search, the certificate and the timing start from.

    Args:
        sds: the `sd` configurations (draft length and draft) that are fastest in replay, the fastest first.
    """

    session: Session
    goal: Goal
    space: Space
    facts: RunFacts
    forecast: Forecast
    sds: tuple[Configuration, ...]
    timer: Timer
    plan: Plan
    config: RunConfig
    early_stop: EarlyStopInfo | None

    @property
    def alone(self) -> Configuration:
        return self.session.configuration("target")

    def costs_of(self, configuration: Configuration) -> RecordedCosts:
        """Returns the costs of a round with the configuration's draft."""
        return self.facts.costs[self.space.drafts.index(configuration.draft)]

    @property
    def lossless(self) -> Configuration:
        return self.sds[0].under(_LOSSLESS)


def prepare(
    session: Session,
    goal: Goal,
    space: Space,
    policies: Sequence[PolicyChoice],
    predictor: str | os.PathLike[str] | None,
    config: RunConfig,
    timing: TimingRequest,
) -> Prepared:
    """Reads traces, measures costs, runs a pilot on the first problems, and makes the plan.

    Raises:
        UsageError: there are too few problems for the goal, whatever the outcomes.
    """
    folder = config.path("out")
    _check_enough(goal, session, *session.holdout.best_case(goal.confidence))
    chosen = None if predictor is None else choose(predictor, session, space, folder)
    with _traced(session, space, None if chosen is None else chosen.reads) as traces:
        first = space.drafts[0]
        baseline = measure_baseline(session, session.configuration(_LOSSLESS, _USUAL_LENGTH, first), _PILOT)
        judge(goal, baseline.alone.accuracy, baseline.numerical_churn, session.progress)
        shaped = shapes(policies, session, space, traces[first])
        space = replace(space, policies=tuple(shaped))
        name = _name(session, goal, space, chosen)
        if goal.guarantee != "none":
            session = session.certifying(name, () if chosen is None else chosen.trained())
        facts = begin_or_resume(
            folder, name, session.holdout, partial(_timings, session, goal, space), session.progress
        )
        level = facts.level(goal.confidence)
        _check_enough(goal, session, session.holdout.problems, level)
        costs = {draft: known.model for draft, known in zip(space.drafts, facts.costs, strict=True)}
        early = None if chosen is None else stopping_early(chosen, traces[first], costs[first], session, space, folder)
        forecast = _forecast(traces, space, costs, early, shaped)
        sds = _fastest_for_sd(session, traces, costs, 1 if timing.way == "none" else 2)
    if early is not None:
        session = session.stopping_early(early.policies)
    pilot = Pilot.of(baseline.alone, baseline.lossless, _first_fuzzy(session, space, forecast))
    _check_enough(goal, session, session.holdout.problems, level, pilot.accuracy)
    stops = (chosen.folder.resolve(), early.info) if chosen and early else None
    timer = Timer(session, goal, timing, forecast, stops)
    efforts = _efforts(session, facts, *timer.effort(_seconds_each(session, goal, baseline, forecast)))
    plan = make_plan(claim_of(goal, session.holdout.problems), pilot, session.holdout.problems, level, efforts)
    return Prepared(session, goal, space, facts, forecast, sds, timer, plan, config, early.info if early else None)


def _first_fuzzy(session: Session, space: Space, forecast: Forecast) -> Measurement:
    """Measures the pilot problems under a fuzzy setting that plausibly keeps most of the accuracy."""
    family = space.families[0]
    fuzzy = family[len(family) // 2]
    return session.tuning.measure(fuzzy.at(forecast.threshold(fuzzy, logit(_PLAUSIBLE_SHARE))), _PILOT)


def _seconds_each(session: Session, goal: Goal, baseline: Baseline, forecast: Forecast) -> float:
    """Seconds to decode one problem losslessly, at the batch size used for timing."""
    tokens = baseline.alone.tokens / (baseline.alone.problems * session.decode.seeds)
    return tokens / forecast.measured(baseline.lossless) / goal.serve_batch


def _name(session: Session, goal: Goal, space: Space, chosen: Chosen | None) -> str:
    """A hash of everything that determines a calibration's course, so that the same command resumes the same run."""
    problems = [[p.id, p.prompt, p.reference, p.part] for p in session.task.problems]
    facts = {"identity": session.identity, "wish": asdict(goal), "space": asdict(space), "problems": problems,
             "tests": TESTS_VERSION}  # fmt: skip
    if chosen is not None:
        facts["predictor"] = chosen.predictor.fingerprint
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


@contextmanager
def _traced(session: Session, space: Space, hidden: Width | None) -> Iterator[dict[str | None, Traces]]:
    """Yields the traces of the first tuning problems, by draft."""
    problems = session.tuning.problems[:TRACED]
    with ExitStack() as opened:
        yield {
            draft: opened.enter_context(
                traces_along_target(session.with_draft(draft), space.divergences, problems, hidden)
            )
            for draft in space.drafts
        }


def _forecast(
    traces: Mapping[str | None, Traces],
    space: Space,
    costs: Mapping[str | None, CostModel],
    early: EarlyStop | None,
    shaped: Shaped,
) -> Forecast:
    """The forecast for all drafts, each from its own traces and costs."""
    stops = early.replayed if early else None
    return DraftForecasts({
        draft: ReplayForecast(seen, replace(space, drafts=(draft,)), costs[draft], stops=stops, shapes=shaped)
        for draft, seen in traces.items()
    })  # fmt: skip


def _timings(session: Session, goal: Goal, space: Space) -> Timings:
    costs = tuple(_costs(session.with_draft(draft), goal) for draft in space.drafts)
    lossless = session.configuration(_LOSSLESS, _USUAL_LENGTH, space.drafts[0])
    batch = session.tuning.problems[: session.batch_size]
    began = time.perf_counter()
    session.decode.emitted(lossless, batch, session.batch_size)
    return Timings(costs, (time.perf_counter() - began) / len(batch))


def _costs(session: Session, goal: Goal) -> CostModel:
    problems = session.tuning.problems[:_COSTED]
    return measure_costs(
        session.decoder, [p.prompt for p in problems], [p.id for p in problems], session.task.max_new_tokens,
        session.task.stop, batch_size=goal.serve_batch, progress=session.progress,
    ).model  # fmt: skip


def _efforts(session: Session, facts: RunFacts, timed: int, timed_seconds: float) -> tuple[PlannedStep, ...]:
    seeds = session.decode.seeds
    tuning, certification = seeds * len(session.tuning.problems), seeds * session.holdout.problems
    return planned_steps(
        tuning=tuning,
        certification=certification,
        searched=_PASSES * tuning,
        candidates=_CANDIDATES,
        timed=timed,
        exact_seconds=facts.seconds_each,
        fuzzy_seconds=facts.seconds_each,
        timed_seconds=timed_seconds,
    )


def _check_enough(goal: Goal, session: Session, problems: int, level: float, accuracy: float = 1.0) -> None:
    """UsageError: there are too few problems to certify the goal. Not checked if nothing is tested."""
    if goal.guarantee != "none":
        out = session.holdout.whole - problems
        check_enough(claim_of(goal, problems), problems, level, accuracy, session.decode.seeds, out)


def _fastest_for_sd(
    session: Session, traces: Mapping[str | None, Traces], costs: Mapping[str | None, CostModel], count: int
) -> tuple[Configuration, ...]:
    """The fastest `sd` settings over all drafts and draft lengths, by replay, the fastest first.

    Costs are known only to a few per cent, so where speeds are timed, the two fastest are.
    """
    speeds: dict[Configuration, float] = {}
    for draft, seen in traces.items():
        frame = sweep(seen, ["sd"], draft_lengths=SD_LENGTHS, costs=costs[draft])
        for length, speed in zip(frame["draft_length"], frame["tokens_per_second"], strict=True):
            speeds[session.configuration("sd", int(length), draft)] = float(speed)
    return tuple(sorted(speeds, key=lambda sd: -speeds[sd])[:count])
