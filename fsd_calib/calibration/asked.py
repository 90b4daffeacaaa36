"""What a calibration is asked for, and the search space that follows from it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from fsd_calib.calibration.auto_scores import USUAL, possible
from fsd_calib.calibration.design import check_design
from fsd_calib.calibration.draft_forecasts import SD_LENGTHS
from fsd_calib.calibration.drafts import drafts_of
from fsd_calib.calibration.engines import check_vllm
from fsd_calib.calibration.going_on import check_extends
from fsd_calib.calibration.policy_families import PolicyChoice, check_policies
from fsd_calib.calibration.prepare import NEW_LENGTH
from fsd_calib.calibration.timing import check_timing
from fsd_calib.certification.holdout import EngineSequence
from fsd_calib.options.beams import check_run_of_beams
from fsd_calib.options.common import AUTO, CONSTANT, RULES_WITH_T
from fsd_calib.options.goal import Goal
from fsd_calib.options.run_config import RunConfig
from fsd_calib.options.search_space import SearchSpace
from fsd_calib.search.space import Space
from fsd_calib.tasks.base import Task
from fsd_collectors.replay.cases import replayable
from fsd_common.addons import Addon, AddonKind, addon
from fsd_common.argument_checks import named as argument
from fsd_common.errors import UsageError
from fsd_common.settings import listed
from fsd_decoding.config import DecodingConfig
from fsd_decoding.drafters.named import NamedDrafter
from fsd_decoding.judging.known import is_judge, model_named, register
from fsd_decoding.judging.model import JudgeModel
from fsd_decoding.meanings import LEARNED, family_of
from fsd_decoding.policies.stopping import StopPolicy, stop_policy_named
from fsd_decoding.profile.drafts import kind_of
from fsd_decoding.profile.threshold_profile import ThresholdProfile
from fsd_decoding.rules import rule_named
from fsd_decoding.scores import Fly, score_named
from fsd_decoding.workers.model_workers import Sources

DRAFT_LENGTHS = tuple(range(1, 13))
TREE_DEPTHS = (2, 3, 4, 5, 6, 8)
LONGEST_DRAFT = 16  # where a predictor ends drafts early
BEAM_SCORES = ("js",)  # "auto", for beams


@dataclass(frozen=True)
class Asked:
    """A task, its models and a goal, fully specified, with the search space that follows.

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
        self._check_drafts(drafts_of(self.draft))
        if self.decoding.stop_policy is not None:
            _check_ending(stop_policy_named(self.decoding.stop_policy), self.decoding)
        check_timing(self.config.timing, self.goal, self.sources)
        check_design(self.goal, self.config, self.sequence is not None)
        check_extends(self.goal, self.decoding, self.config)
        if self.decoding.beams is not None:
            self._check_beams(drafts_of(self.draft))
        self._check_engine()

    def _check_drafts(self, drafts: Sequence[Any]) -> None:
        if other := next((draft for draft in drafts if kind_of(draft) != "model"), None):
            self.decoding.check_walked(f"the draft is {other!r:.60}", "drafts by it")
        if len(drafts) > 1 and self.fixed is not None:
            raise UsageError(f"the profile's setting has one draft, and {len(drafts)} are given; give one of them")
        if len(drafts) > 1 and (self.decoding.predictor is not None or "per-prompt" in self._policies):
            what = "a predictor" if self.decoding.predictor is not None else "policy per-prompt"
            raise UsageError(f"{what} is learned with one draft, and {len(drafts)} are given; give one of them")
        of_vllm = next((draft for draft in drafts if kind_of(draft) == "vllm"), None)
        if self.config.engine != "vllm" and of_vllm is not None:
            raise UsageError(
                f"the draft is vLLM's own, {of_vllm!r}, and {argument('engine')} is {self.config.engine!r}; give "
                f"{argument('engine')} vllm"
            )

    def _check_beams(self, drafts: Sequence[Any]) -> None:
        """UsageError: something is asked for that cannot be done with beams."""
        check_run_of_beams(self.decoding, self.config)
        if other := next((draft for draft in drafts if kind_of(draft) != "model"), None):
            raise UsageError(
                f"{argument('beams')} is given, and the draft is {other!r:.60}; beams are drafted by a model, give one"
            )

    def _check_engine(self) -> None:
        for name in ("rate", "slo"):
            if getattr(self.goal, name) is not None:
                raise UsageError(
                    f"{argument(name)} is of a server's load, and {argument('engine')} is {self.config.engine!r}; "
                    "leave it out"
                )
        if self.config.engine != "vllm":
            return
        if self._trains_judge:
            raise UsageError(
                f"{argument('judge')} is {AUTO!r}, and a judge is trained by our own engine; calibrate with "
                f"{argument('engine')} fsd-calib first, and give the judge.json that it writes"
            )
        asked = self.decoding.changed(score=self._scores, judge=None) if self._judge else self.decoding
        check_vllm(self.sources, asked, self.config, self._policies, self.goal.serve_batch)

    @property
    def models(self) -> tuple[Any, Any]:
        """The target and the first draft, as they were given."""
        return self.target, drafts_of(self.draft)[0]

    @property
    def sources(self) -> Sources:
        """Where the models are loaded from, here and in other processes."""
        config = self.config
        return Sources(self.target, drafts_of(self.draft), config.device, config.dtype, config.loading)

    @property
    def _policies(self) -> tuple[PolicyChoice, ...]:
        return tuple(listed(self.decoding.threshold_policy))

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

    def _possible(self, rules: Sequence[str], given: Sequence[str]) -> tuple[str, ...]:
        """The scores that "auto" stands for with these rules, and those that are given beside it."""
        asked, found = self.decoding, USUAL
        if asked.predictor is None:  # which is trained for the scores that are tried
            longest = max(listed(asked.draft_length or DRAFT_LENGTHS))
            of_vllm = rules if self.config.engine == "vllm" else ()
            found = possible(asked.sampling.greedy, longest, any(asked.trees), of_vllm)
        if asked.beams is not None:
            found = BEAM_SCORES
        return tuple(dict.fromkeys([*found, *(name for name in given if name != AUTO)]))

    def _always(self, judge: JudgeModel | None) -> tuple[str, ...] | None:
        """The scores that are given beside "auto", and the judge; None: all that are searched are tried."""
        given, rules = self._given_scores, map(rule_named, listed(self.decoding.rule))
        asked = self.decoding
        if AUTO not in given or asked.predictor or asked.beams or any(rule.score for rule in rules):
            return None
        own = () if judge is None else (judge.name,)
        return tuple(dict.fromkeys([*own, *(name for name in given if name != AUTO)]))

    @property
    def _space(self) -> Space:
        """The search space; the policies' shapes are added once the task's texts are known."""
        asked = self.decoding
        lengths = DRAFT_LENGTHS if asked.predictor is None else (LONGEST_DRAFT,)
        lengths = lengths if asked.beams is None else TREE_DEPTHS
        depths = TREE_DEPTHS if asked.draft_length is None else ()
        return Space(
            listed(asked.rule), self._scores, listed(asked.draft_length or lengths), trees=asked.trees,
            depths=depths, widths=asked.widths or (None,),
        )  # fmt: skip

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
        others = self.config.engine == "vllm" or self.decoding.beams is not None
        return max(own, *([NEW_LENGTH] if others else SD_LENGTHS))

    @property
    def _fly_alone(self) -> bool:
        """See `EngineRequest`."""
        constant = all(policy == CONSTANT for policy in self._policies)
        return constant and all(isinstance(score_named(name), Fly) for name in self._scores)

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

    @property
    def _trains_judge(self) -> bool:
        return self.decoding.judge is not None and os.fspath(self.decoding.judge) == AUTO

    @property
    def _addons(self) -> Iterator[Addon]:
        """What is searched that is not of fsd-calib."""
        named: list[tuple[AddonKind, str]] = [("rule", name) for name in listed(self.decoding.rule)]
        named += [("score", family_of(name)) for name in self._scores]
        named += [("drafter", each.name) for each in drafts_of(self.draft) if isinstance(each, NamedDrafter)]
        named += [] if self.decoding.stop_policy is None else [("stop policy", self.decoding.stop_policy)]
        return (found for kind, name in named if (found := addon(kind, name)) is not None)


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
