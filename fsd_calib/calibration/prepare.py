"""Preparation of a calibration: traces, costs, a pilot on the first problems, and the plan that follows from them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from fsd_calib.calibration.auto_scores import tried, usual
from fsd_calib.calibration.baseline import (
    COMPARED,
    COUNTED,
    TRACED,
    Baseline,
    check_numerical_floor,
    measure_baseline,
    traces_along_target,
)
from fsd_calib.calibration.design import Design, check_enough_by
from fsd_calib.calibration.draft_forecasts import TracedDrafts, rivals_of
from fsd_calib.calibration.going_on import extension_of, goes_on_from, going_on
from fsd_calib.calibration.graphs import PlannedWork, seconds_of, what_pays
from fsd_calib.calibration.odds import odds_of
from fsd_calib.calibration.pilot import Pilot
from fsd_calib.calibration.plan import (
    Paces,
    PlannedStep,
    check_enough,
    claim_of,
    expected_share,
    make_plan,
    planned_steps,
)
from fsd_calib.calibration.policy_families import PolicyChoice, Shaped, shapes
from fsd_calib.calibration.ready import Ready
from fsd_calib.calibration.run_facts import Pace, Timings, begin_or_resume, known_facts
from fsd_calib.calibration.run_name import RunName
from fsd_calib.calibration.session import Session, TextSession
from fsd_calib.calibration.timing import Timer
from fsd_calib.calibration.worth import expected_gain
from fsd_calib.certification.claim import Claim
from fsd_calib.certification.extension import TESTS_VERSION
from fsd_calib.certification.holdout import EngineSequence
from fsd_calib.engines.base import KeyedPrompt
from fsd_calib.engines.own import OwnEngine
from fsd_calib.measuring.interleaved import machine_load
from fsd_calib.measuring.look import Look
from fsd_calib.measuring.measurement import Measurement
from fsd_calib.options.common import PHASES
from fsd_calib.options.goal import Goal
from fsd_calib.options.run_config import RunConfig
from fsd_calib.search.forecast import DraftForecasts, Forecast
from fsd_calib.search.space import Space, logit
from fsd_calib.tasks.base import Problem
from fsd_collectors.collection.measures import Width
from fsd_collectors.replay import CostModel
from fsd_collectors.store.reading import Traces
from fsd_common.digests import facts_digest
from fsd_common.progress.base import Progress, ProgressEstimate
from fsd_decoding.profile.fields import Rounds
from fsd_decoding.profile.parts import EarlyStopInfo
from fsd_decoding.profile.setting import Drafting, Setting
from fsd_decoding.workers.model_workers import Sources

if TYPE_CHECKING:
    from fsd_calib.calibration.first_estimate import FirstLook
    from fsd_calib.calibration.predictor import Chosen

PILOT = 64  # problems
_PLAUSIBLE_SHARE = 0.97  # of drafted tokens accepted: about where thresholds that keep most accuracy lie
_COSTED = 24  # problems
_PASSES = 3  # over the tuning part, of a search
_FEW_ROWS = 1.8  # times as long a decoding takes in a search: what is not reused fills few rows (measured: 1.3 to 2.2)
_CANDIDATES = 6  # frozen at most
_LIKELY = 1  # of them, the median in benchmarks/results/regret.json; a front's points are all tested
USUAL_LENGTH = 5  # tokens drafted when a batch is timed
WATCHED = 10.0  # seconds of its rounds
NEW_LENGTH = 6  # another, which the rule has not had before: its first batch shows what making graphs takes
_OTHER_SHAPES = 9  # of rounds, beside one for each L: target, lossless rule; at --serve-batch three costs, four timed


@dataclass(frozen=True)
class Prepared(Ready):
    """What is prepared with engines that are known from inside."""

    session: Session
    forecast: DraftForecasts
    timer: Timer
    early_stop: EarlyStopInfo | None = None

    def costs_of(self, setting: Setting) -> CostModel:
        """Returns the costs of a round with the setting's draft."""
        return self.facts.timings.costs[self.space.compared.index(setting.drafting)]


@dataclass(frozen=True)
class _Taken:
    """A design that a run takes.

    Args:
        name: of the run; it follows from what is asked for, whatever the design.
        problems, seeds: see `Design`.
        timings: those of the proposal; None: they are recorded.
    """

    name: str
    problems: int
    seeds: int
    timings: Timings | None = None

    def say(self, progress: Progress) -> None:
        progress.note(
            f"design: {self.problems:,} certification problems, {self.seeds} decoding{'s' * (self.seeds > 1)} of each"
        )


@dataclass(frozen=True)
class Request:
    """What a calibration is asked for, see `prepare`.

    Args:
        always: scores that are tried whatever traces say; of the others of the space, those that traces speak for are.
            None: all are.
        judged: ids of the problems that a judge among the scores was trained on.
    """

    goal: Goal
    space: Space
    policies: Sequence[PolicyChoice]
    predictor: str | os.PathLike[str] | None
    config: RunConfig
    sources: Sources
    fixed: tuple[Setting, ...] = ()
    plan_only: bool = False
    always: tuple[str, ...] | None = None
    outlook: ProgressEstimate = field(default_factory=ProgressEstimate)
    judged: frozenset[int] = frozenset()

    def name(self, session: Session) -> str:
        """Returns the name of a run whose design is still to be chosen."""
        facts = {
            "identity": session.identity, "wish": self.goal.model_dump(), "space": self.space.values,
            "policies": [
                f"{policy} {session.task.phase}" if policy in PHASES else str(getattr(policy, "identity", policy))
                for policy in self.policies
            ],
            "predictor": self.predictor, "always": self.always,
            "fixed": [setting.values for setting in self.fixed], "design": self.config.design,
            "problems": [[p.id, p.prompt, p.reference, p.part, p.group] for p in session.task.problems],
            "tests": TESTS_VERSION, "compile": self.config.compile,
        }  # fmt: skip
        return facts_digest(facts)[:16]


def designed(session: Session, request: Request, look: FirstLook | None = None) -> Prepared:
    """Returns what is prepared of the design that is asked for; `auto` is that of a first plan, or as it is recorded.

    Raises:
        UsageError: no design of these problems is enough for the goal.
    """
    config, progress = request.config, session.progress
    if config.design == "all":
        return prepare(session, request, look=look)
    name = request.name(session)
    known = known_facts(config.path("out"), name, session.holdout, progress)
    if known is not None and known.design is not None:
        taken = _Taken(name, *known.design)
    else:
        first = prepare(session, request, proposes=True, look=look)
        if request.plan_only:
            return first
        design = first.plan.design
        assert design is not None
        check_enough_by(design, first.plan.claim)
        taken = _Taken(name, design.problems, design.seeds, first.facts.timings)
    taken.say(progress)
    return prepare(session.with_seeds(taken.seeds), request, taken)


def prepare(
    session: Session, request: Request, taken: _Taken | None = None, proposes: bool = False,
    look: FirstLook | None = None,
) -> Prepared:  # fmt: skip
    """Reads traces, measures costs, runs a pilot on the first problems, and makes the plan.

    Args:
        taken: the design of the run; None: all problems certify.
        proposes: whether only a design is to be found: nothing is recorded, and no earlier attempt is gone on from.
        look: what is refined once traces are there; None: nothing is.

    Raises:
        UsageError: there are too few problems for the goal, whatever the outcomes.
    """
    goal, space, policies, config = request.goal, request.space, request.policies, request.config
    predictor, fixed, plan_only = request.predictor, request.fixed, request.plan_only
    folder = config.path("out")
    check_best_case(goal, session)
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
        if look is not None and first in traces:
            look.refine(traces[first])
        if request.always is not None:
            space = _with_tried(space, next(iter(traces.values()), None), request.always)
            if taken is None:
                session.progress.note(
                    f"scores to try: {', '.join(space.scores)}, of {len(request.space.scores)} that are possible"
                )
        baseline = measure_baseline(session, _usual(session, space), PILOT)
        check_numerical_floor(goal, baseline.alone.accuracy, baseline.numerical_churn, session.progress)
        # Drafts that cannot be traced have a constant T.
        shaped: Shaped = shapes(policies, session, space, traces[first]) if first in traces else {None: None}
        space = replace(space, policies=tuple(shaped))
        # As it is asked for: with more problems, traces may speak for other scores, and the run still goes on.
        asked = replace(space, scores=request.space.scores)
        run = RunName(session, goal, asked, config, _given(request, chosen, session.holdout.sequence))
        trained = request.judged | (frozenset() if chosen is None else chosen.trained())
        extension = None if proposes or taken is not None else extension_of(run, trained)
        if extension is not None:
            run, fixed = replace(run, extends=True), extension.settings
            scores = (*space.scores, *(each.score for each in fixed))  # which traces may not speak for any more
            space = replace(space, scores=tuple(dict.fromkeys(scores)))
        name = f"proposal for {run.text}" if proposes else run.text if taken is None else taken.name
        if not goal.explore:
            session = session.certifying(name, trained)
        if taken is not None:
            session = replace(session, holdout=session.holdout.first(taken.problems))
        if extension is not None:
            session = going_on(session, extension)
        timings = None if taken is None else taken.timings
        facts = begin_or_resume(
            None if proposes else folder, name, run.asked, session.holdout,
            lambda: timings or _timings(session, goal, space, config, fixed, baseline), session.progress,
            None if extension is None else extension.before[-1].place,
            None if taken is None else (taken.problems, taken.seeds),
        )  # fmt: skip
        session.call_rounds(facts.timings.compile)
        claim, level = test_of(session, goal, facts.attempt)
        check_problems(goal, session, session.holdout.problems, level)
        costs = dict(zip(space.compared, facts.timings.costs, strict=True))
        chain = costs[space.compared[0]]
        early = None if chosen is None else stopping_early(chosen, traces[first], chain, session, space, folder)
        drafts = TracedDrafts(session, space, traces, costs)
        forecast = drafts.forecast(early.replayed if early else _replayed(session, space), shaped)
        rival_speeds = drafts.rival_speeds(forecast)
        # Of a token: prompts take as long whatever is accepted, so they lower every gain.
        prefill = facts.timings.prefill * baseline.alone.correct.size / baseline.alone.tokens
        ceiling = drafts.ceiling(rival_speeds, prefill)
    blocks = isinstance(session.engine, OwnEngine) and not session.engine.decoding.sampling.greedy
    rivals = rivals_of(rival_speeds, config.timing != "none", blocks)
    stops = (chosen.folder.resolve(), early.info) if chosen and early else None
    if early is not None:
        session = session.stopping_early(early.policies, stops)
    timer = Timer(session, goal, config.timing, request.sources, forecast, stops)
    fuzzy = _first_fuzzy(session, space, forecast)
    goes_on = goes_on_from(extension)
    designs = goal.min_acc is not None and not goal.explore and goal.guarantee == "population" and extension is None
    pilot = _pilot(session, baseline, fuzzy, claim, designs)
    check_problems(goal, session, session.holdout.problems, level, pilot.accuracy)
    served = Paces(*(_served(m, forecast, session, goal) for m in (baseline.alone, baseline.lossless, fuzzy)))
    pace = facts.pace_of(session.processes) or _pace(session, space, baseline)
    graphs = pace.capture * _shapes(space, config)
    share = expected_share(claim, level, goes_on)
    planned = partial(efforts, session, _paces(pace, served), goal, fixed, share, graphs=graphs)
    timer = timer.within(served, sum(step.seconds for step in planned()))
    steps, seeds = planned(*timer.effort(served)), session.decode.seeds
    plan = make_plan(claim, pilot, session.holdout.problems, level, steps, goes_on, seeds)
    if plan.design is not None:
        plan = replace(
            plan, design_steps=planned(*timer.effort(served), design=plan.design), takes_design=_takes(config, taken),
        )  # fmt: skip
    expected = None if fixed else expected_gain(
        forecast, space, rival_speeds[rivals[0]], fuzzy.setting, pilot, odds_of(claim, pilot, level, seeds),
        session.holdout.problems, prefill,
    )  # fmt: skip
    plan = replace(plan, tokens=fuzzy.tokens / fuzzy.correct.size, ceiling=ceiling, expected=expected)
    info = early.info if early else None
    return Prepared(session, goal, space, facts, forecast, rivals, timer, plan, config, fixed, early_stop=info)


def _replayed(session: Session, space: Space) -> Mapping[str, Any] | None:
    """How replay ends drafts by a policy of the user's own, by score; None: forecasts take drafts as a whole."""
    ending = session.engine.ending
    if ending is not None and ending.replayed is None:
        session.progress.note(
            f"forecasts take drafts as a whole, since the stop policy {ending.name} does not say how it is replayed; "
            "what is decoded and timed ends by it"
        )
    return None if ending is None or ending.replayed is None else dict.fromkeys(space.scores, ending.replayed)


def _with_tried(space: Space, traces: Traces | None, always: tuple[str, ...]) -> Space:
    """Returns the space with the scores to try alone: by traces with one draft, if there are any."""
    found = usual(space.scores) if traces is None else tried(traces, space.rules[0], space.scores)
    return replace(space, scores=tuple(dict.fromkeys((*always, *found))))


def _first_fuzzy(session: Session, space: Space, forecast: Forecast) -> Measurement:
    """Measures the pilot problems under a fuzzy setting that plausibly keeps most of the accuracy."""
    family = space.families[0]
    fuzzy = family[len(family) // 2]
    return session.tuning.measure(fuzzy.at(forecast.threshold(fuzzy, logit(_PLAUSIBLE_SHARE))), PILOT)


def _takes(config: RunConfig, taken: _Taken | None) -> bool | None:
    """See `Plan`; who says how many seeds has no design chosen."""
    return True if taken is not None else None if config.seeds != 1 else False


def _pilot(session: Session, baseline: Baseline, fuzzy: Measurement, claim: Claim, designs: bool) -> Pilot:
    """Returns the pilot; above temperature 0 with two seeds at least, which tell how much outcomes vary within a
    problem, where a design follows from it."""
    alone, lossless = baseline.alone, baseline.lossless if baseline.exact_texts else None
    if designs and session.decode.seeds == 1 and not session.engine.decoding.sampling.greedy:
        twice = session.with_seeds(2).tuning
        alone, fuzzy = (twice.measure(each.setting, each.problems) for each in (alone, fuzzy))
    return Pilot.of(alone, lossless, fuzzy, claim)


def _served(measured: Measurement, forecast: Forecast, session: Session, goal: Goal) -> float:
    """Seconds to decode one problem at the batch size used for timing."""
    tokens = measured.tokens / (measured.problems * session.decode.seeds)
    return tokens / forecast.measured(measured) / goal.serve_batch


def _paces(pace: Pace, served: Paces) -> Paces:
    """Seconds of decodings in the calibration's own batches; of fuzzy ones by their share at --serve-batch."""
    return Paces(pace.target, pace.lossless, pace.lossless * served.fuzzy / served.lossless)


def _given(request: Request, chosen: Chosen | None, sequence: EngineSequence | None) -> dict[str, Any]:
    """What determines the course of some calibrations only."""
    of_predictor = {} if chosen is None else {"predictor": chosen.predictor.fingerprint}
    of_setting = {"fixed": [setting.values for setting in request.fixed]} if request.fixed else {}
    of_scores = {} if request.always is None else {"always": request.always}
    return of_predictor | of_setting | of_scores | ({} if sequence is None else {"sequence": asdict(sequence)})


def test_of(session: TextSession, goal: Goal, attempt: int) -> tuple[Claim, float]:
    """Returns what an attempt of this number claims, and the size of its test."""
    levels = session.holdout.levels(goal.confidence, attempt)
    return claim_of(goal, session.holdout.looks(goal.tests).sized(levels)), sum(levels)


@contextmanager
def _traced(session: Session, space: Space, hidden: Width | None) -> Iterator[dict[str | None, Traces]]:
    """Yields the traces of the first tuning problems, by draft, of those that are models."""
    problems = session.tuning.problems[:TRACED]
    models = [draft for draft in space.drafts if session.with_draft(draft).engine.pair.draft.kind == "model"]
    if space.widths != (None,):  # beams are along no single text
        models = []
    with ExitStack() as opened:
        yield {
            draft: opened.enter_context(traces_along_target(session.with_draft(draft), space.scores, problems, hidden))
            for draft in models
        }


def _timings(
    session: Session, goal: Goal, space: Space, config: RunConfig, fixed: tuple[Setting, ...], baseline: Baseline
) -> Timings:  # fmt: skip
    if (load := machine_load()) is not None and load.busy:
        session.progress.note(
            f"the machine is busy ({load}): what rounds cost, and so what there is to gain, may be off"
        )
    pace, way = _pace(session, space, baseline), config.compile
    if way == "auto":
        rounds = baseline.lossless.rounds / baseline.lossless.correct.size
        way = _what_pays(session, goal, space, config, fixed, pace.lossless, rounds)
        if way != "off":
            session.call_rounds(way)
            pace = _pace(session, space, baseline)
    with session.threads_for(goal.serve_batch):
        costs = tuple(_costs(session, goal, each) for each in space.compared)
        prefill = session.engine.prefill(_costed(session), goal.serve_batch, costs[0])
    return Timings(costs, pace, way, prefill)


def _pace(session: Session, space: Space, baseline: Baseline) -> Pace:
    """The pace of decoding, measured in this process, with rounds called as the session calls them."""
    engine = session.engine
    if isinstance(engine, OwnEngine) and engine.watched and not engine.compile:
        watched = partial(_watched, session)
        return Pace(watched(baseline.lossless), watched(baseline.alone), session.processes)
    alone = partial(_decode_some, session, session.setting("target"))
    lossless = partial(_decode_some, session, _usual(session, space, NEW_LENGTH))
    with session.as_one_worker():
        first = seconds = seconds_of(lossless)
        if engine.compile:  # then that made graphs
            alone()
            seconds = seconds_of(lossless)
        of_target = seconds_of(alone)
    problems = len(_some(session)) * session.processes
    return Pace(seconds / problems, of_target / problems, session.processes, max(first - seconds, 0.0))


def _watched(session: Session, measured: Measurement) -> float:
    """The mean seconds of a decoding, by how many rounds it takes, and how long some with a whole batch take.

    Whole texts would take as long as all that a plan decodes.
    """
    look = Look(torch.device(session.engine.device), time.perf_counter() + WATCHED)
    with session.progress.step("timing rounds", 0), session.as_one_worker():
        session.decode.look(measured.setting, _some(session), session.batch_size, look)
    rounds = measured.rounds / measured.correct.size
    return (look.prefill + rounds * look.round / look.rows) / session.processes


def _what_pays(
    session: Session, goal: Goal, space: Space, config: RunConfig, fixed: tuple[Setting, ...], each: float,
    rounds: float,
) -> Rounds:  # fmt: skip
    """See `what_pays`, for a calibration whose decodings take `each` seconds, in so many rounds."""
    usual = _usual(session, space)
    engine = session.engine_of(usual)
    if not (isinstance(engine, OwnEngine) and engine.watched):
        return "off"
    share = expected_share(*test_of(session, goal, session.holdout.next_attempt))
    steps = efforts(session, Paces(each, each, each), goal, fixed, share)
    here = each * session.processes  # seconds of a decoding in this process alone
    planned = PlannedWork(
        sum(step.seconds for step in steps), _shapes(space, config), here * len(_some(session)),
        here * session.batch_size / rounds,
    )  # fmt: skip
    with session.as_one_worker():
        return what_pays(engine.decoder, partial(_decode_some, session, usual), planned, session.progress)


def _shapes(space: Space, config: RunConfig) -> int:
    """How many shapes of rounds are likely to occur."""
    return len(space.compared) * (_OTHER_SHAPES + min(len(space.draft_lengths), config.trials))


def _usual(session: Session, space: Space, length: int = USUAL_LENGTH) -> Setting:
    return replace(session.setting(session.engine.lossless, length, space.drafts[0]), width=space.widths[0])


def _some(session: Session) -> Sequence[Problem]:
    """Tuning problems for two batches, so that rows are refilled."""
    return session.tuning.problems[: 2 * session.batch_size]


def _decode_some(session: Session, setting: Setting) -> None:
    session.decode.emitted(setting, _some(session), session.batch_size)


def _costs(session: Session, goal: Goal, drafting: Drafting) -> CostModel:
    engine = session.with_draft(drafting.draft).engine
    return engine.costs(_costed(session), goal.serve_batch, session.progress, drafting)


def _costed(session: Session) -> list[KeyedPrompt]:
    return [KeyedPrompt(problem.id, problem.prompt) for problem in session.tuning.problems[:_COSTED]]


def efforts(
    session: TextSession, paces: Paces, goal: Goal, fixed: tuple[Setting, ...], share: float, timed: int = 0,
    timed_seconds: float = 0.0, graphs: float = 0.0, design: Design | None = None,
) -> tuple[PlannedStep, ...]:  # fmt: skip
    """Returns the steps; of a design, where one is given."""
    seeds, problems, holdout = session.decode.seeds, len(session.tuning.problems), session.holdout
    tested = holdout.problems if holdout.extension is None else len(holdout.extension.more)
    if design is not None:
        seeds, tested = design.seeds, design.problems
    return planned_steps(
        paces, few_rows=_FEW_ROWS, tuning=seeds * problems, lossless=seeds * min(COMPARED, problems),
        searched=(len(fixed) or _PASSES) * seeds * problems, certification=0 if goal.explore else seeds * tested,
        likely=_CANDIDATES if goal.pareto else _LIKELY, candidates=len(fixed) or _CANDIDATES, share=share, timed=timed,
        timed_seconds=timed_seconds, counted=seeds * (min(COUNTED, problems) + min(COUNTED, holdout.problems)),
        graphs=graphs, guarded=seeds * sum(len(guard.problems) for guard in session.guards),
    )  # fmt: skip


def check_best_case(goal: Goal, session: TextSession) -> None:
    """UsageError: there are too few problems for the goal, whatever the outcomes, by the attempts of the ledger."""
    check_problems(goal, session, *session.holdout.best_case(goal.confidence))


def check_problems(goal: Goal, session: TextSession, problems: int, level: float, accuracy: float = 1.0) -> None:
    """UsageError: there are too few problems to certify the goal. Not checked if nothing is tested."""
    if not goal.explore:
        out = session.holdout.whole - problems
        check_enough(goal, problems, level, accuracy, session.decode.seeds, out)
