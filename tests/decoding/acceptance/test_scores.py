"""Scores against short references in float64, which say what engines keep at a value of their knob."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fsd_common.errors import UsageError
from fsd_decoding.divergence import divergence
from fsd_decoding.scores import FAMILIES, Seen, score_named
from support.score_references import KEPT, Array

CLOSE = 1e-9  # of T to a score: rounding decides there


def seen(p: Array, q: Array, x: int, u: float) -> Seen:
    with np.errstate(divide="ignore"):
        target, draft = torch.from_numpy(np.log(p)) + 3.0, torch.from_numpy(np.log(q)) - 1.0
    return Seen(target[None], draft[None], torch.tensor([x]), lambda: torch.tensor([u], dtype=torch.float64))


weights = st.lists(st.floats(0.0, 1.0), min_size=5, max_size=5).filter(lambda values: sum(values) > 0.05)


def normalised(values: list[float]) -> Array:
    return np.array(values) / sum(values)


@settings(max_examples=300, deadline=None)
@given(
    p=weights, q=weights, x=st.integers(0, 4), u=st.floats(0.001, 0.999),
    t=st.one_of(st.just(-1e-9), st.floats(-0.5, 2.0)), name=st.sampled_from(sorted(KEPT)),
)  # fmt: skip
def test_a_score_is_the_least_threshold_that_keeps_the_token(
    p: list[float], q: list[float], x: int, u: float, t: float, name: str
) -> None:
    of_target, of_draft = normalised(p), normalised(q)
    score = score_named(name).of(seen(of_target, of_draft, x, u)).item()
    assert score >= 0.0
    if abs(score - t) > CLOSE:
        assert (score <= t and math.isfinite(score)) == KEPT[name](t, of_target, of_draft, x, u)


@settings(max_examples=200, deadline=None)
@given(p=weights, q=weights, t=st.floats(0.0, 1.0))
def test_greedily_an_ensemble_keeps_what_its_mixture_prefers(p: list[float], q: list[float], t: float) -> None:
    of_target, of_draft = normalised(p), normalised(q)
    x, mixed = int(of_draft.argmax()), (1 - t) * of_target + t * of_draft
    score = score_named("ensemble").of(replace(seen(of_target, of_draft, x, 0.5), greedy=True)).item()
    if abs(score - t) > CLOSE and np.delete(mixed, x).max() != pytest.approx(mixed[x], abs=CLOSE):
        assert (score <= t) == (mixed.argmax() == x)


def test_greedily_no_share_of_the_draft_keeps_what_neither_model_prefers() -> None:
    one = replace(seen(np.array([0.5, 0.2, 0.3]), np.array([0.6, 0.3, 0.1]), 1, 0.5), greedy=True)
    assert score_named("ensemble").of(one).item() == math.inf


@settings(max_examples=100, deadline=None)
@given(p=weights, q=weights, x=st.integers(0, 4), g=st.floats(0.1, 1.0))
def test_gated_is_the_score_where_the_target_is_unsure(p: list[float], q: list[float], x: int, g: float) -> None:
    of_target, of_draft = normalised(p), normalised(q)
    at = seen(of_target, of_draft, x, 0.5)
    for name in ("js", "tv", "js@2"):
        exact = divergence(name, at.target_logits, at.draft_logits).item()
        found = score_named(f"gated-{name}@{g!r}").of(at).item()
        if abs(of_target.max() - g) > CLOSE:
            assert found == (pytest.approx(exact) if of_target.max() <= g else math.inf)


def test_cactus_keeps_as_many_as_its_target_says() -> None:
    """By enumeration: of five tokens, and of 4,000 equal parts of u, the share kept is min(1, g(x) / q(x))."""
    p, q = np.array([0.4, 0.3, 0.2, 0.1, 0.0]), np.array([0.1, 0.2, 0.3, 0.2, 0.2])
    parts = (torch.arange(4000, dtype=torch.float64) + 0.5) / 4000
    for t in (-1e-9, 0.0, 0.01, 0.1, 1.0):
        for x in range(5):
            one = seen(p, q, x, 0.0)
            many = Seen(
                one.target_logits.expand(4000, -1), one.draft_logits.expand(4000, -1), one.drafted.expand(4000),
                lambda: parts,
            )  # fmt: skip
            score = score_named("cactus").of(many)
            kept = ((score <= t) & score.isfinite()).double().mean().item()
            g = min(p[x] + math.sqrt(2 * max(t, 0.0) * p[x] * (1 - p[x])), 1.0)
            assert kept == pytest.approx(min(1.0, g / q[x]) if t >= 0 else 0.0, abs=1 / 4000)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", [*KEPT, "gated-js"])
def test_scores_of_shorter_types_are_those_of_their_values(name: str, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    target, draft = (2 * torch.randn(7, 4, 50, generator=generator).to(dtype) for _ in range(2))
    drafted = torch.randint(50, (7, 4), generator=generator)
    u = torch.rand(7, 4, generator=generator, dtype=torch.float64)
    score = score_named(name)
    short = score.of(Seen(target, draft, drafted, lambda: u))
    exact = score.of(Seen(target.double(), draft.double(), drafted, lambda: u))
    assert short.shape == (7, 4)
    torch.testing.assert_close(short.double(), exact, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("jss", "unknown score 'jss'; known: js, "),
        ("margin@0", "score 'margin@0' has k = '0'; it must be a whole number from 1 to "),
        ("fly@1.5", "score 'fly@1.5' has W = '1.5'; it must be a whole number from 0 to 64"),
        ("fly@2@3@4", "score 'fly@2@3@4' has 3 numbers; after its name may come @W (drafted tokens after x"),
        ("cactus@1", "score 'cactus@1' has 1 number; after its name may come no number"),
        ("gated-jss", "unknown divergence 'jss'"),
        ("gated-js@0.5@0.9", "score 'gated-js@0.5@0.9' has 2 numbers"),
        ("js@0", "unknown divergence 'js@0'"),
        (7, "score is 7; it must be a name"),
    ],
)
def test_a_name_that_is_no_score_is_refused(name: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        score_named(name)
    assert message in str(caught.value)


def test_every_score_says_what_it_is() -> None:
    for name, family in FAMILIES.items():
        assert family.__doc__
        assert score_named(name).window >= 0
