"""The scores that a search tries by itself: what is possible, and what traces speak for."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsd_calib import Goal, NGram, SearchSpace
from fsd_calib.calibration.api import Calibration
from fsd_calib.calibration.auto_scores import USUAL, possible, tried, usual
from fsd_common.errors import UsageError
from fsd_decoding.scores import score_named
from support.models import tiny_calibration
from support.traces.memory_traces import MemoryManifest, MemoryTraces

Row = dict[str, Any]
READS_NOISE = {"accept-threshold@0.9", "cactus", "posterior", "ensemble"}


def test_what_is_possible_follows_from_rules_lengths_trees_and_the_engine() -> None:
    sampled = set(possible(greedy=False, longest=8, trees=False))
    assert {"js", "doubt", "margin", "fly@4"} | READS_NOISE <= sampled
    assert sampled - READS_NOISE == set(possible(True, 8, False, of_vllm=["fsd-coupled"]))
    assert "fly@4" not in possible(True, 4, False)
    assert all(score_named(name).judges_trees for name in possible(False, 8, True))
    of_p_and_q = possible(False, 8, False, of_vllm=["fsd-coupled"])
    assert {"js", "kl_qp", "doubt"} <= set(of_p_and_q)
    assert not any(score_named(name).reads_token for name in of_p_and_q)


def text(random: np.random.Generator, length: int = 40) -> list[Row]:
    """Rows of a text of whose drafted tokens half are rejected; "near" keeps the likeliest of these first."""
    rows = []
    for _ in range(length):
        nats = float(random.exponential())
        near = 1 - math.exp(-nats)
        rows.append({
            "same_token": bool(random.random() < 0.5), "target_top1": 0.5, "target_probability": 0.5 * math.exp(-nats),
            "margin": near, "relaxed": near * 2 + 1, "js": float(random.random()), "doubt": 1 - near, "fly@1": math.inf,
            "typical": near if random.random() < 0.6 else float(random.random()),
        })  # fmt: skip
    return rows


NAMES = ("js", "doubt", "margin", "relaxed", "typical", "fly@1")


def traces(seed: int, texts: int = 12) -> MemoryTraces:
    random = np.random.default_rng(seed)
    return MemoryTraces([text(random) for _ in range(texts)], manifest=MemoryManifest(scores=NAMES))


@given(st.integers(0, 10_000))
def test_the_score_whose_tokens_the_target_likes_most_comes_first(seed: int) -> None:
    found = tried(traces(seed), "fsd-coupled", NAMES)
    assert found[0] in ("margin", "relaxed")
    assert not {"margin", "relaxed"} <= set(found)  # they keep the same tokens
    assert not {"js", "doubt", "fly@1"} & set(found)  # at random, the worst first, and none at all
    assert found == tried(traces(seed), "fsd-coupled", NAMES)


def test_a_score_that_is_near_the_best_and_keeps_other_tokens_is_tried_too() -> None:
    """Of the tokens that are rejected, the target likes 70 % alike; two scores put these first, in different orders."""
    random, rows = np.random.default_rng(0), list[Row]()
    for _ in range(600):
        liked = bool(random.random() < 0.7)
        first = {name: float(random.random()) + (0 if liked else 1) for name in ("margin", "typical")}
        rows.append(text(random, 1)[0] | first | {"target_probability": 0.4 if liked else 0.01})
    found = tried(MemoryTraces([rows], manifest=MemoryManifest(scores=NAMES)), "fsd-coupled", NAMES)
    assert set(found) == {"margin", "typical"}


def test_a_score_that_keeps_few_is_compared_where_it_keeps_any() -> None:
    """As one that looks at later tokens, or reads a gate: it keeps the third that the target likes most."""
    rows = text(np.random.default_rng(0), 1200)
    near = [[row | {"typical": row["margin"] if row["margin"] < 0.3 else math.inf} for row in rows]]
    found = tried(MemoryTraces(near, manifest=MemoryManifest(scores=NAMES)), "fsd-coupled", ("js", "typical"))
    assert found == ("typical",)


def test_rejected_tokens_that_are_the_targets_likeliest_tell_nothing_apart() -> None:
    """Where decoding samples there are many, at 0 nats: a score that puts them first is no better for that."""
    rows = [row | {"target_probability": 0.5, "margin": 0.0} if n % 3 == 0 else row | {"margin": row["margin"] + 0.01}
            for n, row in enumerate(text(np.random.default_rng(0), 1200))]  # fmt: skip
    found = tried(MemoryTraces([rows], manifest=MemoryManifest(scores=NAMES)), "fsd-coupled", ("js", "margin"))
    assert found == ("margin",)


def test_a_rule_with_a_score_of_its_own_has_no_other() -> None:
    """Whether traces speak for it, and where there are none."""
    assert usual(("ensemble",)) == ("ensemble",)
    assert tried(traces(0), "fsd-coupled", ("fly@1",)) == ("fly@1",)
    for name in ("auto", "ensemble"):
        space = SearchSpace(rule="ensemble", score=name)
        calibration = Calibration("arithmetic", "target", "draft", Goal(min_acc=0.9), space)
        assert calibration._space.scores == ("ensemble",)
        assert calibration._always(None) is None
    with pytest.raises(
        UsageError, match="rule 'ensemble' bounds a score of its own, ensemble; search it without other"
    ):
        Calibration("arithmetic", "target", "draft", Goal(min_acc=0.9), SearchSpace(rule="ensemble", score="js"))


def test_where_the_exact_rule_rejects_nothing_the_usual_scores_are_tried() -> None:
    exact = [[row | {"same_token": True} for row in text(np.random.default_rng(0))]]
    assert tried(MemoryTraces(exact, manifest=MemoryManifest(scores=NAMES)), "fsd-coupled", NAMES) == USUAL


@pytest.mark.slow
def test_a_search_tries_them_and_those_that_are_given(tmp_path: Path) -> None:
    found = tiny_calibration.run_surely(
        tmp_path / "out", tmp_path / "cache", score=("auto", "tv"), draft_length=(2, 5), trials=4
    )
    tried_scores = {point.setting.score for point in found.curve if point.setting.threshold is not None}
    assert tried_scores <= {"tv", *possible(True, 5, False)}
    again = tiny_calibration.run_surely(
        tmp_path / "out", tmp_path / "cache", score=("auto", "tv"), draft_length=(2, 5), trials=4
    )
    assert (again.chosen, again.rule) == (found.chosen, found.rule)


@pytest.mark.slow
def test_without_traces_the_usual_scores_are_tried(tmp_path: Path) -> None:
    target, _ = tiny_calibration.far_apart()
    found = tiny_calibration.run(
        tmp_path / "out", tmp_path / "cache", pair=(target, NGram()), score="auto", min_acc=0.5, trials=4
    )
    assert {point.setting.score for point in found.curve if point.setting.threshold is not None} <= set(USUAL)
