"""The threshold policies of this package: conformance of all of them, and the behaviour of each."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from conformance.threshold_policies import (
    EveryPolicy,
    EveryScalePolicy,
    Own,
    Plain,
    decode,
    rise,
    thresholds_of,
)
from fsd_calib import adaptive
from fsd_common.errors import UsageError
from fsd_decoding.adaptive import (
    Constant,
    EntropyScaled,
    Max,
    Min,
    PerDomain,
    Phase,
    Schedule,
    Switch,
    policy_named,
)
from fsd_decoding.policies.composed import KNOWN
from fsd_decoding.policies.threshold import ThresholdPolicy

SHAPES: dict[str, Callable[[], Any]] = {  # Any: a type checker cannot see which compositions are shapes
    "constant": lambda: Constant(0.2),
    "schedule": rise,
    "schedule from 0": lambda: Schedule(0, 0.3, over=6),
    "schedule through points": lambda: Schedule.through([(2, 0.05), (5, 0.2), (6, 0.0), (9, 0.1)]),
    "target entropy": lambda: EntropyScaled(0.2, 1.5),
    "draft entropy": lambda: EntropyScaled(0.2, -3.0, of="draft"),
    "last": lambda: EntropyScaled(0.2, -3.0, of="last"),
    "min": lambda: Min(rise(), EntropyScaled(0.2, -3.0, of="last"), EntropyScaled(0.1, 2.0, of="last")),
    "max": lambda: Max(Own(), EntropyScaled(0.1, 2.0)),
    "switch": lambda: Switch.after_sentence(Constant(-1), rise()),
    "phase": lambda: Phase(0.2, 0.05, "w1", "w2"),  # with which many words begin
    "phase of tokens": lambda: Phase(0, 0.2, 5, 9),
    "max with a phase": lambda: Max(EntropyScaled(0.1, 2.0, of="last"), Phase(0.2, -1, 5, "w2")),
    "switch of its own": lambda: Switch(
        first=Constant(0.05), then=Max(rise(), Constant(0.1)), when=lambda state: state.emitted > 4
    ),
}
OTHERS: dict[str, Callable[[], ThresholdPolicy]] = {
    "min with a plain one": lambda: Min(Plain(), rise()),
    "switch with a plain one": lambda: Switch.after_sentence(EntropyScaled(0.2, 1.0, of="last"), Plain()),
    "per domain": lambda: PerDomain({"sums": 0.1, "tales": 0.3}, ["sums", "tales", "tales", "sums", "tales"]),
}


@pytest.mark.parametrize("make", SHAPES.values(), ids=SHAPES.keys())
class TestEveryShape(EveryScalePolicy): ...


@pytest.mark.parametrize("make", OTHERS.values(), ids=OTHERS.keys())
class TestEveryOther(EveryPolicy): ...


def test_fsd_calib_exports_the_policies() -> None:
    assert adaptive.Schedule is Schedule
    assert set(adaptive.__all__) >= {
        "Constant",
        "EntropyScaled",
        "Max",
        "Min",
        "PerDomain",
        "Phase",
        "Schedule",
        "Switch",
    }


# Constant


@pytest.mark.thinned(every=5)
@pytest.mark.parametrize("rule", ["fsd", "fsd-sd", "fsd-coupled"])
@pytest.mark.parametrize("threshold", [-1.0, 0.0, 0.1, math.inf])
def test_constant_is_the_number(rule: str, threshold: float) -> None:
    assert decode(Constant(threshold), rule=rule) == decode(threshold, rule=rule)


# Schedule


def test_a_schedule_is_linear_between_its_points_and_constant_beyond() -> None:
    def at(schedule: Schedule, positions: list[int]) -> list[float]:
        scales = schedule.traced({"position": torch.tensor(positions).numpy()}).tolist()
        return [schedule.threshold * scale for scale in scales]

    assert at(Schedule(0.05, 0.25, over=200), [0, 50, 100, 200, 5000]) == pytest.approx([0.05, 0.1, 0.15, 0.25, 0.25])
    bent = Schedule.through([(10, 0.3), (20, 0.1), (21, 0.2)])
    assert at(bent, [0, 10, 15, 20, 21, 22]) == pytest.approx([0.3, 0.3, 0.2, 0.1, 0.2, 0.2])


@given(st.lists(st.tuples(st.integers(0, 50), st.floats(0.001, 0.7)), min_size=1, max_size=5, unique_by=lambda p: p[0]))
def test_schedules_of_one_shape_are_one_shape(points: list[tuple[int, float]]) -> None:
    schedule = Schedule.through(sorted(points))
    twice = Schedule.through([(position, 2 * t) for position, t in sorted(points)])
    assert schedule.identity == twice.identity == schedule.at(0.5).identity
    assert 0 < schedule.least <= 1
    assert max(scale for _, scale in schedule.points) == 1


def test_a_flat_schedule_is_a_constant() -> None:
    assert decode(Schedule(0.2, 0.2, over=9)) == decode(0.2)


def test_a_schedule_is_its_first_threshold_at_first_and_its_last_one_later() -> None:
    late = [(0, -0.0), (3, 0.0), (4, 0.7)]
    lossless, scheduled = decode(-1.0), decode(Schedule.through(late))
    assert [r.tokens[:4] for r in scheduled] == [r.tokens[:4] for r in lossless]
    assert [r.tokens for r in scheduled] != [r.tokens for r in lossless]


# EntropyScaled


def test_doubt_is_zero_for_a_certain_token_and_grows_with_perplexity() -> None:
    for slope in (2.0, -2.0):
        policy = EntropyScaled(0.1, slope)
        nats = [0.0, math.log(2), math.log(50_000)]
        scales = policy.traced({"target_entropy": torch.tensor(nats, dtype=torch.float64).numpy()})
        assert scales.tolist() == pytest.approx([1.0, math.exp(slope / 2), math.exp(slope * (1 - 1 / 50_000))])


def test_without_a_slope_entropy_does_not_matter() -> None:
    for of in ("target", "draft", "last"):
        assert decode(EntropyScaled(0.2, 0.0, of)) == decode(0.2)


def test_divergence_of_recent_tokens_moves_the_threshold() -> None:
    steep = thresholds_of(EntropyScaled(0.1, 4.0, of="last"), range(5))
    assert (steep[0] == 0.1).all()  # nothing was decided yet
    assert (steep[1:] > 0.1).all()
    assert torch.equal(
        thresholds_of(EntropyScaled(0.1, 4.0, of="last"), range(5), spread=0.0), torch.full_like(steep, 0.1)
    )


# Bad input


BAD: list[tuple[Callable[[], object], str]] = [
    (lambda: Constant(math.nan), "threshold is NaN; it must be a number"),
    (lambda: Constant("x"), "threshold is 'x'; it must be a number"),  # type: ignore[arg-type]
    (lambda: Constant(True), "threshold is True; it must be a number"),
    (lambda: Constant(None), "threshold is None"),  # type: ignore[arg-type]
    (lambda: Schedule(-0.1, 0.2, 10), "start is -0.1; it must be a finite number of 0 or more"),
    (lambda: Schedule(0.1, math.nan, 10), "end is NaN"),
    (lambda: Schedule(0.1, math.inf, 10), "end is inf"),
    (lambda: Schedule(0.1, 0.2, 0), "over is 0; it must be a whole number of at least 1"),
    (lambda: Schedule(0.1, 0.2, 2.5), "over is 2.5"),  # type: ignore[arg-type]
    (lambda: Schedule(0, 0, 5), "the schedule is 0 everywhere"),
    (lambda: Schedule.through([]), r"points is \[\]; it must be a list of \(position, T\)"),
    (lambda: Schedule.through([(0, 0.1), (0, 0.2)]), "position 0 follows position 0 in the schedule; .* must rise"),
    (lambda: Schedule.through([(-1, 0.1)]), "a position of the schedule is -1"),
    (lambda: Schedule.through([(0.5, 0.1)]), "a position of the schedule is 0.5"),  # type: ignore[list-item]
    (lambda: Schedule.through([0.1]), "a point of the schedule is 0.1; it must be"),  # type: ignore[list-item]
    (lambda: Schedule.through([(3, -0.2)]), "T at position 3 is -0.2"),
    (lambda: EntropyScaled(0.1, math.nan), "slope is NaN; it must lie within ±8"),
    (lambda: EntropyScaled(0.1, 9), "slope is 9; it must lie within ±8"),
    (lambda: EntropyScaled(math.nan, 1), "threshold is NaN"),
    (lambda: EntropyScaled(0.1, 1, of="x"), "of is 'x'; it must be one of target, draft, last"),  # type: ignore[arg-type]
    (lambda: Phase("x", 0.1, 1, 2), "T inside is 'x'; it must be a number"),  # type: ignore[arg-type]
    (lambda: Phase(0, -1, 1, 2), "T is 0 inside and -1 outside the phase; the larger one must be finite and above 0"),
    (lambda: Phase(math.inf, 0.1, 1, 2), "T is inf inside and 0.1 outside the phase; the larger one must be finite"),
    (lambda: Phase(0.1, 0, "", 2), "begin is ''; it must be a text of 1 to 200 bytes, or the id of a token"),
    (lambda: Phase(0.1, 0, 2, "x" * 201), "end is 'xxx"),
    (lambda: Phase(0.1, 0, 2, -1), "end is -1; it must be a text"),
    (lambda: Phase(0.1, 0, True, 1), "begin is True; it must be a text"),
    (lambda: Phase(0.1, 0, None, 1), "begin is None; it must be a text"),  # type: ignore[arg-type]
    (lambda: Min(), "Min needs at least one policy"),
    (lambda: Max(0.1, rise()), r"Max got 0.1; it takes threshold policies, for example Constant\(0.1\)"),  # type: ignore[arg-type]
    (lambda: Min(Constant(0), Constant(-1)), "the largest threshold of the policies in min is 0; it must be finite"),
    (lambda: Max(Constant(math.inf), rise()), "the largest threshold of the policies in max is inf"),
    (lambda: Switch(rise(), rise(), "x"), "when is 'x'; it must be a function"),  # type: ignore[arg-type]
    (lambda: PerDomain({}, []), r"domains is \{\}; it must map tags"),
    (lambda: PerDomain({"a": math.nan}, []), "the T of domain 'a' is NaN; it must be a profile"),
    (lambda: PerDomain({"a": None}, []), "the T of domain 'a' is None; it must be a profile"),
    (lambda: PerDomain({"a": "/nowhere.json"}, []), "profile '/nowhere.json'"),
    (lambda: PerDomain({"a": 0.1}, "a"), "tags is 'a'; it must be a list"),
    (lambda: policy_named("schedule"), "the policy is 'schedule'; it must be a policy's identity"),
    (lambda: policy_named("[]"), r"the policy is \[\]; it must be a policy's identity"),
    (lambda: policy_named('{"name": "x", "version": 1}'), "unknown policy 'x'; known: " + ", ".join(KNOWN)),
    (lambda: policy_named('{"name": "constant", "version": 9}'), "'constant' has version 9, .* has version 1"),
    (lambda: policy_named('{"name": "constant", "version": 1, "a": 2}'), "policy 'constant' has parameters"),
    (lambda: policy_named('{"name": "entropy", "version": 1}'), "policy 'entropy' has parameters"),
    (lambda: policy_named('{"name": "min", "version": 1, "policies": []}'), "policy 'min' has parameters"),
    (lambda: policy_named('{"name": "entropy", "version": 1, "slope": 99, "of": "last"}'), "slope is 99"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), BAD, ids=[message for _, message in BAD])
def test_bad_input_is_refused_in_one_line(call: Callable[[], object], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
