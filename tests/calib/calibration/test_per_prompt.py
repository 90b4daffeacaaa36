"""`PerPrompt` and its training: it predicts the T that prompts tolerate, in a world where that is known."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from conformance.threshold_policies import EveryScalePolicy, decoder, thresholds_of
from fsd_calib.calibration.per_prompt import GAINS, NEEDED, facts_of, per_prompt_shapes
from fsd_calib.measuring.measurement import Decoding, Seeds
from fsd_calib.tasks import Problem
from fsd_common.errors import UsageError
from fsd_decoding.adaptive import Constant, Min, PerPrompt, policy_named
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.policies.shapes import PROMPT_FACTS, PromptFacts
from fsd_decoding.policies.threshold import ScalePolicy, TracedText
from fsd_decoding.profile.setting import Setting
from support.calibration.simulated_worlds import problems
from support.models.tiny_models import word_tokenizer
from support.traces.memory_traces import MemoryTraces

WEIGHTS, MEANS = (0.4, 0.0, 0.1, -2.0), (2.5, 0.0, 3.0, 0.3)
TEXT_OF_TRACE = {0: TracedText([5, 9, 3])}  # what the conformance tests decode
THRESHOLDS = tuple(np.geomspace(0.01, 1.0, 12))
CONFIGURATION = Setting("fsd-coupled", "js", 4)


def learned_policy() -> PerPrompt:
    return PerPrompt(0.1, WEIGHTS, MEANS).knowing(TEXT_OF_TRACE, decoder().tokenizer)


@pytest.mark.parametrize(
    "make",
    [
        learned_policy,
        lambda: Min(learned_policy(), Constant(0.08)),
        lambda: PerPrompt(0.1, [0.0, 0.0, 50.0, 0.0], MEANS),
    ],
    ids=["per-prompt", "within another", "clamped"],
)
class TestPerPrompt(EveryScalePolicy):
    pass


def test_a_text_keeps_the_scale_of_its_first_round() -> None:
    scales = thresholds_of(learned_policy(), range(5), scales=True)
    assert torch.equal(scales, scales[:1, :, :1].expand_as(scales))
    assert len(scales[0, :, 0].unique()) == 5


def test_prompts_of_typical_facts_have_the_scale_one_and_others_their_own() -> None:
    policy = PerPrompt(0.1, [0.5, 0.0, 0.0, 0.0], [2.0, 0.0, 0.0, 0.0])
    scales = thresholds_of(policy, range(4), scales=True)[0, :, 0]  # prompts of 1, 2, 3 and 4 tokens
    torch.testing.assert_close(scales.log(), torch.tensor([-0.5, 0.0, 0.5, 1.0], dtype=torch.float64))


def test_tokens_with_a_digit_are_counted_by_the_tokenizer() -> None:
    facts = PromptFacts()
    facts.check(word_tokenizer(others={4: "seven", 5: "7", 6: "a1"}))
    assert dict(zip(PROMPT_FACTS, facts([4, 5, 6, 5]), strict=True)) == {
        "prompt tokens": 4.0, "prompt tokens with a digit": 3.0
    }  # fmt: skip


def test_a_tokenizer_is_looked_through_once_and_again_when_it_has_grown(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, looks = word_tokenizer(others={4: "seven", 5: "7"}), 0
    look = tokenizer.convert_ids_to_tokens

    def counting(ids: Any) -> Any:
        nonlocal looks
        looks += 1
        return look(ids)

    monkeypatch.setattr(tokenizer, "convert_ids_to_tokens", counting)
    for _ in range(3):
        PerPrompt(0.1, WEIGHTS, MEANS).check([], tokenizer, "fsd", "js")
    assert looks == 1
    tokenizer.add_tokens(["99"])
    facts = PromptFacts()
    facts.check(tokenizer)
    assert facts([5, len(tokenizer) - 1])[1] == 2
    assert looks == 2


def test_without_a_tokenizer_it_says_what_to_give() -> None:
    pair, policy = decoder(), learned_policy()
    for tokenizer in (pair.tokenizer, None):  # a policy that knew one forgets it
        policy.check([pair.target, pair.draft], tokenizer, pair.rule, pair.score)
    with pytest.raises(UsageError, match=r"without a tokenizer; .* fsd_tokenizer"):
        SpeculativeDecoder(pair.target, pair.draft, None).generate([[5, 6]], 4, threshold=policy)


def test_a_trace_of_several_texts_gives_each_its_own_scale() -> None:
    shape = PerPrompt(0.1, [1.0, 0.0, 0.0, 2.0], [1.0, 0.0, 0.0, 0.5])
    policy = shape.knowing({7: TracedText([5]), 8: TracedText([5, 6])}, word_tokenizer())
    columns = {
        "problem": np.array([8, 8, 7, 7, 7]), "position": np.array([0, 1, 0, 1, 2]),
        "draft_entropy": np.zeros(5, np.float32), "draft_top1": np.array([0.5, 0.9, 0.25, 0.9, 0.9], np.float32),
    }  # fmt: skip
    assert np.log(policy.traced(columns)) == pytest.approx([1.0, 1.0, -0.5, -0.5, -0.5])


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda: PerPrompt(0.1, [1.0], MEANS), r"weights is \[1.0\]; it must be 4 finite numbers"),
        (lambda: PerPrompt(0.1, WEIGHTS, [math.inf] * 4), "means is .*inf.*finite"),
        (lambda: PerPrompt(math.nan, WEIGHTS, MEANS), "threshold is NaN"),
        (lambda: policy_named('{"name": "per-prompt", "version": 1, "weights": [1]}'), "which do not describe one"),
        (lambda: PromptFacts()([1, 2]), "without a tokenizer; .* fsd_tokenizer"),
        (
            lambda: learned_policy().traced({"problem": np.array([5]), "position": np.array([0])}),
            "has no facts of the prompt of problem 5",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(ask: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        ask()


class Tolerance:
    """A world where a problem tolerates a T up to exp(-fact / 2), give or take. Some are never solved."""

    def __init__(self, count: int) -> None:
        random = np.random.default_rng(0)
        self.problems = problems(count)
        drawn = random.normal([40, 5, 1, 0.5], [10, 2, 0.3, 0.1], (count, 4))
        self.facts = {p.id: tuple(fact) for p, fact in zip(self.problems, drawn.tolist(), strict=True)}
        noise = random.normal(0, 0.3, count)
        self.tolerates = {
            p.id: math.exp(-0.5 * self.facts[p.id][1] + e) for p, e in zip(self.problems, noise, strict=True)
        }

    def __call__(self, setting: Setting, traced_problems: Sequence[Problem]) -> list[Seeds]:
        threshold = setting.threshold or 0.0
        right = [p.id % 7 > 0 and threshold <= self.tolerates[p.id] for p in traced_problems]
        return [(Decoding(r, "", 10, 2, 8, 8),) for r in right]


def learned(world: Tolerance, facts: Mapping[int, Sequence[float]] | None = None) -> list[PerPrompt]:
    return per_prompt_shapes(world, CONFIGURATION, THRESHOLDS, world.problems, facts or world.facts)


def test_it_learns_which_fact_decides_and_by_how_much() -> None:
    # The true weight is -.5. Over 20 worlds its estimates lay at -.493 with a standard deviation of .012, the others'
    # effects (weight times spread) at 0 with one of .02: five of them and more are allowed.
    *_, shape = learned(Tolerance(300))
    assert shape.weights[1] == pytest.approx(-0.5, abs=0.07)
    others = np.array(shape.weights)[[0, 2, 3]] * [10, 0.3, 0.1]
    assert abs(others).max() < 0.12


def test_prompts_are_ordered_by_what_they_tolerate() -> None:
    *_, shape = learned(Tolerance(300))
    texts = {i: TracedText([5] * digits + [4] * (40 - digits)) for i, digits in enumerate([1, 4, 9])}
    columns = {"problem": np.arange(3), "position": np.zeros(3, int)}
    columns |= {"draft_entropy": np.ones(3), "draft_top1": np.full(3, 0.5)}
    scales = shape.knowing(texts, word_tokenizer(others={4: "seven"})).traced(columns)
    assert scales[0] > scales[1] > scales[2]


def test_where_facts_predict_nothing_every_prompt_has_about_the_same_scale() -> None:
    world, random = Tolerance(400), np.random.default_rng(1)
    world.tolerates = {i: math.exp(random.normal(0, 1.5)) for i in world.tolerates}
    *_, shape = learned(world)
    assert abs(np.array(shape.weights) * [10, 2, 0.3, 0.1]).max() < 0.05  # with one ridge for all worlds .11 to .25


def test_shapes_follow_the_prediction_by_their_gains() -> None:
    shapes = learned(Tolerance(200))
    whole = shapes[GAINS.index(1.0)]
    for gain, shape in zip(GAINS, shapes, strict=True):
        assert shape.weights == pytest.approx([gain * weight for weight in whole.weights])
        assert shape.identity is not None


def test_what_is_learned_does_not_depend_on_the_last_digits() -> None:
    """They differ with another BLAS, and the identity must be the same where a run is resumed."""
    world = Tolerance(200)
    nudged = {i: tuple(fact * (1 + 1e-13) for fact in facts) for i, facts in world.facts.items()}
    assert [s.identity for s in learned(world)] == [s.identity for s in learned(world, nudged)]


def test_a_fact_that_hardly_varies_says_next_to_nothing() -> None:
    world = Tolerance(200)
    same = {i: (*facts[:3], 0.5 + 1e-6 * facts[3]) for i, facts in world.facts.items()}
    *_, shape = learned(world, same)
    assert abs(shape.weights[3] * 0.05) < 0.05


@pytest.mark.parametrize("count", [10, 20])
def test_too_few_problems_are_refused_with_how_many_it_takes(count: int) -> None:
    with pytest.raises(UsageError, match=f"lost up to T = 1.*takes {NEEDED} or more: give about [2-9][0-9]"):
        learned(Tolerance(count))


def test_where_nothing_is_lost_larger_thresholds_are_requested() -> None:
    world = Tolerance(100)
    world.tolerates = dict.fromkeys(world.tolerates, 9.0)
    with pytest.raises(UsageError, match=r"^0 of .* give more, or larger thresholds"):
        learned(world)


def test_where_nearly_all_is_lost_smaller_thresholds_are_requested() -> None:
    world = Tolerance(100)
    world.tolerates = {i: 0.001 if n > 3 else 0.5 for n, i in enumerate(world.tolerates)}
    with pytest.raises(UsageError, match=r"^[1-4] of .* are kept at T = 0.01; .* give smaller thresholds"):
        learned(world)


def test_facts_come_from_the_prompts_and_from_the_traces_first_tokens() -> None:
    traced_problems = [Problem(i, "", text, "", "tuning") for i, text in ((3, "w5 w6"), (4, "w5 w6 w7"))]
    rows = [[{"problem": i, "draft_entropy": 1.0 + i, "draft_top1": 0.5}] * 2 for i in (3, 4)]
    found = facts_of(MemoryTraces(rows), decoder(), traced_problems)
    assert [found[3][-2:], found[4][-2:]] == [(4.0, 0.5), (5.0, 0.5)]
    assert found[4][0] > found[3][0] > 0
    with pytest.raises(UsageError, match="problem 4 is not in the traces"):
        facts_of(MemoryTraces(rows[:1]), decoder(), traced_problems)


def test_it_is_a_shape_by_name() -> None:
    again = policy_named(learned_policy().identity or "")
    assert isinstance(again, ScalePolicy)
    assert isinstance(again, PerPrompt)
    assert (again.weights, again.means) == (list(WEIGHTS), list(MEANS))
