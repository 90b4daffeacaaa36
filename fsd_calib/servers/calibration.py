"""Calibration of a server's knob, by outcomes and clocks alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from fsd_calib.calibration import output_folder
from fsd_calib.calibration.pilot import Pilot
from fsd_calib.calibration.plan import Paces, Plan, expected_share, make_plan
from fsd_calib.calibration.prepare import PILOT, check_best_case, check_problems, efforts, test_of
from fsd_calib.calibration.ready import Ready
from fsd_calib.calibration.run import find
from fsd_calib.calibration.run_facts import Pace, Timings, begin_or_resume
from fsd_calib.calibration.run_name import RunName
from fsd_calib.calibration.session import DECODINGS, TextSession
from fsd_calib.calibration.timing import ALWAYS
from fsd_calib.certification.attempt_ledger import AttemptLedger
from fsd_calib.certification.holdout import Holdout, TuningRecord
from fsd_calib.certification.marking import LEDGER
from fsd_calib.measuring.evaluator import CachedDecoder, Evaluator
from fsd_calib.measuring.measurement import Decoding, Seeds
from fsd_calib.measuring.result_cache import ResultCache
from fsd_calib.options.goal import Goal
from fsd_calib.options.run_config import RunConfig
from fsd_calib.options.search_space import SearchSpace
from fsd_calib.options.server import ServerDescription
from fsd_calib.search.space import Space
from fsd_calib.search.storage_url import check_storage
from fsd_calib.servers.identity import generation_of, probe
from fsd_calib.servers.ladder import LadderForecast
from fsd_calib.servers.load import Load
from fsd_calib.servers.prompting import engine_for, task_for
from fsd_calib.servers.requests import ServerEngine, setting_of
from fsd_calib.servers.served import Served
from fsd_calib.servers.timer import LoadTimer, time_in_turn
from fsd_calib.servers.to_profile import to_profile
from fsd_calib.tasks.base import Problem, Task
from fsd_calib.tasks.grading.apart import broken_texts
from fsd_calib.tasks.split import Parts, parts_of
from fsd_collectors.replay.cost import CostModel
from fsd_common.argument_checks import named
from fsd_common.digests import facts_digest
from fsd_common.errors import UsageError
from fsd_common.progress.base import Progress, ProgressEstimate, showing_whole
from fsd_common.settings import Settings
from fsd_common.user_folders import default_cache, default_state
from fsd_decoding.profile.server_profile import ServerProfile
from fsd_decoding.profile.setting import KNOB, Setting

LOG = "server.log"
_LOOKED = 24  # problems by which each value's speed is measured at first
_TURNS = 8  # of a first measurement
_OF_SAMPLING = {"temperature", "top_k", "top_p", "min_p", "seed"}
_OF_RUN = {
    "data", "limit", "group", "seeds", "min_gain", "trials", "timing", "engine", "out", "replace", "cache", "state",
    "storage", "progress", "system", "chat_template_kwargs", "max_new_tokens", "answer_after",
}  # fmt: skip


@dataclass(frozen=True)
class ServerCalibration:
    """A calibration of a server that is fully specified: `plan` stops before the long work, `run` does it.

    Args:
        task: A task's name, or the path of its file.
        server: With a knob and a lossless reference.
        goal, decoding, config: See `Calibration`; what a server cannot do is refused.

    Raises:
        UsageError: The server lacks a knob or a reference, or something is asked for that it cannot do.
    """

    task: str
    server: ServerDescription
    goal: Goal
    decoding: SearchSpace
    config: RunConfig

    fixed = None  # a setting is always searched

    def __post_init__(self) -> None:
        if self.server.knob is None or self.server.reference is None:
            lacks = "knob" if self.server.knob is None else "reference"
            raise UsageError(f"server has no {lacks}, which a calibration sets; describe it (docs/servers.md)")
        others = [name for name in _changed(self.decoding) if name not in _OF_SAMPLING]
        others += [name for name in _changed(self.config) if name not in _OF_RUN]
        if others:
            raise UsageError(
                f"{named(others[0])} is given, and a server decodes as it was started; leave it out, or calibrate with "
                f"{named('engine')} fsd-calib or vllm"
            )
        if self.config.timing == "none" and self.goal.min_speed is not None:
            raise UsageError(f"{named('min_speed')} takes timing, and {named('timing')} is none; leave one of them out")
        if self.config.timing == "careful":
            raise UsageError(f"{named('timing')} careful starts processes anew, and a server is none; leave it out")

    @property
    def target(self) -> str:
        """What identifies the server's model, for its folder."""
        return self.server.name or self.server.model

    @property
    def draft(self) -> str:
        """What else of the server its folder is called by."""
        return self.server.knob.name  # type: ignore[union-attr]  # checked when it was made

    def plan(self) -> Plan:
        """See `Calibration.plan`."""
        out, outlook = self.config.path("out"), ProgressEstimate()
        kept = out if out is not None and output_folder.is_own(out, self) else None
        with showing_whole(self.config.reporter, outlook), self._prepared(kept) as ready:
            return ready.plan

    def run(self, show_plan: Callable[[Plan], None] = lambda plan: None) -> ServerProfile:
        """Returns the profile and saves it in `out`, if given.

        Args:
            show_plan: receives the plan before the long work.
        """
        outlook, before, out = ProgressEstimate(), broken_texts(), self.config.path("out")
        made = nullcontext() if out is None else output_folder.made(out)
        with made, showing_whole(self.config.reporter, outlook), self._prepared(out) as ready:
            if out is not None:
                output_folder.claim(out, self)
            show_plan(ready.plan)
            findings = find(ready, outlook)
            if broken := broken_texts() - before:
                self.config.reporter.note(f"texts that broke the grader, and count as wrong: {broken}")
            engine = ready.session.engine
            assert isinstance(engine, ServerEngine)
            profile = to_profile(findings, engine)
            if out is not None:
                output_folder.save(profile, out, self)
        return profile

    def load_task(self) -> Task:
        """Returns the task, with prompts as the server is asked."""
        config = self.config
        return task_for(
            self.server, self.task, seed=self.decoding.seed, limit=config.limit, data=config.path("data"),
            group=config.group, **dict(config.prompts),
        )  # fmt: skip

    def parts(self) -> Parts:
        """Returns the tuning and the certification part."""
        return parts_of(self.load_task())

    @contextmanager
    def _prepared(self, out: Path | None) -> Iterator[Ready]:
        """What is ready for the long work, which writes to `out`."""
        began, asked = time.monotonic(), self.config
        if (folder := asked.path("out")) is not None:
            output_folder.check_own(folder, self)
        check_storage(asked.study_storage)
        config = asked.changed(out=out, cache=asked.cache or default_cache(), state=asked.state or default_state())
        task = self.load_task()
        parts = parts_of(task)
        for note in parts.notes:
            config.reporter.note(note)
        log = nullcontext(str(out)) if out is not None else TemporaryDirectory()
        with (
            log as place,
            Served(self.server, Path(place, LOG), config.reporter) as served,
            self._opened(config, task, parts, served) as (session, engine),
        ):
            yield replace(self._ready(session, engine, config), seconds=time.monotonic() - began)

    @contextmanager
    def _opened(
        self, config: RunConfig, task: Task, parts: Parts, served: Served
    ) -> Iterator[tuple[TextSession, ServerEngine]]:
        engine = engine_for(served, task, self.decoding.sampling, self.decoding.seed)
        cache, state, progress = config.path("cache"), config.path("state"), config.reporter
        self._tell_from_before(engine, cache, progress)
        seeds = 1 if self.decoding.sampling.greedy else config.seeds
        with (
            ResultCache(cache and cache / DECODINGS) as store, AttemptLedger(state and state / LEDGER) as ledger,
        ):  # fmt: skip
            # Outcomes are those of the load, where it has several streams.
            at_once = self.goal.serve_batch if self.goal.serve_batch > 1 else self.server.at_once
            cached = CachedDecoder(engine, task, store, at_once, progress, seeds)
            alone = Setting.alone(engine.score)
            graded = f" graded by {task.graded}" if task.graded else ""
            identity = f"{cached.key(alone).json} with {cached.seeds} seeds{graded}"
            tuned = TuningRecord(ledger, engine.family)
            decode = _BesideReference(cached, alone)
            tuning = Evaluator(tuned.before(decode), parts.tuning, "tuning")
            holdout = Holdout(
                Evaluator(decode, parts.certification, "certification"), ledger, engine.family,
                f"{task.claim}, {self.goal.acc}", identity,
            )  # fmt: skip
            yield (
                TextSession(
                    engine, task, cached, identity, tuning, tuned, holdout, at_once, progress
                ), engine,
            )  # fmt: skip

    def _tell_from_before(self, engine: ServerEngine, cache: Path | None, progress: Progress) -> None:
        """Numbers the server among those that say the same of themselves, by what it answers to some fixed prompts,
        losslessly and at the loosest value: what was asked of another one is not reused."""
        knob = self.server.knob
        assert knob is not None
        # Wherever it is: another address may be of another server that says the same.
        said = facts_digest([engine.key(Setting.alone(engine.score), 0).engine, knob.ladder[-1]])[:16]
        probed = [probe(engine.served.at(value)) for value in (None, knob.ladder[-1])]
        number = generation_of(None if cache is None else cache / f"server-{said}.json", probed)
        if number:
            progress.note(
                f"the server answers fixed prompts otherwise than {number} before it that said the same of themselves: "
                "what was asked of those is not reused"
            )
        engine.identity = replace(engine.identity, generation=number)

    def _ready(self, session: TextSession, engine: ServerEngine, config: RunConfig) -> Ready:
        """Measures speeds and a pilot, and makes the plan."""
        goal, out = self.goal, config.path("out")
        load = Load(goal.serve_batch, goal.rate)
        check_best_case(goal, session)
        ladder = [setting_of(self.server, value) for value in self.server.knob.ladder]  # type: ignore[union-attr]
        space = Space((KNOB,), (engine.score,), (1,))
        given = {"ladder": [setting.values for setting in ladder], "load": str(load)}
        run = RunName(session, goal, space, config, given)
        if not goal.explore:
            session = session.certifying(run.text, frozenset())
        facts = begin_or_resume(
            out, run.text, run.asked, session.holdout, lambda: _measured(session, engine, ladder, load),
            session.progress,
        )  # fmt: skip
        claim, level = test_of(session, goal, facts.attempt)
        check_problems(goal, session, session.holdout.problems, level)
        lossless, *speeds = (float(cost.tokens_per_second(1, 1, 0)) for cost in facts.timings.costs)
        forecast = LadderForecast(ladder, dict(zip(ladder, speeds, strict=True)), lossless)
        timer = LoadTimer(session, engine, load, config.timing, forecast, goal.confidence)
        target = session.setting("target")
        alone = session.tuning.measure(target, PILOT)
        if not alone.correct.any():
            raise UsageError(
                f"the server solves none of {alone.problems} {session.task.name} problems, so retention is undefined; "
                f"look at a prompt ({named('show_prompt')}), or at what the server answers"
            )
        again = session.tuning.measure(target.under(engine.lossless), PILOT) if engine.exact_texts else None
        fuzzy = session.tuning.measure(ladder[len(ladder) // 2], PILOT)
        pilot = Pilot.of(alone, again, fuzzy, claim)
        check_problems(goal, session, session.holdout.problems, level, pilot.accuracy)
        pace = facts.timings.pace
        steps = efforts(
            session, Paces(pace.target, pace.lossless, pace.lossless), goal, (), expected_share(claim, level)
        )
        timed = 0.0 if config.timing == "none" else max(sum(step.seconds for step in steps) / 3, ALWAYS)
        timer = replace(timer, seconds=timed)
        steps = (*steps[:-1], replace(steps[-1], once=timed))
        plan = make_plan(claim, pilot, session.holdout.problems, level, steps, seeds=session.decode.seeds)
        plan = replace(
            plan, engine=engine.info, attempt=None if goal.explore else facts.attempt, design=None,
            tokens=fuzzy.tokens / fuzzy.correct.size,
        )  # fmt: skip
        return Ready(session, goal, space, facts, forecast, (target,), timer, plan, config)


def _changed(settings: Settings) -> Iterator[str]:
    """The names of fields that have not the usual value, as the file beside a profile has them all."""
    usual = type(settings)()
    return (name for name in type(settings).model_fields if getattr(settings, name) != getattr(usual, name))


class _BesideReference:
    """Decodes and grades problems, where what the reference leaves unanswered is right under no setting.

    So its problems count for none: neither side solves them.

    Args:
        decode: What decodes and grades.
        alone: The reference.
    """

    def __init__(self, decode: CachedDecoder, alone: Setting) -> None:
        self._decode, self._alone = decode, alone
        self._answered: dict[int, list[bool]] = {}  # by problem and seed

    def __call__(self, setting: Setting, problems: Sequence[Problem]) -> Sequence[Seeds]:
        if setting == self._alone:
            found = self._decode(setting, problems)
            self._answered |= {p.id: [one.rounds > 0 for one in of] for p, of in zip(problems, found, strict=True)}
            return found
        if unknown := [problem for problem in problems if problem.id not in self._answered]:
            self(self._alone, unknown)
        found = self._decode(setting, problems)
        answered = [self._answered[problem.id] for problem in problems]
        return [tuple(map(_if_answered, *both)) for both in zip(found, answered, strict=True)]


def _if_answered(decoding: Decoding, answered: bool) -> Decoding:
    return decoding if answered else replace(decoding, correct=False)


def _measured(session: TextSession, engine: ServerEngine, ladder: Sequence[Setting], load: Load) -> Timings:
    """Returns seconds per token of the reference and of each value, as costs, and of a text while calibrating."""
    alone, problems = session.setting("target"), session.tuning.problems
    began, before = time.monotonic(), session.decode.decoded
    session.tuning.measure(alone, PILOT)
    each = (time.monotonic() - began) / max(session.decode.decoded - before, 1)  # 0: an earlier run asked for all
    looked = problems[: max(_LOOKED, 4 * load.at_once)]
    told = _rounds_told(session, engine, ladder)
    timed = [alone] if told else [alone, *ladder]
    speeds, _ = time_in_turn(engine, timed, looked, load, most=_TURNS, progress=session.progress)
    lossless = speeds.of(alone).value
    gains = told or [speeds.ratio(setting, alone).value for setting in ladder]
    costs = tuple(CostModel(0.0, 1 / (lossless * gain)) for gain in (1.0, *gains))
    return Timings(costs, Pace(each, each))


def _rounds_told(session: TextSession, engine: ServerEngine, ladder: Sequence[Setting]) -> list[float] | None:
    """Returns how many times the reference's tokens a round makes at each value; None: the server does not tell.

    A round of one server takes as long at each value, so that is how many times as fast it is, without a clock's noise.
    """
    reference = engine.served.description.reference
    if reference is None or reference.url is not None:
        return None
    alone = session.tuning.measure(session.setting("target"), _LOOKED)
    if alone.rounds >= alone.tokens:  # as where nothing is told
        return None
    made = (session.tuning.measure(setting, _LOOKED) for setting in ladder)
    return [each.tokens_per_round / alone.tokens_per_round for each in made]
