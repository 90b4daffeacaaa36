"""Preparation of a calibration: traces, costs, a pilot on the first problems, and the plan that follows from them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from fsd_calib.calibrate_options import Goal, RunConfig
from fsd_calib.calibration.baseline import (
    COMPARED,
    COUNTED,
    TRACED,
    Baseline,
    check_numerical_floor,
    measure_baseline,
    traces_along_target,
)
from fsd_calib.calibration.design import check_enough_by
from fsd_calib.calibration.draft_forecasts import LOSSLESS, TracedDrafts
from fsd_calib.calibration.going_on import extension_of, goes_on_from, going_on
from fsd_calib.calibration.graphs import PlannedWork, seconds_of, what_pays
from fsd_calib.calibration.pilot import Pilot
from fsd_calib.calibration.plan import (
    Paces,
    Plan,
    PlannedStep,
    check_enough,
    claim_of,
    expected_share,
    make_plan,
    planned_steps,
)
from fsd_calib.calibration.policy_families import PolicyChoice, Shaped, shapes
from fsd_calib.calibration.run_facts import Pace, RunFacts, Timings, begin_or_resume, first_design, first_sd
from fsd_calib.calibration.run_name import RunName
from fsd_calib.calibration.session import Session
from fsd_calib.calibration.timing import Timer
from fsd_calib.certification.claim import Claim
from fsd_calib.certification.holdout import EngineSequence
from fsd_calib.engines.base import KeyedPrompt
from fsd_calib.engines.own import OwnEngine
from fsd_calib.measuring.measurement import Measurement
from fsd_calib.search.forecast import DraftForecasts, Forecast
from fsd_calib.search.space import Space, logit
from fsd_calib.tasks.base import Problem
from fsd_collectors.collection.measures import Width
from fsd_collectors.replay import CostModel
from fsd_collectors.store.reading import Traces
from fsd_decoding.profile.fields import Rounds
from fsd_decoding.profile.parts import EarlyStopInfo
from fsd_decoding.profile.setting import Drafting, Setting
from fsd_decoding.tree_shape import TreeShape
from fsd_decoding.workers.model_workers import Sources

if TYPE_CHECKING:
    from fsd_calib.calibration.predictor import Chosen

_PILOT = 64  # problems
_PLAUSIBLE_SHARE = 0.97  # of drafted tokens accepted: about where thresholds that keep most accuracy lie
_COSTED = 24  # problems
_PASSES = 3  # over the tuning part, of a search
_FEW_ROWS = 1.8  # times as long a decoding takes in a search: what is not reused fills few rows (measured: 1.3 to 2.2)
_CANDIDATES = 6  # frozen at most
_LIKELY = 1  # of them, the median in benchmarks/results/regret.json; a front's points are all tested
_USUAL_LENGTH = 5  # tokens drafted when a batch is timed
_NEW_LENGTH = 6  # another, which the rule has not had before: its first batch shows what making graphs takes
_OTHER_SHAPES = 9  # of rounds, beside one for each L: target, lossless rule; at --serve-batch three costs, four timed


@dataclass(frozen=True)
class Prepared:
    """The measurements that the search, the certificate and the timing start from.

    Args:
        sds: the `sd` settings (draft length and draft) that are fastest in replay, the fastest first.
        fixed: the settings to certify where none are searched.
        seconds: what the preparation took.
    """

    session: Session
    goal: Goal
    space: Space
    facts: RunFacts
    forecast: DraftForecasts
    sds: tuple[Setting, ...]
    timer: Timer
    plan: Plan
    config: RunConfig
    early_stop: EarlyStopInfo | None
    fixed: tuple[Setting, ...] = ()
    seconds: float = 0.0

    @property
    def alone(self) -> Setting:
        return self.session.setting("target")

    def costs_of(self, setting: Setting) -> CostModel:
        """Returns the costs of a round with the setting's draft."""
        return self.facts.timings.costs[self.space.compared.index(setting.drafting)]

    @property
    def lossless(self) -> Setting:
        return self.sds[0].under(LOSSLESS)

    @cached_property
    def sd(self) -> Setting:
        """The fastest `sd` by the clock of the run's first process, and no other one for the rest of the run."""
        if self.timer.way == "none" and self.facts.sd is None:
            return self.sds[0]  # a forecast, and no choice for a process of this run that times
        folder, progress = self.config.path("out"), self.session.progress
        return first_sd(folder, self.facts, lambda: self.timer.fastest(self.sds), progress)


def designed(
    session: Session, goal: Goal, space: Space, policies: Sequence[PolicyChoice],
    predictor: str | os.PathLike[str] | None, config: RunConfig, sources: Sources, fixed: tuple[Setting, ...] = (),
    plan_only: bool = False,
) -> Prepared:  # fmt: skip
    """Returns what is prepared of the design that is asked for, see `prepare`; `auto` is chosen by a first plan.

    Raises:
        UsageError: no design of these problems is enough for the goal.
    """
    if config.design == "all":
        return prepare(session, goal, space, policies, predictor, config, sources, fixed, plan_only)
    asked = config.changed(extend=False)
    first = prepare(session, goal, space, policies, predictor, asked, sources, fixed, plan_only)
    design = first.plan.design
    assert design is not None
    if plan_only:
        return first
    check_enough_by(design, first.plan.claim)
    out, progress = config.path("out"), session.progress
    problems, seeds = first_design(out, first.facts, (design.problems, design.seeds), progress)
    progress.note(f"design: {problems:,} certification problems, {seeds} decoding{'s' * (seeds > 1)} of each")
    chosen, timings = session.designed(seeds, problems), first.facts.timings
    ready = prepare(chosen, goal, space, policies, predictor, config, sources, fixed, plan_only, timings)
    taken = replace(design, problems=problems, seeds=seeds)
    return replace(ready, plan=replace(ready.plan, design=taken, takes_design=True))


def prepare(
    session: Session,
    goal: Goal,
    space: Space,
    policies: Sequence[PolicyChoice],
    predictor: str | os.PathLike[str] | None,
    config: RunConfig,
    sources: Sources,
    fixed: tuple[Setting, ...] = (),
    plan_only: bool = False,
    timings: Timings | None = None,
) -> Prepared:
    """Reads traces, measures costs, runs a pilot on the first problems, and makes the plan.

    Args:
        plan_only: whether no run follows, so that no predictor is trained: the plan is of drafts that none ends early.
        timings: those of the same with another design; None: they are measured.

    Raises:
        UsageError: there are too few problems for the goal, whatever the outcomes.
    """
    folder = config.path("out")
    _check_enough(goal, session, *session.holdout.best_case(goal.confidence))
    chosen = None
    if predictor is not None:
        from fsd_calib.calibration.predictor import choose, stopping_early  # which import what trains predictors

        chosen = choose(predictor, session, space, folder, train=not plan_only)
        if chosen is None:
            session.progress.note(
                "a run trains its predictor first; the plan has neither the time of that nor drafts that end early"
            )
            space = replace(space, draft_lengths=tuple(range(1, max(space.draft_lengths) + 1)))
    with _traced(session, space, None if chosen is None else chosen.reads) as traces:
        first = space.drafts[0]
        baseline = measure_baseline(session, _usual(session, space), _PILOT)
        check_numerical_floor(goal, baseline.alone.accuracy, baseline.numerical_churn, session.progress)
        # Drafts that cannot be traced have a constant T.
        shaped: Shaped = shapes(policies, session, space, traces[first]) if first in traces else {None: None}
        space = replace(space, policies=tuple(shaped))
        run = RunName(session, goal, space, config, _given(chosen, fixed, session.holdout.sequence))
        trained = frozenset() if chosen is None else chosen.trained()
        extension = extension_of(run, trained)
        if extension is not None:
            run, fixed = replace(run, extends=True), extension.settings
        if not goal.explore:
            session = session.certifying(run.text, trained)
        if extension is not None:
            session = going_on(session, extension)
        facts = begin_or_resume(
            folder, run.text, run.asked, session.holdout,
            lambda: timings or _timings(session, goal, space, config, fixed), session.progress,
            None if extension is None else extension.before[-1].place,
        )  # fmt: skip
        session.call_rounds(facts.timings.compile)
        claim, level = _test(session, goal, facts.attempt)
        _check_enough(goal, session, session.holdout.problems, level)
        costs = dict(zip(space.compared, facts.timings.costs, strict=True))
        chain = costs[Drafting(first)]
        early = None if chosen is None else stopping_early(chosen, traces[first], chain, session, space, folder)
        drafts = TracedDrafts(session, space, traces, costs)
        forecast = drafts.forecast(early, shaped)
        sds = drafts.fastest_for_sd(forecast, 1 if config.timing == "none" else 2)
    stops = (chosen.folder.resolve(), early.info) if chosen and early else None
    if early is not None:
        session = session.stopping_early(early.policies, stops)
    timer = Timer(session, goal, config.timing, sources, forecast, stops)
    fuzzy = _first_fuzzy(session, space, forecast)
    pilot = _pilot(session, baseline, fuzzy, claim)
    _check_enough(goal, session, session.holdout.problems, level, pilot.accuracy)
    served = Paces(*(_served(m, forecast, session, goal) for m in (baseline.alone, baseline.lossless, fuzzy)))
    pace = facts.pace_of(session.processes) or _pace(session, space)
    graphs = pace.capture * _shapes(space, config)
    goes_on = goes_on_from(extension)
    share = expected_share(claim, level, goes_on)
    efforts = partial(_efforts, session, _paces(pace, served), goal, fixed, share, graphs=graphs)
    timer = timer.within(served, sum(step.seconds for step in efforts()))
    steps, seeds = efforts(*timer.effort(served)), session.decode.seeds
    plan = make_plan(claim, pilot, session.holdout.problems, level, steps, goes_on, seeds)
    plan = replace(plan, tokens=fuzzy.tokens / fuzzy.correct.size)
    info = early.info if early else None
    return Prepared(session, goal, space, facts, forecast, sds, timer, plan, config, info, fixed)


def _first_fuzzy(session: Session, space: Space, forecast: Forecast) -> Measurement:
    """Measures the pilot problems under a fuzzy setting that plausibly keeps most of the accuracy."""
    family = space.families[0]
    fuzzy = family[len(family) // 2]
    return session.tuning.measure(fuzzy.at(forecast.threshold(fuzzy, logit(_PLAUSIBLE_SHARE))), _PILOT)


def _pilot(session: Session, baseline: Baseline, fuzzy: Measurement, claim: Claim) -> Pilot:
    """Returns the pilot; above temperature 0 with two seeds at least, which tell how much outcomes vary within a
    problem."""
    alone, lossless = baseline.alone, baseline.lossless if baseline.exact_texts else None
    if session.decode.seeds == 1 and not session.engine.decoding.sampling.greedy:
        twice = session.designed(2).tuning
        alone, fuzzy = (twice.measure(each.setting, each.problems) for each in (alone, fuzzy))
    return Pilot.of(alone, lossless, fuzzy, claim)


def _served(measured: Measurement, forecast: Forecast, session: Session, goal: Goal) -> float:
    """Seconds to decode one problem at the batch size used for timing."""
    tokens = measured.tokens / (measured.problems * session.decode.seeds)
    return tokens / forecast.measured(measured) / goal.serve_batch


def _paces(pace: Pace, served: Paces) -> Paces:
    """Seconds of decodings in the calibration's own batches; of fuzzy ones by their share at --serve-batch."""
    return Paces(pace.target, pace.lossless, pace.lossless * served.fuzzy / served.lossless)


def _given(chosen: Chosen | None, fixed: Sequence[Setting], sequence: EngineSequence | None) -> dict[str, Any]:
    """What determines the course of some calibrations only."""
    of_predictor = {} if chosen is None else {"predictor": chosen.predictor.fingerprint}
    of_setting = {"fixed": [setting.values for setting in fixed]} if fixed else {}
    return of_predictor | of_setting | ({} if sequence is None else {"sequence": asdict(sequence)})


def _test(session: Session, goal: Goal, attempt: int) -> tuple[Claim, float]:
    """Returns what an attempt of this number claims, and the size of its test."""
    levels = session.holdout.levels(goal.confidence, attempt)
    return claim_of(goal, session.holdout.looks(goal.tests).sized(levels)), sum(levels)


@contextmanager
def _traced(session: Session, space: Space, hidden: Width | None) -> Iterator[dict[str | None, Traces]]:
    """Yields the traces of the first tuning problems, by draft, of those that are models."""
    problems = session.tuning.problems[:TRACED]
    models = [draft for draft in space.drafts if session.with_draft(draft).engine.pair.draft.kind == "model"]
    with ExitStack() as opened:
        yield {
            draft: opened.enter_context(
                traces_along_target(session.with_draft(draft), space.divergences, problems, hidden)
            )
            for draft in models
        }


def _timings(
    session: Session, goal: Goal, space: Space, config: RunConfig, fixed: tuple[Setting, ...]
) -> Timings:  # fmt: skip
    pace, way = _pace(session, space), config.compile
    if way == "auto":
        way = _what_pays(session, goal, space, config, fixed, pace.lossless)
        if way != "off":
            session.call_rounds(way)
            pace = _pace(session, space)
    with session.threads_for(goal.serve_batch):
        costs = tuple(_costs(session.with_draft(each.draft), goal, each.tree) for each in space.compared)
    return Timings(costs, pace, way)


def _pace(session: Session, space: Space) -> Pace:
    """The pace of decoding, measured in this process, with rounds called as the session calls them."""
    alone = partial(_decode_some, session, session.setting("target"))
    lossless = partial(_decode_some, session, session.setting(LOSSLESS, _NEW_LENGTH, space.drafts[0]))
    with session.as_one_worker():
        first = seconds = seconds_of(lossless)
        if session.engine.compile:  # then that made graphs
            alone()
            seconds = seconds_of(lossless)
        of_target = seconds_of(alone)
    problems = len(_some(session)) * session.processes
    return Pace(seconds / problems, of_target / problems, session.processes, max(first - seconds, 0.0))


def _what_pays(
    session: Session, goal: Goal, space: Space, config: RunConfig, fixed: tuple[Setting, ...], each: float
) -> Rounds:  # fmt: skip
    """See `what_pays`, for a calibration whose decodings take `each` seconds."""
    usual = _usual(session, space)
    engine = session.engine_of(usual)
    if not isinstance(engine, OwnEngine):
        return "off"
    share = expected_share(*_test(session, goal, session.holdout.next_attempt))
    steps = _efforts(session, Paces(each, each, each), goal, fixed, share)
    planned = PlannedWork(sum(step.seconds for step in steps), _shapes(space, config))
    with session.as_one_worker():
        return what_pays(engine.decoder, partial(_decode_some, session, usual), planned, session.progress)


def _shapes(space: Space, config: RunConfig) -> int:
    """How many shapes of rounds are likely to occur."""
    return len(space.compared) * (_OTHER_SHAPES + min(len(space.draft_lengths), config.trials))


def _usual(session: Session, space: Space) -> Setting:
    return session.setting(LOSSLESS, _USUAL_LENGTH, space.drafts[0])


def _some(session: Session) -> Sequence[Problem]:
    """Tuning problems for two batches, so that rows are refilled."""
    return session.tuning.problems[: 2 * session.batch_size]


def _decode_some(session: Session, setting: Setting) -> None:
    session.decode.emitted(setting, _some(session), session.batch_size)


def _costs(session: Session, goal: Goal, tree: TreeShape | None) -> CostModel:
    prompts = [KeyedPrompt(problem.id, problem.prompt) for problem in session.tuning.problems[:_COSTED]]
    return session.engine.costs(prompts, goal.serve_batch, session.progress, tree)


def _efforts(
    session: Session, paces: Paces, goal: Goal, fixed: tuple[Setting, ...], share: float, timed: int = 0,
    timed_seconds: float = 0.0, graphs: float = 0.0,
) -> tuple[PlannedStep, ...]:  # fmt: skip
    seeds, problems, holdout = session.decode.seeds, len(session.tuning.problems), session.holdout
    tested = holdout.problems if holdout.extension is None else len(holdout.extension.more)
    return planned_steps(
        paces, few_rows=_FEW_ROWS, tuning=seeds * problems, lossless=seeds * min(COMPARED, problems),
        searched=(len(fixed) or _PASSES) * seeds * problems, certification=0 if goal.explore else seeds * tested,
        likely=_CANDIDATES if goal.pareto else _LIKELY, candidates=len(fixed) or _CANDIDATES, share=share, timed=timed,
        timed_seconds=timed_seconds, counted=seeds * (min(COUNTED, problems) + min(COUNTED, holdout.problems)),
        graphs=graphs, guarded=seeds * sum(len(guard.problems) for guard in session.guards),
    )  # fmt: skip


def _check_enough(goal: Goal, session: Session, problems: int, level: float, accuracy: float = 1.0) -> None:
    """UsageError: there are too few problems to certify the goal. Not checked if nothing is tested."""
    if not goal.explore:
        out = session.holdout.whole - problems
        check_enough(goal, problems, level, accuracy, session.decode.seeds, out)
