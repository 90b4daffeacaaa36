"""`calibrate`: makes a threshold profile for a task, two models and a goal."""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from fsd_calib.calibrate_options import MOST_AT_ONCE, Goal, RunConfig, SearchSpace
from fsd_calib.calibration import output_folder
from fsd_calib.calibration.auto_scores import USUAL, possible
from fsd_calib.calibration.design import check_design
from fsd_calib.calibration.draft_forecasts import SD_LENGTHS
from fsd_calib.calibration.drafts import drafts_of, models_among, named
from fsd_calib.calibration.engines import EngineRequest, OpenEngines, check_vllm, open_engines
from fsd_calib.calibration.first_estimate import first_look
from fsd_calib.calibration.going_on import check_extends
from fsd_calib.calibration.guards import check_guards, read_guard
from fsd_calib.calibration.memory import MemoryPlan, capacity_of, context_of, plan_memory, usable
from fsd_calib.calibration.plan import Plan, check_enough, check_worth
from fsd_calib.calibration.policy_families import PolicyChoice, check_policies
from fsd_calib.calibration.prepare import NEW_LENGTH, Prepared, Request, designed
from fsd_calib.calibration.recertify import other_models, prompts_of, setting_of
from fsd_calib.calibration.run import find
from fsd_calib.calibration.run_facts import forget
from fsd_calib.calibration.run_file import save_run
from fsd_calib.calibration.session import Session, open_session
from fsd_calib.calibration.timing import check_enough_to_time, check_timing
from fsd_calib.calibration.to_profile import to_profile
from fsd_calib.calibration.to_record import save_pages
from fsd_calib.certification.holdout import EngineSequence
from fsd_calib.common_options import AUTO, CONSTANT, RULES_WITH_T, family_of
from fsd_calib.search.space import Space
from fsd_calib.search.storage_url import check_storage
from fsd_calib.tasks.asking import PromptOptions
from fsd_calib.tasks.base import Task
from fsd_calib.tasks.grading.apart import broken_texts
from fsd_calib.tasks.registry import load_task
from fsd_calib.tasks.split import Parts, parts_of
from fsd_collectors.replay.cases import replayable
from fsd_common.addons import Addon, AddonKind, addon
from fsd_common.argument_checks import named as argument
from fsd_common.errors import UsageError
from fsd_common.option import other_names
from fsd_common.progress.base import ProgressEstimate, Silent, showing_whole
from fsd_common.settings import Settings, listed
from fsd_common.user_folders import default_cache, default_state
from fsd_decoding.config import DecodingConfig, check_type, refuse_rest
from fsd_decoding.drafters.named import NamedDrafter
from fsd_decoding.judging.known import is_judge, model_named, register
from fsd_decoding.judging.model import JudgeModel
from fsd_decoding.loading import check_loading, shared_tokenizer
from fsd_decoding.meanings import LEARNED
from fsd_decoding.model_options import Loading
from fsd_decoding.policies.markers import THINKING, thinking_markers
from fsd_decoding.policies.stopping import StopPolicy, stop_policy_named
from fsd_decoding.profile.drafts import kind_of
from fsd_decoding.profile.parts import attempt_level
from fsd_decoding.profile.threshold_profile import ThresholdProfile
from fsd_decoding.rules import rule_named
from fsd_decoding.scores import Fly, score_named
from fsd_decoding.workers.model_workers import Capacity, Sources

DRAFT_LENGTHS = tuple(range(1, 13))
TREE_DEPTHS = (2, 3, 4, 5, 6, 8)
LONGEST_DRAFT = 16  # where a predictor ends drafts early


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
class Calibration:
    """A calibration that is fully specified: `plan` stops before the long work, `run` does it.

    Args:
        task, target, draft, goal, decoding, tokenizer: see `calibrate`.
        config: how the calibration is run.
        fixed: the profile whose setting is certified, found elsewhere; `decoding` has no other (see `decoding_of`).
            None: a setting is searched for.
        sequence: engines that certify it in turn, of which this is one; None: this one alone does.

    Raises:
        UsageError: the setting cannot be searched, or contradicts itself.
    """

    task: str | Task
    target: Any
    draft: Any
    goal: Goal
    decoding: SearchSpace = field(default_factory=SearchSpace)
    config: RunConfig = field(default_factory=RunConfig)
    tokenizer: Any = None
    fixed: ThresholdProfile | None = None
    sequence: EngineSequence | None = None

    server = None  # its engines are known from inside

    def __post_init__(self) -> None:
        check_policies(self._policies)
        for rule in listed(self.decoding.rule):
            _check_rule(rule)
        for score in self._scores:
            score_named(score)  # raises UsageError
        drafts = drafts_of(self.draft)
        if other := next((draft for draft in drafts if kind_of(draft) != "model"), None):
            self.decoding.check_walked(f"the draft is {other!r:.60}", "drafts by it")
        if len(drafts) > 1 and self.fixed is not None:
            raise UsageError(f"the profile's setting has one draft, and {len(drafts)} are given; give one of them")
        if self.decoding.stop_policy is not None:
            _check_ending(stop_policy_named(self.decoding.stop_policy), self.decoding)
        if len(drafts) > 1 and (self.decoding.predictor is not None or "per-prompt" in self._policies):
            what = "a predictor" if self.decoding.predictor is not None else "policy per-prompt"
            raise UsageError(f"{what} is learned with one draft, and {len(drafts)} are given; give one of them")
        for name in ("rate", "slo"):
            if getattr(self.goal, name) is not None:
                raise UsageError(
                    f"{argument(name)} is of a server's load, and {argument('engine')} is {self.config.engine!r}; "
                    "leave it out"
                )
        check_timing(self.config.timing, self.goal, self.sources)
        check_design(self.goal, self.config, self.sequence is not None)
        check_extends(self.goal, self.decoding, self.config)
        of_vllm = next((draft for draft in drafts if kind_of(draft) == "vllm"), None)
        if self.config.engine != "vllm" and of_vllm is not None:
            raise UsageError(
                f"the draft is vLLM's own, {of_vllm!r}, and {argument('engine')} is {self.config.engine!r}; give "
                f"{argument('engine')} vllm"
            )
        if self.config.engine == "vllm":
            if self._trains_judge:
                raise UsageError(
                    f"{argument('judge')} is {AUTO!r}, and a judge is trained by our own engine; calibrate with "
                    f"{argument('engine')} fsd-calib first, and give the judge.json that it writes"
                )
            asked = self.decoding.changed(score=self._scores, judge=None) if self._judge else self.decoding
            check_vllm(self.sources, asked, self.config, self._policies, self.goal.serve_batch)

    def _check_sizes(self, vocabulary: int, context: int | None) -> None:
        """UsageError: a tree is larger than the vocabulary or the models' context, which decoding would show late."""
        for tree in filter(None, self.decoding.trees):
            if tree.top_k > vocabulary:
                raise UsageError(
                    f"tree is {tree.text}, and there are {vocabulary} tokens to draft; give a smaller top_k"
                )
            if context is not None and tree.nodes >= context:
                raise UsageError(f"tree is {tree.text}, and the models' context is {context} tokens; give fewer nodes")

    @property
    def models(self) -> tuple[Any, Any]:
        """The target and the first draft, as they were given."""
        return self.target, drafts_of(self.draft)[0]

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
            judge = trained_here(session, self.decoding.judge_budget, out, train=not plan_only)
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

    @property
    def _judge(self) -> JudgeModel | None:
        """The judge of a file, made known by its name, or that of a name; None: none is given, or it is to be trained.

        UsageError: the file cannot be read, or none is known by the name.
        """
        if self.decoding.judge is None:
            by_name = (name for name in listed(self.decoding.score) if is_judge(name))
            return next(map(model_named, by_name), None)
        if os.fspath(self.decoding.judge) == AUTO:
            return None
        judge = JudgeModel.load(self.decoding.judge)
        register(judge)
        return judge

    @contextmanager
    def opened(self, config: RunConfig) -> Iterator[tuple[Session, OpenEngines, MemoryPlan | None]]:
        """Loads models and task, and opens the folders that `config` names; None stores nothing."""
        read = self._read(config)
        request = EngineRequest(
            self.sources, self._first, read.config, read.divided, read.guards, read.tokenizer, self._fly_alone,
            self._longest, self.goal.serve_batch, read.capacity, self.decoding.stop_policy,
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
            parts, memory = self._checked(task, guards, tokenizer)
            divided = _divided(task, parts)
            capacity = capacity_of(divided.problems, memory, config.batch_size or MOST_AT_ONCE)
            config = config.changed(batch_size=memory.batch_size if memory else config.batch_size)
        return _Read(config, task, guards, tokenizer, divided, parts, memory, capacity)

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
        )  # fmt: skip
        return parts, memory

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

    @property
    def _first(self) -> DecodingConfig:
        """The configuration that all of the search's settings share, with its first rule and score."""
        space = self._space
        return DecodingConfig(
            rule=space.rules[0], score=space.scores[0], sampling=self.decoding.sampling,
            seed=self.decoding.seed,
        )  # fmt: skip

    @property
    def _longest(self) -> int:
        """The largest draft length: of the search, or of lossless rules, which have lengths of their own."""
        space = self._space
        trees = [tree.scratch(max(space.lengths(tree))) for tree in space.trees if tree is not None]
        own = max([*space.draft_lengths, *trees])
        return max(own, *([NEW_LENGTH] if self.config.engine == "vllm" else SD_LENGTHS))

    @property
    def _space(self) -> Space:
        """The search space; the policies' shapes are added once the task's texts are known."""
        asked = self.decoding
        lengths = DRAFT_LENGTHS if asked.predictor is None else (LONGEST_DRAFT,)
        depths = TREE_DEPTHS if asked.draft_length is None else ()
        return Space(
            listed(asked.rule), self._scores, listed(asked.draft_length or lengths), trees=asked.trees,
            depths=depths,
        )  # fmt: skip

    @property
    def _scores(self) -> tuple[str, ...]:
        """The scores that are searched, or among which the search finds those to try.

        UsageError: a rule has one of its own, and others are given.
        """
        rules = listed(self.decoding.rule)
        given = self._given_scores or USUAL  # which stand for a judge that is still to be trained, and alone
        own = next((rule for rule in map(rule_named, rules) if rule.score is not None), None)
        if own is None or own.score is None:
            return self._possible(rules, given) if AUTO in given else given
        if len(rules) > 1 or given not in ((own.score,), (AUTO,)):
            raise UsageError(
                f"rule {own.name!r} bounds a score of its own, {own.score}; search it without other rules and scores"
            )
        return (own.score,)

    @property
    def _given_scores(self) -> tuple[str, ...]:
        """The scores that are given, a judge by its own name; without one that is still to be trained."""
        judge = self._judge
        named = ((judge.name if judge else None) if name == LEARNED else name for name in listed(self.decoding.score))
        return tuple(name for name in named if name is not None)

    @property
    def _trains_judge(self) -> bool:
        return self.decoding.judge is not None and os.fspath(self.decoding.judge) == AUTO

    @property
    def _fly_alone(self) -> bool:
        """See `EngineRequest`."""
        constant = all(policy == CONSTANT for policy in self._policies)
        return constant and all(isinstance(score_named(name), Fly) for name in self._scores)

    def _always(self, judge: JudgeModel | None) -> tuple[str, ...] | None:
        """The scores that are given beside "auto", and the judge; None: all that are searched are tried."""
        given, rules = self._given_scores, map(rule_named, listed(self.decoding.rule))
        if AUTO not in given or self.decoding.predictor is not None or any(rule.score for rule in rules):
            return None
        own = () if judge is None else (judge.name,)
        return tuple(dict.fromkeys([*own, *(name for name in given if name != AUTO)]))

    def _possible(self, rules: Sequence[str], given: Sequence[str]) -> tuple[str, ...]:
        """The scores that "auto" stands for with these rules, and those that are given beside it."""
        asked, found = self.decoding, USUAL
        if asked.predictor is None:  # which is trained for the scores that are tried
            longest = max(listed(asked.draft_length or DRAFT_LENGTHS))
            of_vllm = rules if self.config.engine == "vllm" else ()
            found = possible(asked.sampling.greedy, longest, any(asked.trees), of_vllm)
        return tuple(dict.fromkeys([*found, *(name for name in given if name != AUTO)]))

    @property
    def _addons(self) -> Iterator[Addon]:
        """What is searched that is not of fsd-calib."""
        named: list[tuple[AddonKind, str]] = [("rule", name) for name in listed(self.decoding.rule)]
        named += [("score", family_of(name)) for name in self._scores]
        named += [("drafter", each.name) for each in drafts_of(self.draft) if isinstance(each, NamedDrafter)]
        named += [] if self.decoding.stop_policy is None else [("stop policy", self.decoding.stop_policy)]
        return (found for kind, name in named if (found := addon(kind, name)) is not None)

    @property
    def _policies(self) -> tuple[PolicyChoice, ...]:
        return tuple(listed(self.decoding.threshold_policy))

    @property
    def sources(self) -> Sources:
        """Where the models are loaded from, here and in other processes."""
        config = self.config
        return Sources(self.target, drafts_of(self.draft), config.device, config.dtype, config.loading)


def _check_rule(name: str) -> None:
    """Raises UsageError where there is no T of a rule to search for, or no speed of it to forecast."""
    rule = rule_named(name)
    if not (rule.fuzzy and rule.bounds_score):
        raise UsageError(
            f"rule is {name!r}, whose T bounds no score (its bounds_score is {rule.bounds_score}), so there "
            f"is none to search for; give one of {', '.join(RULES_WITH_T)}"
        )
    replayable(name)


def _check_ending(policy: StopPolicy, decoding: SearchSpace) -> None:
    """Raises UsageError where a stop policy does not go with what is searched."""
    if policy.reads_threshold and decoding.moving:
        raise UsageError(
            f"the stop policy {policy.name} ends drafts by the T they are given, and policy {decoding.moving} judges "
            "them by another; leave one of the two out"
        )
    for rule in listed(decoding.rule):
        if policy.rules is not None and rule not in policy.rules:
            raise UsageError(
                f"the stop policy {policy.name} is for {', '.join(sorted(policy.rules))}, and the rule is {rule!r}; "
                "leave one of the two out"
            )


class _Read(NamedTuple):
    """What is read before the weights.

    Attributes:
        config: With the batch size that memory allows.
        divided: The task with the problems that may be decoded.
        capacity: What limits the number of workers.
    """

    config: RunConfig
    task: Task
    guards: tuple[Task, ...]
    tokenizer: Any
    divided: Task
    parts: Parts
    memory: MemoryPlan | None
    capacity: Capacity


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
