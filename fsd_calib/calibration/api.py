"""`calibrate`: makes a threshold profile for a task, two models and a goal."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from fsd_calib.calibration import output_folder
from fsd_calib.calibration.asked import Asked
from fsd_calib.calibration.drafts import drafts_of, models_among, named
from fsd_calib.calibration.engines import EngineRequest, OpenEngines, open_engines
from fsd_calib.calibration.first_estimate import first_look
from fsd_calib.calibration.guards import check_guards, read_guard
from fsd_calib.calibration.memory import MemoryPlan, capacity_of, context_of, plan_memory, usable
from fsd_calib.calibration.plan import Plan, check_enough, check_worth
from fsd_calib.calibration.prepare import Prepared, Request, designed
from fsd_calib.calibration.recertify import other_models, prompts_of, setting_of
from fsd_calib.calibration.run import find
from fsd_calib.calibration.run_facts import forget
from fsd_calib.calibration.run_file import save_run
from fsd_calib.calibration.session import Session, open_session
from fsd_calib.calibration.timing import check_enough_to_time
from fsd_calib.calibration.to_profile import to_profile
from fsd_calib.calibration.to_record import save_pages
from fsd_calib.engines.beams import BeamEngine, Beams
from fsd_calib.options.goal import Goal
from fsd_calib.options.run_config import MOST_AT_ONCE, RunConfig
from fsd_calib.options.search_space import SearchSpace
from fsd_calib.search.space import Space
from fsd_calib.search.storage_url import check_storage
from fsd_calib.tasks.asking import PromptOptions
from fsd_calib.tasks.base import Task
from fsd_calib.tasks.grading.apart import broken_texts
from fsd_calib.tasks.registry import load_task
from fsd_calib.tasks.split import Parts, parts_of
from fsd_common.addons import Addon
from fsd_common.argument_checks import named as argument
from fsd_common.errors import UsageError
from fsd_common.option import other_names
from fsd_common.progress.base import ProgressEstimate, Silent, showing_whole
from fsd_common.settings import Settings, listed
from fsd_common.user_folders import default_cache, default_state
from fsd_decoding.beams.settings import BeamSettings
from fsd_decoding.config import check_type, refuse_rest
from fsd_decoding.judging.model import JudgeModel
from fsd_decoding.loading import check_loading, shared_tokenizer
from fsd_decoding.model_options import Loading
from fsd_decoding.policies.markers import THINKING, thinking_markers
from fsd_decoding.profile.certificate import attempt_level
from fsd_decoding.profile.threshold_profile import ThresholdProfile
from fsd_decoding.workers.model_workers import Capacity


def calibrate(
    task: str | Task,
    target: Any,
    draft: Any,
    *,
    goal: Goal | None = None,
    decoding: SearchSpace | None = None,
    run: RunConfig | None = None,
    tokenizer: Any = None,
    **keywords: Any,
) -> ThresholdProfile:
    """Finds the fastest setting that keeps `min_acc` of the target's accuracy, the most accurate one that reaches
    `min_speed` tokens/s, or the whole Pareto front, and tests it on problems that were not used to choose it.

    Args:
        task: a task's name, or a `Task` whose prompts suit the target.
        target: hub id, path, or loaded model (then `tokenizer` is needed).
        draft: the same, `Eagle(…)`, a head of the target, `NGram()`, which needs no model, or a list of drafts.
            Several are searched and certified together, in one attempt; the profile names the chosen draft, or, if
            nothing is certified, the one with which lossless decoding is fastest.
        goal: the accuracy or speed to reach, and the confidence of the certificate.
        decoding: the search space, and how tokens are drawn. The search chooses among several values of a field.
            `tree` may be a list of shapes, in which "chain" or None stands for chains. `threshold_policy` may be the
            name of a family in `policy_families.FAMILIES`, which searches all of its shapes; a policy object, whose T
            is ignored; or a list of these.
        run: how the calibration is run, and where its files are stored.
        tokenizer: the tokenizer of loaded models.
        keywords: fields of the three objects (`min_acc=0.98`, `score="js"`, `temperature=0.6`, `limit=1500`, …),
            which take precedence over the objects. None keeps what `decoding` has.

    Returns:
        the profile; `profile.met` tells whether the goal was met.

    Raises:
        UsageError: bad input, models that cannot be used together, a target that solves no problem, or too few
            problems to certify the goal.
        NotWorthItError: not even accepting every drafted token gains `min_gain` over the best lossless setting.
    """
    searched = {*SearchSpace.model_fields, *other_names(SearchSpace)}
    given = {name: value for name, value in keywords.items() if value is not None or name not in searched}
    space = SearchSpace.over(_given("decoding", decoding, SearchSpace), given)
    config = RunConfig.over(_given("run", run, RunConfig), given)
    wanted = Goal.over(_given("goal", goal, Goal), given)
    refuse_rest("calibrate", given)
    calibration = Calibration(task, target, draft, wanted, space, config, tokenizer)
    profile = calibration.run()
    save_run(calibration, profile)
    return profile


def _given(name: str, settings: Settings | None, kind: type[Settings]) -> dict[str, Any]:
    found = check_type(name, settings, kind)
    return {} if found is None else found.given


def _with_keywords(function: Any) -> inspect.Signature:
    """The signature with the fields of the three objects, for help and completion."""
    own = list(inspect.signature(function).parameters.values())
    fields = {**Goal.model_fields, **SearchSpace.model_fields, **RunConfig.model_fields}
    more = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=field.annotation)
        for name, field in fields.items()
    ]
    return inspect.Signature([*own[:-1], *more], return_annotation=ThresholdProfile)


calibrate.__signature__ = _with_keywords(calibrate)  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Calibration(Asked):
    """A calibration that is fully specified: `plan` stops before the long work, `run` does it."""

    def _check_sizes(self, vocabulary: int, context: int | None) -> None:
        """UsageError: a tree is larger than the vocabulary or the models' context, which decoding would show late."""
        for tree in filter(None, self.decoding.trees):
            if tree.top_k > vocabulary:
                raise UsageError(
                    f"tree is {tree.text}, and there are {vocabulary} tokens to draft; give a smaller top_k"
                )
            if context is not None and tree.nodes >= context:
                raise UsageError(f"tree is {tree.text}, and the models' context is {context} tokens; give fewer nodes")

    def plan(self) -> Plan:
        """Forecasts what the goal needs and what these problems can show, from a pilot on the first of them.

        Reads what an earlier run of the same left in `out`, leaves nothing in the folder of none, and trains no
        predictor.
        """
        out = self.config.path("out")
        kept = out if out is not None and output_folder.is_own(out, self) else None
        outlook = ProgressEstimate()
        with showing_whole(self.config.reporter, outlook), self._prepared(kept, outlook, plan_only=True) as ready:
            return ready.plan

    def run(self, show_plan: Callable[[Plan], None] = lambda plan: None) -> ThresholdProfile:
        """Returns the profile and saves it in `out`, if given, with its record and its page; see `output_folder`.

        Args:
            show_plan: receives the plan before the long work.
        """
        outlook, before, out = ProgressEstimate(), broken_texts(), self.config.path("out")
        made = nullcontext() if out is None else output_folder.made(out)
        with made, showing_whole(self.config.reporter, outlook), self._prepared(out, outlook) as ready:
            if out is not None:
                output_folder.claim(out, self)
            show_plan(ready.plan)
            if out is not None and not ready.plan.worth_it:
                forget(out, ready.facts.name)
            check_worth(ready.plan)
            findings = find(ready, outlook)
            if broken := broken_texts() - before:
                self.config.reporter.note(f"texts that broke the grader, and count as wrong: {broken}")
            outlook.begin("report")
            profile = to_profile(findings)
            if out is not None and output_folder.save(profile, out, self):
                save_pages(findings, profile, out)
        return profile

    @contextmanager
    def _prepared(self, out: Path | None, outlook: ProgressEstimate, plan_only: bool = False) -> Iterator[Prepared]:
        """What is ready for the long work, which writes to `out`, or what its plan needs alone."""
        began, asked = time.monotonic(), self.config
        if (folder := asked.path("out")) is not None:
            output_folder.check_own(folder, self)
        check_storage(asked.study_storage)
        config = asked.changed(out=out, cache=asked.cache or default_cache(), state=asked.state or default_state())
        with self.opened(config) as (session, engines, memory):
            for line in other_models(self.fixed, session.engine.pair) if self.fixed else ():
                config.reporter.note(line)
            fixed = () if self.fixed is None else (setting_of(self.fixed),)
            space = replace(self._space, drafts=tuple(session.drafts) or (None,))
            session, space, judged = self._with_judge(session, space, out, plan_only)
            request = Request(
                self.goal, space, self._policies, self.decoding.predictor, config, self.sources, fixed, plan_only,
                self._always(judged), outlook, frozenset() if judged is None else judged.trained_ids,
            )  # fmt: skip
            look = first_look(session, request)  # before threads are chosen, which takes rounds of a whole batch
            first = None if look is None else look.estimate()
            with session.threads_for(session.batch_size):
                ready = designed(session, request, look)
            if memory is not None and isinstance(session.engine, BeamEngine):
                memory = replace(memory, slots=session.engine.most_slots)
            plan = replace(
                ready.plan, memory=memory, compile=ready.facts.timings.compile, devices=engines.devices,
                on_cpu=engines.on_cpu, engine=session.engine.info,
                attempt=None if self.goal.explore else ready.facts.attempt,
                min_gain=None if ready.fixed or self.goal.min_speed is not None else config.min_gain,
                price_per_hour=config.price_per_hour, first=first,
            )  # fmt: skip
            yield replace(ready, plan=plan, seconds=time.monotonic() - began)

    def _with_judge(
        self, session: Session, space: Space, out: Path | None, plan_only: bool
    ) -> tuple[Session, Space, JudgeModel | None]:
        """Returns the session and the space with the judge that is given or trained, if one is asked for."""
        if self._judge is None and not self._trains_judge:
            return session, space, None
        from fsd_calib.calibration.judge import apart, check, trained_here  # which import what trains judges

        if (judge := self._judge) is None:
            judge = trained_here(session, self.decoding, out, train=not plan_only)
            if judge is None:
                session.progress.note(
                    "a run trains its judge first; the plan lacks the time of that, and forecasts "
                    f"{' and '.join(space.scores)} in its place"
                )
                return session, space, None
            others = space.scores if self._given_scores else ()
            space = replace(space, scores=(*others, judge.name))
        check(judge, session)
        return session if self.fixed else apart(session, judge), space, judge

    @contextmanager
    def opened(self, config: RunConfig) -> Iterator[tuple[Session, OpenEngines, MemoryPlan | None]]:
        """Loads models and task, and opens the folders that `config` names; None stores nothing."""
        read = self._read(config)
        request = EngineRequest(
            self.sources, self._first, read.config, read.divided, read.guards, read.tokenizer, self._fly_alone,
            self._longest, self.goal.serve_batch, read.capacity, self.decoding.stop_policy, read.beams,
        )  # fmt: skip
        with open_engines(request) as opened:
            engines = named(opened.engines)
            engine = next(iter(engines.values()), opened.engines[0])
            with open_session(
                engine, read.task, read.config, engines, read.parts, opened.workers, self.sequence, self.goal.acc,
                read.guards,
            ) as session:  # fmt: skip
                yield session, opened, read.memory

    def check(self) -> None:
        """Reads all that needs no weights: tokenizers, problems and models' configurations.

        Raises:
            UsageError: One of them is refused, as `run` would refuse it.
        """
        self._read(self.config.changed(progress=Silent()))  # a run reads them again, and tells of them then

    def _read(self, config: RunConfig) -> _Read:
        drafts = drafts_of(self.draft)
        loaded = models_among(drafts)
        with config.reporter.step("reading tokenizers and problems", 0):  # before the weights: it may refuse them
            loading = check_loading(
                self.target, loaded or drafts, config.device, config.model_kwargs, config.draft_model_kwargs
            )
            tokenizer = shared_tokenizer(self.target, drafts[0], self.tokenizer, loading)
            for draft in drafts[1:]:
                shared_tokenizer(self.target, draft, tokenizer, loading)
            models = [(self.target, loading.target), *((draft, loading.draft) for draft in loaded)]
            # vLLM's texts end with the shorter context, ours with the target's.
            limits = [context_of(*model) for model in (models if config.engine == "vllm" else models[:1])]
            context = min((limit for limit in limits if limit is not None), default=None)
            self._check_sizes(len(tokenizer), context)
            task = usable(self._with_phase(self._task(tokenizer), tokenizer), tokenizer, context, config.reporter.note)
            guards = self._guards(task, tokenizer, context)
            for line in _code_of_others((task, *guards), loading, self._addons):
                config.reporter.note(line)
            beams = self._beams(task)
            parts, memory = self._checked(task, guards, tokenizer)
            divided = _divided(task, parts)
            capacity = capacity_of(divided.problems, memory, config.batch_size or MOST_AT_ONCE)
            config = config.changed(batch_size=memory.batch_size if memory else config.batch_size)
        return _Read(config, task, guards, tokenizer, divided, parts, memory, capacity, beams)

    def _checked(self, task: Task, guards: Sequence[Task], tokenizer: Any) -> tuple[Parts, MemoryPlan | None]:
        """The parts and the memory plan.

        UsageError: problems, models' configurations or memory do not suffice, which needs no weights to tell. The
        ledger, which may count more attempts, is read once the target's fingerprint is known.
        """
        asked = self.decoding
        trains = asked.predictor is not None or self._trains_judge or "per-prompt" in self._policies
        parts, goal = parts_of(task, trains), self.goal
        count = len(parts.certification)
        if not goal.explore:
            seeds = 1 if self.decoding.sampling.greedy else self.config.seeds
            check_enough(goal, count, attempt_level(goal.confidence, 1), seeds=seeds)
        if self.config.timing != "none":
            check_enough_to_time(parts, goal.serve_batch)
        if self.config.engine == "vllm":  # which finds out itself what it has room for
            return parts, None
        memory = plan_memory(
            self.target, drafts_of(self.draft), tokenizer, [_divided(task, parts), *guards],
            self.decoding.sampling, self._longest, goal.serve_batch, self.config,
            None if asked.beams is None else BeamSettings(asked.beams, max(asked.widths)),
        )  # fmt: skip
        return parts, memory

    def _beams(self, task: Task) -> Beams | None:
        """UsageError: the task has no answers to vote by."""
        asked = self.decoding
        if asked.beams is None:
            return None
        return Beams(asked.beams, None if asked.beam_answer == "best" else task, asked.replacement)

    def _task(self, tokenizer: Any) -> Task:
        if isinstance(self.task, Task):
            if self.config.prompts != PromptOptions():
                raise UsageError("a Task has its prompts already; give chat_template_kwargs, system, … to load_task")
            return self.task
        config = self.config
        source = self.task if self.fixed is None else prompts_of(self.fixed, self.task)
        task = load_task(
            source,
            self.decoding.seed,
            config.limit,
            config.path("data"),
            tokenizer,
            config.group,
            **dict(config.prompts),
        )
        if self.fixed is not None and task.prompt != self.fixed.prompt:
            config.reporter.note(f"prompts are made otherwise than those of the profile of {self.fixed.task!r}")
        return task

    def _with_phase(self, task: Task, tokenizer: Any) -> Task:
        """Returns the task with the markers of its phase, if T moves by it: those given, those of thinking, or its own.

        UsageError: there are none.
        """
        if not self.decoding.phases:
            return task
        begin, end = self.decoding.phase_begin, self.decoding.phase_end
        given = None if begin is None or end is None else (begin, end)
        phase = given or thinking_markers(tokenizer) or task.phase
        if phase is None:
            raise UsageError(
                f"the model's chat template and tokens have no markers of thinking ({' '.join(THINKING[0])}, …), and "
                f"task {task.name} has no phase; give {argument('phase_begin')} and {argument('phase_end')}"
            )
        return replace(task, phase=phase)

    def _guards(self, task: Task, tokenizer: Any, context: int | None) -> tuple[Task, ...]:
        """The tasks to guard, each with the tuning problems that are decoded."""
        names, config = listed(self.config.guard or ()), self.config
        if self.goal.pareto and names:
            raise UsageError(f"{argument('guard')} is given, and a front chooses no setting; leave it out")
        for place, name in enumerate(names):
            if name == task.name or name in names[:place]:
                what = "the task that is certified" if name == task.name else "given twice"
                raise UsageError(f"{argument('guard')} {name!r} is {what}; leave it out")
        arguments = config.prompts.chat_template_kwargs
        load = partial(
            load_task, seed=self.decoding.seed, limit=config.limit, tokenizer=tokenizer, chat_template_kwargs=arguments
        )
        guards = tuple(read_guard(name, load, tokenizer, context, config.reporter.note) for name in names)
        check_guards(task, guards)
        return guards


class _Read(NamedTuple):
    """What is read before the weights.

    Attributes:
        config: With the batch size that memory allows.
        divided: The task with the problems that may be decoded.
        capacity: What limits the number of workers.
        beams: What each prompt is decoded to; None: a single text.
    """

    config: RunConfig
    task: Task
    guards: tuple[Task, ...]
    tokenizer: Any
    divided: Task
    parts: Parts
    memory: MemoryPlan | None
    capacity: Capacity
    beams: Beams | None


def _divided(task: Task, parts: Parts) -> Task:
    """Returns the task with the problems that may be decoded."""
    return replace(task, problems=(*parts.tuning, *parts.certification))


def _code_of_others(tasks: Sequence[Task], loading: Loading, addons: Iterable[Addon]) -> Iterator[str]:
    """Yields a line for whatever runs code that neither this package nor its libraries bring."""
    for each in addons:
        whose = "its module" if each.package is None else f"{each.package} {each.version}"
        yield f"the {each.kind} {each.name} runs code: that of {whose}"
    for task in tasks:
        if task.runs:
            yield f"task {task.name} runs code: its grader is the function {task.runs}"
    for role, options in (("target", loading.target), ("draft", loading.draft)):
        if options.others.get("trust_remote_code"):
            yield f"the {role} runs code: that of its own folder (trust_remote_code)"
