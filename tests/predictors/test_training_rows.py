"""Training rows, compared with a plain loop over rounds and tokens of the same traces."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsd_collectors.replay.blocks import blocks
from fsd_collectors.replay.cases import cases
from fsd_collectors.replay.rounds import RoundPolicy, lanes_of, simulate_rounds
from fsd_common.errors import UsageError
from fsd_predictors.features import (
    COLUMNS,
    FEATURES,
    MEASURED,
    NO_HISTORY,
    ROLES,
    Drafted,
    Forecast,
    RoundContext,
    TokenKinds,
    feature_values,
    updated_history,
)
from fsd_predictors.share_scale import NEVER, ShareScale
from fsd_predictors.training.rows import ExampleMaker, Rows, Sample, training_rows
from support.traces.memory_traces import MemoryManifest, MemoryTraces

Row = dict[str, Any]
ENDS = 3  # the token that ends texts
KINDS = TokenKinds(np.arange(8) % 5.0, (np.arange(8) == ENDS).astype(np.float64))
SHAPES = [f"{model}_{name}" for model in ("draft", "target") for name in MEASURED]
DRAFT = SHAPES[: len(MEASURED)]
FUZZY = {"fsd": None, "fsd-sd": "sd_accepts", "fsd-coupled": "same_token"}


def random_texts(count: int, longest: int, seed: int = 0) -> list[list[Row]]:
    rng = np.random.default_rng(seed)
    return [
        [
            {
                "problem": 100 + number, "drafted": int(rng.integers(8)), "same_token": bool(rng.random() < 0.5),
                "sd_accepts": bool(rng.random() < 0.5), "js": float(rng.choice([rng.random(), math.inf], p=[0.9, 0.1])),
                "tv": float(rng.random()), **dict(zip(SHAPES, rng.random(len(SHAPES)).tolist(), strict=True)),
                "draft_hidden": rng.random(3).astype(np.float16),
            }
            for _ in range(rng.integers(1, longest + 1))
        ]
        for number in range(count)
    ]  # fmt: skip


def traces_of(texts: Sequence[Sequence[Row]]) -> MemoryTraces:
    return MemoryTraces(texts, manifest=MemoryManifest(scores=("js", "tv")))


TEXTS = random_texts(40, 30)
TRACES = traces_of(TEXTS)
SCALE = ShareScale.of_traces(TRACES, ["js", "tv"])


def accepts(row: Row, rule: str, score: str, threshold: float) -> bool:
    exact = FUZZY[rule]
    return (exact is not None and row[exact]) or (math.isfinite(row[score]) and row[score] <= threshold)


def by_hand(
    text: Sequence[Row], lengths: Sequence[int], rule: str, score: str, threshold: float
) -> Iterator[tuple[str, list[Any], bool]]:
    """Yields the forecast, the features and the label of each example; `lengths` are draft lengths by position."""
    at, history = 0, list(NO_HISTORY)
    while at < len(text):
        share, index = SCALE.of(score, threshold), float(SCALE.index(score))
        place = RoundContext(float(at), share, index, tuple(history[:3]), *history[3:])
        drafts = text[at : at + lengths[at]]
        agreed = [accepts(row, rule, score, threshold) for row in drafts]
        accepted = next((i for i, yes in enumerate(agreed) if not yes), len(drafts))
        steps: list[Drafted] = []
        for i, row in enumerate(drafts[: accepted + 1]):
            token = row["drafted"]
            shape = [row[name] for name in DRAFT]
            steps.append(Drafted(*shape, *(float(of[token]) for of in (KINDS.kind, KINDS.ends))))
            yield "accepting", feature_values(steps, place), agreed[i]
            if token == ENDS and agreed[i]:
                yield "next", feature_values(steps, place), False
            if agreed[i] and token != ENDS and at + i + 1 < len(text):
                yield "next", feature_values(steps, place), accepts(text[at + i + 1], rule, score, threshold)
            if token == ENDS:
                break
        alone = [row[score] for row in drafts[:accepted] if not accepts(row, rule, score, -1.0)]
        last = drafts[accepted][score] if accepted < len(drafts) else math.inf
        history = [float(accepted), *history[:2], max(alone, default=0.0), last if math.isfinite(last) else 0.0]
        at += accepted + 1


def in_order(rows: Sequence[Sequence[Any]]) -> list[list[float]]:
    return sorted([float(value) for value in row] for row in rows)


def expected(
    texts: Sequence[Sequence[Row]], length: int, rule: str, points: Sequence[tuple[str, float]]
) -> dict[str, list[list[float]]]:
    """Returns the expected rows, each followed by its label, sorted."""
    found: dict[str, list[list[Any]]] = {"accepting": [], "next": []}
    for name, threshold in points:
        for text in texts:
            for forecast, values, accepted in by_hand(text, [length] * len(text), rule, name, threshold):
                found[forecast].append([*values, accepted])
    return {forecast: in_order(rows) for forecast, rows in found.items()}


def rows_by_forecast(rows: dict[Forecast, Rows]) -> dict[str, list[list[float]]]:
    return {
        forecast: in_order(np.column_stack([each.values, each.accepted]).tolist()) for forecast, each in rows.items()
    }


@settings(max_examples=60)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from(sorted(FUZZY)),
    st.sampled_from(["js", "tv"]),
    st.sampled_from([-1.0, 0.3, 0.8, math.inf]),
    st.integers(1, 7),
)
def test_examples_equal_those_of_a_plain_loop(seed: int, rule: str, score: str, threshold: float, length: int) -> None:
    texts = random_texts(5, 20, seed)
    (case,) = cases(traces_of(texts), [rule], [score], [threshold], None)
    (block,) = blocks(traces_of(texts), [*COLUMNS, *case.columns])
    examining = ExampleMaker(case, block, SCALE, KINDS)
    policy = RoundPolicy((), lambda starts: starts.lanes.most, NO_HISTORY, updated_history)
    found: dict[str, list[list[Any]]] = {"accepting": [], "next": []}
    for laid in simulate_rounds(case, block, lanes_of(block, np.array([threshold]), np.array([length])), policy):
        for one in examining(laid, np.arange(len(laid.lanes))):
            found[one.forecast] += np.column_stack([one.values, one.accepted]).tolist()
    expectation = expected(texts, length, rule, [(score, threshold)])
    for forecast in ("accepting", "next"):
        assert np.allclose(in_order(found[forecast]), expectation[forecast], rtol=1e-6, atol=0)


@pytest.mark.parametrize("rule", sorted(FUZZY))
def test_rows_are_the_examples_of_every_text_at_every_threshold(rule: str) -> None:
    """Drafts of one token, so that nothing is random."""
    options = {"tv": [-1.0, 0.4], "js": [0.2]}
    rows = training_rows(TRACES, rule, SCALE, KINDS, most=1, thresholds=options)
    expectation = expected(TEXTS, 1, rule, [(name, each) for name, scale in options.items() for each in scale])
    for each in rows.values():
        assert each.values.shape == (len(each.accepted), len(FEATURES))
    for forecast, found in rows_by_forecast(rows).items():
        assert np.allclose(found, expectation[forecast], rtol=1e-6, atol=0)


def test_thresholds_are_drawn_over_the_whole_scale_and_below_zero() -> None:
    rows = training_rows(traces_of(random_texts(300, 4)), "fsd-coupled", SCALE, KINDS, thresholds=5)["accepting"]
    share, score, position, step = (
        rows.values[:, FEATURES.index(name)] for name in ("share", "score", "position", "step")
    )
    for index, name in enumerate(SCALE.scores):
        first = share[(position == 0) & (step == 1) & (score == index)]
        assert len(first) == 300 * 5
        assert (first == NEVER).sum() == 300
        drawn = first[first > NEVER]
        counts = np.histogram(drawn, bins=4, range=(math.log(0.1 / 0.9), SCALE.ends(name)[1]))[0]
        assert counts.tolist() == pytest.approx([300] * 4, abs=3)  # one in each quarter a text, but for rounding
        assert len(np.unique(drawn)) > 1000


def test_drafts_have_all_lengths_and_rounds_their_history() -> None:
    bold = training_rows(TRACES, "fsd-coupled", SCALE, KINDS, most=6, thresholds={"js": [0.9]})["accepting"]
    last = {name: bold.values[:, i].max() for i, name in enumerate(FEATURES)}
    assert last["step"] == 6
    assert (last["accepted_1_back"], last["accepted_3_back"]) == (6, 6)
    assert last["spared"] > 0
    assert last["refused"] > 0


def test_unknown_problems_are_refused() -> None:
    with pytest.raises(UsageError, match="selects no rows"):
        training_rows(TRACES, "fsd", SCALE, KINDS, problems=[1])


def same(one: dict[Forecast, Rows], other: dict[Forecast, Rows]) -> bool:
    pairs = (
        (getattr(one[forecast], field.name), getattr(other[forecast], field.name))
        for forecast in ROLES
        for field in fields(Rows)
    )
    return all(np.array_equal(a, b) if a is not None else b is None for a, b in pairs)


def test_the_seed_determines_the_rows() -> None:
    of_seed = [training_rows(TRACES, "fsd-coupled", SCALE, KINDS, seed=seed, limit=200) for seed in (1, 1, 2)]
    assert same(of_seed[0], of_seed[1])
    assert not same(of_seed[0], of_seed[2])


def test_only_the_selected_problems_give_rows() -> None:
    rows = training_rows(TRACES, "fsd-coupled", SCALE, KINDS, problems=[103, 117], seed=3)
    alone = training_rows(traces_of([TEXTS[3], TEXTS[17]]), "fsd-coupled", SCALE, KINDS, seed=3)
    assert same(rows, alone)
    assert set(rows["accepting"].problem.tolist()) == {103, 117} >= set(rows["next"].problem.tolist())


def test_rows_hold_their_problem_and_hidden_state() -> None:
    rows = training_rows(TRACES, "fsd-coupled", SCALE, KINDS, hidden=True)
    for each in rows.values():
        assert each.hidden is not None
        assert len(each.values) == len(each.problem) == len(each.hidden)
        for row, problem, state in list(zip(each.values, each.problem, each.hidden, strict=True))[::97]:
            rows_by_forecast = dict(zip(FEATURES, row.tolist(), strict=True))
            source = TEXTS[problem - 100][int(rows_by_forecast["position"] + rows_by_forecast["step"]) - 1]
            assert source["draft_entropy"] == rows_by_forecast["entropy"]
            assert np.array_equal(source["draft_hidden"], state)


def test_a_limit_keeps_whole_rounds() -> None:
    """A round's first row is kept whenever a later one is."""
    options: dict[str, Any] = {"thresholds": {"js": [0.5]}, "seed": 5}
    everything = training_rows(TRACES, "fsd-coupled", SCALE, KINDS, **options)["accepting"]
    limited = training_rows(TRACES, "fsd-coupled", SCALE, KINDS, limit=150, **options)
    some = limited["accepting"]
    assert 100 < len(some.values) <= 150
    assert 0 < len(limited["next"].values) <= len(some.values) < len(everything.values)
    everywhere = {tuple(row) for row in everything.values.tolist()}
    position, step = (FEATURES.index(name) for name in ("position", "step"))
    begun = {(problem, row[position]) for problem, row in zip(some.problem, some.values, strict=True) if row[step] == 1}
    for problem, row in zip(some.problem, some.values, strict=True):
        assert tuple(row.tolist()) in everywhere
        assert (problem, row[position]) in begun


def test_all_groups_are_equally_likely_to_be_sampled() -> None:
    """1,000 groups of two rows, in 40 additions, for 300 rows: each half of them expects 75 groups."""
    sample, rng = Sample(300), np.random.default_rng(0)
    for part in range(40):
        groups = np.repeat(np.arange(25 * part, 25 * (part + 1)), 2)
        keys = np.repeat(rng.random(25), 2)
        sample.add("rows", keys, {"group": groups})
    assert sample.below < 1.0  # it did not wait for the end to give rows up
    kept, counts = np.unique(sample.columns("rows")["group"], return_counts=True)
    assert (counts == 2).all()
    assert len(kept) == 150
    assert 45 <= (kept < 500).sum() <= 105  # six standard deviations of a hypergeometric count: false alarms 1e-7


def test_where_nothing_is_accepted_b_has_no_rows() -> None:
    rows = training_rows(TRACES, "fsd", SCALE, KINDS, thresholds=1)
    assert not rows["accepting"].accepted.any()
    assert rows["next"].values.shape == (0, len(FEATURES))
    assert len(rows["next"].accepted) == len(rows["next"].problem) == 0


@pytest.mark.parametrize(
    ("traces", "rule", "options", "complaint"),
    [
        (replace(TRACES, manifest=MemoryManifest(way="on-policy")), "fsd", {}, "are on-policy; replay needs"),
        (replace(TRACES, manifest=MemoryManifest()), "fsd", {}, "no score 'tv', only js"),
        (TRACES, "fsd", {"thresholds": {"ag": [0.1]}}, "has the scores js, tv, not 'ag'"),
        (TRACES, "fsd", {"thresholds": 0}, "thresholds=0; it must be a number of 1 or more"),
        (TRACES, "fsd", {"most": 0}, r"draft lengths are \[0\]"),
        (TRACES, "coupled", {}, "rule 'coupled' has no threshold"),
        (TRACES, "sd-block", {}, "rule 'sd-block' cannot be replayed"),
    ],
)
def test_invalid_arguments_are_refused_in_one_line(
    traces: MemoryTraces, rule: str, options: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(UsageError, match=complaint) as refused:
        training_rows(traces, rule, SCALE, KINDS, **options)
    assert "\n" not in str(refused.value)
