"""Synchronisation of host and device: once per round, and under a stop policy only with steps that are complete."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fsd_decoding.adaptive import EntropyScaled
from fsd_decoding.batch import Request
from fsd_decoding.engine.cache_pool import KVCachePool, Models
from fsd_decoding.engine.draft import Steps, StepsAhead
from fsd_decoding.engine.engine import Engine
from fsd_decoding.engine.rounds import Decided, EngineSettings
from fsd_decoding.observers.round_log import Recorder
from fsd_decoding.policies.stopping import Answer, DraftState, StopPolicy
from fsd_decoding.proposal import Criterion
from fsd_decoding.rules import RULES, Rule
from fsd_decoding.sampling import Sampling
from fsd_decoding.tree_shape import TreeShape
from support.models.stop_policies import Unsure
from support.models.tiny_heads import eagle3
from support.models.tiny_models import VOCABULARY, llama
from support.models.tiny_pair import ragged_prompts, related, tiny_decoder

META = torch.device("meta")  # a device without values, which cannot be read or waited for


class NoBlockingCopies(TorchDispatchMode):
    """Fails where a copy to the device would block the host; host scalars as arguments are allowed."""

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        inputs = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        out = operation(*args, **kwargs)
        outputs = [one for one in tree_leaves(out) if isinstance(one, Tensor)]
        crosses = any(one.device.type == "cpu" and one.dim() for one in inputs) and any(one.is_meta for one in outputs)
        waits = not (kwargs.get("non_blocking") or any(one is True for one in args))
        assert not (crosses and waits), f"{operation} waits for the device"
        return out


class Patient(StopPolicy):
    """Answers without reading a tensor."""

    looks = False

    def goes_on(self, state: DraftState) -> Answer:
        return [len(state.logits) < 2] * len(state.rows)


def requests() -> list[Request]:
    return [Request(i, prompt, i, 0.2, 3, 8) for i, prompt in enumerate(ragged_prompts(6))]


HOW: dict[str, dict[str, Any]] = {
    "nobody": {},
    "a policy": {"stop_policy": Patient()},
    "moving T": {"threshold_policy": EntropyScaled(0.2, slope=2.0)},
    "a recorder": {"observer": Recorder(["js", "tv"])},
    "trees": {"tree": TreeShape(2, 5)},
    "trees and a recorder": {"tree": TreeShape(2, 5), "observer": Recorder(["js", "tv"])},
}


def fits(how: str, rule: Rule) -> bool:
    if "trees" in how:
        return rule.judges_trees
    return how != "moving T" or rule.bounds_score


SAMPLINGS = {
    "greedy": Sampling(),
    "sampled": Sampling(0.8),
    "processed": Sampling(0.8, top_k=9, top_p=0.9, min_p=0.01, repetition_penalty=1.2),
}


CASES = [(how, rule, sampling) for how in HOW for rule in RULES if fits(how, RULES[rule]) for sampling in SAMPLINGS]


@pytest.mark.parametrize(("how", "rule", "sampling"), CASES)
@pytest.mark.thinned(every=61)
def test_a_round_synchronises_once(how: str, rule: str, sampling: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target, draft = (model.to(META) for model in related(seed=1, spread=0.05))
    settings = EngineSettings(RULES[rule], Criterion(), SAMPLINGS[sampling], frozenset(), 0, **HOW[how])
    assert_one_look_a_round(Models(target, draft, VOCABULARY), settings, monkeypatch)


def assert_one_look_a_round(models: Models, settings: EngineSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything runs on a device without values, refills included; the one read per round returns made-up values."""
    looks = itertools.count()

    def fake(packed: Tensor, drafts: int) -> Decided:
        rows = len(packed)
        next(looks)
        return Decided(
            emitted=[[7] * (drafts + 1)] * rows, drafted=[drafts] * rows, accepted=[drafts] * rows, whole=[True] * rows,
            finite_logits=[True] * rows, valid_bounds=[True] * rows,
            largest_accepted=[[]] * rows, rejecting=[[]] * rows,
        )  # fmt: skip

    monkeypatch.setattr(Decided, "of", fake)
    caches = KVCachePool(False).acquire(models, 6, 4, 64, settings.rule.drafts, graphs=True)
    with NoBlockingCopies():  # type: ignore[no-untyped-call]
        rounds = list(Engine(caches, settings).rounds(requests()))
    assert next(looks) == len(rounds) > 3


@pytest.mark.thinned(every=2)
@pytest.mark.parametrize("tree", [None, TreeShape(2, 5)], ids=str)
def test_a_round_of_an_eagle_head_synchronises_once(tree: TreeShape | None, monkeypatch: pytest.MonkeyPatch) -> None:
    target = llama(seed=0, layers=8)
    head = eagle3(target).to(META)
    given = EngineSettings(RULES["fsd-coupled"], Criterion(), SAMPLINGS["sampled"], frozenset(), 0, tree=tree)
    assert_one_look_a_round(Models(target.to(META), head, VOCABULARY, draft_length=3), given, monkeypatch)


class RecordingSideStream:
    """A `SideStream` that records which mark its current work is ordered after."""

    def __init__(self) -> None:
        self.marks = 0
        self.over: int | None = None  # the mark that work is ordered after; None outside `run_after`
        self.joined = 0

    def mark(self) -> int:
        self.marks += 1
        return self.marks

    @contextmanager
    def run_after(self, mark: int) -> Iterator[None]:
        self.over = mark
        yield
        self.over = None

    def wait_for(self, mark: int) -> None:
        assert mark <= self.marks

    def join(self) -> None:
        assert self.over is None
        self.joined += 1


@pytest.mark.parametrize("rows", [1, 4])
def test_steps_ahead_give_the_same_drafts(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder, side = tiny_decoder(), RecordingSideStream()
    how: dict[str, Any] = {"rule": "coupled", "draft_length": 5, "stop_policy": Unsure(), "batch_size": rows}
    expected = decoder.generate(ragged_prompts(6), 30, 0.8, **how)
    caches = KVCachePool.acquire
    monkeypatch.setattr(KVCachePool, "acquire", lambda *args, **kwargs: replace(caches(*args, **kwargs), side=side))
    assert decoder.generate(ragged_prompts(6), 30, 0.8, **how) == expected
    assert side.joined >= max(result.rounds for result in expected)


def test_steps_ahead_run_one_step_early_and_show_no_more() -> None:
    taken: list[int] = []

    def take(step: int) -> Tensor:
        assert side.over is None  # steps do not run on the side stream
        taken.append(step)
        return torch.tensor(step)

    side = RecordingSideStream()
    steps = StepsAhead(take, 4, side)
    for count in range(5):
        with steps.readable(count) as logits:
            assert [int(one) for one in logits] == list(range(count))
            assert side.over == count + 1  # the first mark precedes all steps
            assert len(taken) == min(count + 1, 4)
    assert len(steps.end(2)) == 2
    assert side.joined == 1
    assert taken == [0, 1, 2, 3]


def test_steps_compute_no_more_than_needed_but_always_the_first() -> None:
    taken: list[int] = []

    def take(step: int) -> Tensor:
        taken.append(step)
        return torch.tensor(step)

    steps = Steps(take, 4)
    with steps.readable(0):
        assert not taken
    with steps.readable(2):
        assert taken == [0, 1]
    steps.end(1)
    assert taken == [0, 1]
    unused: list[int] = []
    assert Steps(lambda step: unused.append(step) or torch.tensor(step), 4).end(0) == []  # type: ignore[func-returns-value]
    assert unused == [0]


@pytest.mark.parametrize(("looks", "watches"), [(False, False), (True, True)])
def test_policies_that_read_no_tensor_or_watch_the_draft_have_no_steps_ahead(
    looks: bool, watches: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder, side, policy = tiny_decoder(), RecordingSideStream(), Patient()
    policy.looks, policy.watches = looks, watches
    caches = KVCachePool.acquire
    monkeypatch.setattr(KVCachePool, "acquire", lambda *args, **kwargs: replace(caches(*args, **kwargs), side=side))
    decoder.generate(ragged_prompts(2), 12, stop_policy=policy)
    assert not side.marks
