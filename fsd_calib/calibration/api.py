"""calibrate(): from a task, two models and a wish to a profile.

Knows settings and the order of the work: baseline, plan, search on the tuning part, test on the certification part,
timing. How each step is done is in the module of its name.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fsd_calib.calibration.goal import Acc, Goal, Guarantee, Test
from fsd_calib.calibration.plan import Plan
from fsd_calib.calibration.policy_families import CONSTANT, PolicyChoice, check_policies, moves
from fsd_calib.calibration.prepare import Prepared, prepared
from fsd_calib.calibration.run import find
from fsd_calib.calibration.session import open_session
from fsd_calib.calibration.timing import TimingRequest, Way
from fsd_calib.measuring.timing_job import Sources
from fsd_calib.progress import Progress, Silent
from fsd_calib.search.space import Space
from fsd_calib.storage.user_folders import default_cache, default_state
from fsd_calib.tasks.base import Task
from fsd_calib.tasks.registry import load_task
from fsd_decoding.acceptance.rules import RULES, rule_named
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.errors import UsageError
from fsd_decoding.loading import shared_tokenizer
from fsd_decoding.profile.parts import ModelInfo
from fsd_decoding.profile.threshold_profile import ThresholdProfile
from fsd_decoding.requests import check_count
from fsd_decoding.sampling import Sampling

DIVERGENCES = ("js", "doubt")
DRAFT_LENGTHS = tuple(range(1, 13))
LONGEST_DRAFT = 16  # where a predictor ends drafts early
Path_ = str | os.PathLike[str]


def calibrate(
    task: str | Task, *, target: Any, draft: Any, tokenizer: Any = None, min_acc: float | None = None,
    min_speed: float | None = None, pareto: bool = False, acc: Acc = "retention", confidence: float = 0.95,
    guarantee: Guarantee = "population", test: Test = "score", serve_batch: int = 1,
    rule: str | Sequence[str] = "fsd-coupled", divergence: str | Sequence[str] = DIVERGENCES,
    draft_length: int | Sequence[int] | None = None, policy: PolicyChoice | Sequence[PolicyChoice] = CONSTANT,
    predictor: Path_ | None = None, temperature: float = 0.0,
    top_k: int | None = None, top_p: float | None = None, seeds: int = 1, limit: int | None = None,
    data: Path_ | None = None, seed: int = 0, batch_size: int = 32, device: str | None = None,
    dtype: str | None = None, out: Path_ | None = None, cache: Path_ | None = None, state: Path_ | None = None,
    storage: str | None = None, trials: int = 30, timing: Way = "run", progress: Progress | None = None,
) -> ThresholdProfile:  # fmt: skip
    """Finds the fastest setting that keeps `min_acc` of the target's accuracy, the most accurate one that makes
    `min_speed` tokens/s, or the whole front, and tests it on problems that had no say in the choice.

    Args:
        task: a task's name, or a `Task` whose prompts suit the target.
        target, draft: hub ids, paths, or loaded models (then `tokenizer` is needed). Several drafts, as a list, are
            searched and certified together, in one attempt; the profile is of the one that is chosen, or,
            where nothing is granted, of the one that `sd` is best with.
        acc, confidence, guarantee, test, serve_batch: see `wish.Wish`.
        rule, divergence, draft_length: one, or several to choose among; by default 1 to 12 tokens drafted, or up to
            16 with a predictor.
        policy: how T moves over a text: a family of `shaping.FAMILIES`, whose shapes are all searched, a policy of your
            own choice, whose T does not matter, or several. T says how loose the shape is, and is searched for.
        predictor: folder of an acceptance predictor, which ends drafts early; or "auto", which trains one on the
            tuning part first.
        seeds: noise seeds a problem is decoded with; greedy decoding has no noise and takes one.
        out: folder for `profile.json`, and for what an interrupted run goes on with; None writes none of them.
        cache: folder of decodings and traces, shared by all runs; None is the user's own.
        state: folder of the ledger of attempts, which must not be deleted; None is the user's own.
        storage: Optuna's, a file or a URL; None is `study.log` in `out`.
        trials: settings tried on the tuning part, at most.
        timing: "run" times speeds in this process; "careful" in five fresh ones, which load the models by their paths
            or ids; "none" not at all: then speeds are what the cost model forecasts.

    Returns:
        the profile; `profile.met` says whether the wish was.

    Raises:
        UsageError: bad input, models that cannot be used together, a target that solves nothing, or fewer problems
            than could show what is wished for.
    """
    goal = Goal(min_acc, min_speed, pareto, acc, confidence, guarantee, test, serve_batch)
    lengths = None if draft_length is None else _several(draft_length)
    space = Space(_several(rule), _several(divergence), draft_lengths(predictor) if lengths is None else lengths)
    return Calibration(
        task, target, draft, goal, space, tokenizer=tokenizer, sampling=Sampling(temperature, top_k, top_p),
        seeds=seeds, limit=limit, data=data, seed=seed, batch_size=batch_size, device=device, dtype=dtype,
        out=None if out is None else Path(out), cache=None if cache is None else Path(cache),
        state=None if state is None else Path(state), storage=storage, trials=trials, progress=progress or Silent(),
        predictor=predictor, policies=_several(policy), timing=timing,
    ).run()  # fmt: skip


def draft_lengths(predictor: Path_ | None) -> tuple[int, ...]:
    """To choose among, where none are given."""
    return DRAFT_LENGTHS if predictor is None else (LONGEST_DRAFT,)


@dataclass(frozen=True)
class Calibration:
    """All that `calibrate` is told, and its two ways to go: `plan` stops before the long work, `run` does it.

    The policies' shapes join the space once the task's texts are known.
    """

    task: str | Task
    target: Any
    draft: Any
    goal: Goal
    space: Space
    tokenizer: Any = None
    sampling: Sampling = field(default_factory=Sampling)
    seeds: int = 1
    limit: int | None = None
    data: Path_ | None = None
    seed: int = 0
    batch_size: int = 32
    device: str | None = None
    dtype: str | None = None
    out: Path | None = None
    cache: Path | None = None
    state: Path | None = None
    storage: str | None = None
    trials: int = 30
    progress: Progress = field(default_factory=Silent)
    predictor: Path_ | None = None
    policies: tuple[PolicyChoice, ...] = (CONSTANT,)
    timing: Way = "run"

    def __post_init__(self) -> None:
        for name, value in (("trials", self.trials), ("seeds", self.seeds), ("batch_size", self.batch_size)):
            check_count(name, value)
        check_policies(self.policies)
        drafts = _drafts(self.draft)
        if len(drafts) > 1 and (self.predictor is not None or "per-prompt" in self.policies):
            what = "a predictor" if self.predictor is not None else "policy per-prompt"
            raise UsageError(f"{what} is learned with one draft, and {len(drafts)} are given; give one of them")
        self._timing.check(self.goal)
        if self.predictor is not None and any(map(moves, self.policies)):
            raise UsageError(
                f"a predictor ends drafts by the T they are given, and policy {_listed(self.policies)} judges them by "
                "another; leave one of the two out"
            )
        for rule in self.space.rules:
            if not rule_named(rule).bounds_divergence:
                bounding = ", ".join(name for name, known in RULES.items() if known.bounds_divergence)
                raise UsageError(
                    f"rule {rule!r} has no threshold on a divergence to calibrate; those that have: {bounding}"
                )

    def plan(self) -> Plan:
        """What the wish takes and what these problems can show, from a first handful of them."""
        with self._prepared() as ready:
            return ready.plan

    def run(self, tell: Callable[[Plan], None] = lambda plan: None) -> ThresholdProfile:
        """The profile, saved where `out` says; `tell` is told the plan before the long work."""
        with self._prepared() as ready:
            tell(ready.plan)
            profile = find(ready)
        if self.out is not None:
            profile.save(self.out / "profile.json")
        return profile

    @contextmanager
    def _prepared(self) -> Iterator[Prepared]:
        if self.out is not None:
            self.out.mkdir(parents=True, exist_ok=True)
        first, *others = _drafts(self.draft)
        tokenizer = shared_tokenizer(self.target, first, self.tokenizer)
        for other in others:
            shared_tokenizer(self.target, other, tokenizer)
        task = self.task if isinstance(self.task, Task) else load_task(
            self.task, self.seed, self.limit, self.data, tokenizer
        )  # fmt: skip
        decoder = self._decoder(self.target, first, tokenizer)
        drafts = _named([decoder, *(self._decoder(decoder.target, other, tokenizer) for other in others)])
        decoder = next(iter(drafts.values()), decoder)
        space = replace(self.space, drafts=tuple(drafts) or (None,))
        seeds = self.seeds if self.sampling.temperature else 1
        cache, state = self.cache or default_cache(), self.state or default_state()
        with open_session(decoder, task, self.batch_size, seeds, cache, self.progress, state, drafts) as session:
            yield prepared(
                session, self.goal, space, self.policies, self.trials, self.storage, self.out, self.predictor,
                self._timing,
            )  # fmt: skip

    def _decoder(self, target: Any, draft: Any, tokenizer: Any) -> SpeculativeDecoder:
        return SpeculativeDecoder.from_pretrained(
            target, draft, rule=self.space.rules[0], divergence=self.space.divergences[0], device=self.device,
            dtype=self.dtype, seed=self.seed, tokenizer=tokenizer, sampling=self.sampling,
        )  # fmt: skip

    @property
    def _timing(self) -> TimingRequest:
        return TimingRequest(self.timing, Sources(self.target, _drafts(self.draft), self.device, self.dtype))


def _drafts(draft: Any) -> tuple[Any, ...]:
    """One or several. UsageError: an empty list."""
    drafts = tuple(draft) if isinstance(draft, (list, tuple)) else (draft,)
    if not drafts:
        raise UsageError("draft is an empty list; give one draft model or more")
    return drafts


def _named(decoders: Sequence[SpeculativeDecoder]) -> dict[str, SpeculativeDecoder]:
    """By their drafts' names, sorted, where there are several: their order must not matter.

    UsageError: two are the same model or have the same name, or one has none.
    """
    if len(decoders) == 1:
        return {}
    models = [ModelInfo.of(decoder.draft) for decoder in decoders]
    names, prints = [model.id for model in models], [model.fingerprint for model in models]
    for name, fingerprint in zip(names, prints, strict=True):
        if prints.count(fingerprint) > 1:
            raise UsageError(f"drafts are {', '.join(map(repr, names))}, and {name!r} is there twice; give it once")
        if not name or names.count(name) > 1:
            raise UsageError(
                f"drafts are {', '.join(map(repr, names))}; several drafts are told apart by their names "
                "(config._name_or_path), so give each a name of its own"
            )
    return dict(sorted(zip(names, decoders, strict=True)))


def _several(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else (value,)


def _listed(policies: Sequence[PolicyChoice]) -> str:
    return ", ".join(one if isinstance(one, str) else type(one).__name__ for one in policies)
