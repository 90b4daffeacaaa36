"""Where the host waits for the device: once a round, and a stop policy makes it wait only for what is over."""

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

from fsd_decoding.acceptance.proposal import Criterion
from fsd_decoding.acceptance.rules import RULES
from fsd_decoding.adaptive import EntropyScaled
from fsd_decoding.batch import Request
from fsd_decoding.engine import verify
from fsd_decoding.engine.draft import Steps, StepsAhead
from fsd_decoding.engine.engine import Engine, Settings
from fsd_decoding.engine.kv_pool import KVCachePool, Models
from fsd_decoding.observers.recorder import Recorder
from fsd_decoding.policies.stopping import Answer, DraftState, StopPolicy
from fsd_decoding.sampling import Sampling
from support.stop_policies import Unsure
from support.tiny_models import VOCABULARY
from support.tiny_pair import ragged_prompts, related, tiny_decoder

META = torch.device("meta")  # where a value can neither be looked at nor waited for


class Unhurried(TorchDispatchMode):
    """Fails where the host would wait to hand the device something. A number may go along with an operation."""

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        out = operation(*args, **kwargs)
        made = [one for one in tree_leaves(out) if isinstance(one, Tensor)]
        crosses = any(one.device.type == "cpu" and one.dim() for one in given) and any(one.is_meta for one in made)
        waits = not (kwargs.get("non_blocking") or any(one is True for one in args))
        assert not (crosses and waits), f"{operation} waits for the device"
        return out


class Patient(StopPolicy):
    """Answers without a look at any tensor."""

    looks = False

    def goes_on(self, state: DraftState) -> Answer:
        return [len(state.logits) < 2] * len(state.rows)


def requests() -> list[Request]:
    return [Request(i, prompt, i, 0.2, 3, 12) for i, prompt in enumerate(ragged_prompts(6))]


HOW: dict[str, dict[str, Any]] = {
    "nobody": {},
    "a policy": {"policy": Patient()},
    "moving T": {"adaptive": EntropyScaled(0.2, slope=2.0)},
    "a recorder": {"observer": Recorder(["js", "tv"])},
}


CASES = [(how, rule) for how in HOW for rule in RULES if how != "moving T" or RULES[rule].bounds_divergence]
SAMPLINGS = {
    "greedy": Sampling(),
    "sampled": Sampling(0.8),
    "processed": Sampling(0.8, top_k=9, top_p=0.9, min_p=0.01, repetition_penalty=1.2),
}


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize(("how", "rule"), CASES)
def test_a_round_waits_for_the_device_once(how: str, rule: str, sampling: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it runs on a device without values, refills included; what the one look finds is made up."""
    looks = itertools.count()

    def made_up(packed: Tensor, drafts: int) -> verify.Decided:
        rows = len(packed)
        next(looks)
        return verify.Decided(
            emitted=[[7] * (drafts + 1)] * rows, drafted=[drafts] * rows, accepted=[drafts] * rows,
            sound=[True] * rows, bounded=[True] * rows, spared=[[]] * rows, refused=[[]] * rows,
        )  # fmt: skip

    monkeypatch.setattr(verify.Decided, "of", made_up)
    target, draft = (model.to(META) for model in related(seed=1, spread=0.05))
    settings = Settings(RULES[rule], Criterion(), SAMPLINGS[sampling], frozenset(), 0, **HOW[how])
    caches = KVCachePool(False).caches(Models(target, draft, VOCABULARY), 6, 4, 64, settings.rule.drafts, graphs=True)
    with Unhurried():  # type: ignore[no-untyped-call]
        rounds = list(Engine(caches, settings).rounds(requests()))
    assert next(looks) == len(rounds) > 3


class Beside:
    """A `stepping.Side` that knows what is over for whoever works there."""

    def __init__(self) -> None:
        self.marks = 0
        self.over: int | None = None  # the mark that work comes behind; outside, none
        self.joined = 0

    def mark(self) -> int:
        self.marks += 1
        return self.marks

    @contextmanager
    def behind(self, mark: int) -> Iterator[None]:
        self.over = mark
        yield
        self.over = None

    def after(self, mark: int) -> None:
        assert mark <= self.marks

    def join(self) -> None:
        assert self.over is None
        self.joined += 1


@pytest.mark.parametrize("rows", [1, 4])
def test_one_step_ahead_drafts_the_same(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder, side = tiny_decoder(), Beside()
    how: dict[str, Any] = {"rule": "coupled", "draft_length": 5, "policy": Unsure(), "batch_size": rows}
    expected = decoder.generate(ragged_prompts(6), 30, 0.8, **how)
    made = KVCachePool.caches
    monkeypatch.setattr(KVCachePool, "room", lambda *args, **kwargs: replace(made(*args, **kwargs), side=side))
    assert decoder.generate(ragged_prompts(6), 30, 0.8, **how) == expected
    assert side.joined >= max(result.rounds for result in expected)


def test_a_question_is_asked_one_step_late_and_sees_no_more_than_on_time() -> None:
    taken: list[int] = []

    def take(step: int) -> Tensor:
        assert side.over is None  # steps are nobody's side work
        taken.append(step)
        return torch.tensor(step)

    side = Beside()
    steps = StepsAhead(take, 4, side)
    for count in range(5):
        with steps.seen(count) as logits:
            assert [int(one) for one in logits] == list(range(count))
            assert side.over == count + 1  # the first mark lies before all steps
            assert len(taken) == min(count + 1, 4)
    assert len(steps.end(2)) == 2
    assert side.joined == 1
    assert taken == [0, 1, 2, 3]


def test_on_time_no_step_is_in_vain_but_the_first_which_reads() -> None:
    taken: list[int] = []

    def take(step: int) -> Tensor:
        taken.append(step)
        return torch.tensor(step)

    steps = Steps(take, 4)
    with steps.seen(0):
        assert not taken
    with steps.seen(2):
        assert taken == [0, 1]
    steps.end(1)
    assert taken == [0, 1]
    unused: list[int] = []
    assert Steps(lambda step: unused.append(step) or torch.tensor(step), 4).end(0) == []  # type: ignore[func-returns-value]
    assert unused == [0]


@pytest.mark.parametrize(("looks", "watches"), [(False, False), (True, True)])
def test_who_looks_at_nothing_or_watches_the_draft_is_asked_on_time(
    looks: bool, watches: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder, side, policy = tiny_decoder(), Beside(), Patient()
    policy.looks, policy.watches = looks, watches
    made = KVCachePool.caches
    monkeypatch.setattr(KVCachePool, "room", lambda *args, **kwargs: replace(made(*args, **kwargs), side=side))
    decoder.generate(ragged_prompts(2), 12, policy=policy)
    assert not side.marks
