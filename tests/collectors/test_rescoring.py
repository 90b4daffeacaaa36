"""Further scores of traces, from the likeliest tokens that they hold: exact where that is said, else bounds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fsd_calib import replay, sweep
from fsd_collectors.collection.likeliest import COLUMNS, Likeliest
from fsd_collectors.collection.rescoring import Rescored, with_scores
from fsd_collectors.report.description import summarise
from fsd_collectors.store.verifying import verify
from fsd_common import addons
from fsd_common.errors import UsageError
from fsd_decoding.divergence import DistributionPair, divergences, log_softmax
from support.models.tiny_models import VOCABULARY
from support.models.tiny_pair import related
from support.models.tiny_task import tiny_task
from support.own_code import on_path
from support.paths import EXAMPLES
from support.traces.collecting import ON_POLICY, collect

K = 8
LEFT = ("js", "tv", "margin")  # which are collected in any case
SCORES = ("js@8", "kl_qp", "hellinger", "gated-js@0.5", "margin@3", "relaxed", "fly@1", "cactus",
          "accept-threshold@0.7", "typical")  # fmt: skip
SAMPLINGS: dict[str, tuple[dict[str, Any], set[str]]] = {  # with the scores that are exact
    "greedy": ({}, {"js@8", "margin@3", "relaxed", "fly@1", "cactus", "accept-threshold@0.7"}),
    "sampled": ({"temperature": 0.8}, {"js@8", "margin@3", "relaxed"}),
    "at 1": ({"temperature": 1.0}, {"js@8", "margin@3", "relaxed", "fly@1", "cactus", "accept-threshold@0.7"}),
    "top-k": ({"temperature": 0.8, "top_k": 6}, set(SCORES) - {"kl_qp", "hellinger", "gated-js@0.5"}),
    "processed": ({"temperature": 0.8, "top_k": 6, "on": "processed"}, set(SCORES)),
}


@pytest.fixture(scope="module")
def pair() -> tuple[Any, Any]:
    return related(seed=1, spread=0.05)


@pytest.mark.thinned(every=3)
@pytest.mark.parametrize("way", [{}, ON_POLICY], ids=["along the target", "on-policy"])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_scores_are_those_that_would_have_been_collected(
    sampling: str, way: dict[str, Any], pair: tuple[Any, Any], tmp_path: Path
) -> None:
    given_, exact = SAMPLINGS[sampling]
    common = {**way, **given_}
    kept = collect(tmp_path / "kept", pair, tiny_task(12), scores=(*LEFT, *SCORES), **common)
    lists = collect(tmp_path / "lists", pair, tiny_task(12), scores=LEFT, log_probs=K, **common)
    assert verify(tmp_path / "lists") == []
    rescored = with_scores(lists, [*SCORES, "js"])
    assert rescored.scores == SCORES  # js is there
    assert {name for name in SCORES if rescored.exact(name)} == exact
    names = ["problem", "position", "js", *SCORES]
    (wanted,), (found,) = ([*traces.batches(names)] for traces in (kept, rescored))
    assert found.column_names == names
    for name in ("problem", "position", "js"):
        assert found[name].equals(wanted[name])
    for name in SCORES:
        were, are = wanted[name].to_numpy(), found[name].to_numpy()
        assert (were > 0).any()
        if name in exact:
            np.testing.assert_allclose(are, were, rtol=2e-4, atol=2e-6, err_msg=name)
        elif name in ("kl_qp", "hellinger"):
            assert (are <= were + 1e-5).all()
            assert (are < were - 1e-3).any()


def test_a_replay_of_a_further_score_is_that_of_a_collected_one(pair: tuple[Any, Any], tmp_path: Path) -> None:
    task = tiny_task(30, max_new_tokens=24)
    kept = collect(tmp_path / "kept", pair, task, scores=("js", "margin"))
    lists = with_scores(collect(tmp_path / "lists", pair, task, scores=("js",), log_probs=K), ["margin"])
    for traces in (kept, lists):
        assert replay(traces, "fsd-coupled", "margin", 0.3, 4).tokens_per_round > 1.2
    wanted, found = (
        sweep(traces, ("fsd-coupled", "fsd"), ("margin", "js"), [0.1, 0.4, 0.8]) for traces in (kept, lists)
    )
    assert found.equals(wanted)
    assert summarise(lists).scores["margin"].rows == summarise(kept).scores["margin"].rows


@pytest.mark.parametrize("log_probs", [K, VOCABULARY])
def test_rows_hold_the_likeliest_tokens_of_both(log_probs: int, pair: tuple[Any, Any], tmp_path: Path) -> None:
    traces = collect(tmp_path / "run", pair, tiny_task(6), log_probs=log_probs)
    frame: Any = traces.to_pandas(["drafted", "target_rank", "target_top1", "target_probability", *COLUMNS])
    for row in frame.itertuples():
        assert len(set(row.target_top)) == len(row.draft_top_log_p) == log_probs
        assert (np.diff(row.target_top_log_p) <= 0).all()
        assert (np.diff(row.draft_top_log_q) <= 0).all()
        assert np.exp(row.target_top_log_p[0]) == pytest.approx(row.target_top1, rel=1e-5)
        if row.target_rank < log_probs:
            place = row.target_top.tolist().index(row.drafted)
            assert np.exp(row.target_top_log_p[place]) == pytest.approx(row.target_probability, rel=1e-5)
    of_target, of_draft = Rescored(traces, ()).left_out()
    assert (of_target < 1e-6) == (of_draft < 1e-6) == (log_probs == VOCABULARY)


logits = st.lists(st.floats(-8, 8), min_size=12, max_size=12)


@given(p=logits, q=logits, x=st.integers(0, 11), k=st.integers(1, 12))
def test_what_is_kept_is_kept_and_the_rest_is_spread(p: list[float], q: list[float], x: int, k: int) -> None:
    both = [torch.tensor([each], dtype=torch.float64) for each in (p, q)]
    pair, drafted = DistributionPair(*map(log_softmax, both)), torch.tensor([x])
    kept = Likeliest.of(pair, k)
    made = DistributionPair(*map(log_softmax, kept.logits(drafted, pair.p[:, x], pair.q[:, x], 12)))
    known = [*kept.target_top[0].tolist(), *kept.draft_top[0].tolist(), x]
    for was, now in ((pair.p, made.p), (pair.q, made.q)):
        torch.testing.assert_close(now[:, known], was[:, known], rtol=1e-9, atol=1e-12)
        rest = [token for token in range(12) if token not in known]
        if rest:
            assert now[0, rest].max() - now[0, rest].min() < 1e-12
            assert now[0, rest].max() <= now[0].topk(k).values[-1] + 1e-12
    names = ["js", "ag", "kl_qp", "kl_pq", "tv", "hellinger"]
    for name, exact in divergences(names, *both).items():
        assert divergences([name], made.log_p, made.log_q)[name] <= exact + 1e-9


def test_what_cannot_be_is_refused_in_one_line(pair: tuple[Any, Any], tmp_path: Path) -> None:
    traces = collect(tmp_path / "run", pair, tiny_task(6))
    with pytest.raises(
        UsageError, match=r"hold no log-probabilities, of which margin could be computed; collect again"
    ):
        with_scores(traces, ["margin"])
    for log_probs, message in (
        (0, "must be a whole number of at least 1"),
        (9999, f"the models have {VOCABULARY} tok"),
    ):
        with pytest.raises(UsageError, match=f"log_probs is {log_probs}.*{message}"):
            collect(tmp_path / "other", pair, tiny_task(6), log_probs=log_probs)
    lists = collect(tmp_path / "lists", pair, tiny_task(6), log_probs=2)
    with pytest.raises(UsageError, match="unknown score 'poetry'"):
        with_scores(lists, ["poetry"])
    with pytest.raises(UsageError, match="holds traces of another run: log_probs 2, not 3"):
        collect(tmp_path / "lists", pair, tiny_task(6), log_probs=3)


def test_a_column_that_other_code_has_computed_is_refused(
    pair: tuple[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with on_path(EXAMPLES):
        kept = collect(tmp_path / "run", pair, tiny_task(6), scores=("new_score:Behind@5",), log_probs=K)
        assert [each.name for each in kept.manifest.addons] == ["new_score:Behind"]
        rescored = with_scores(kept, ["new_score:Behind@5", "new_score:Behind@6"])
        assert rescored.scores == ("new_score:Behind@6",)
        assert rescored.manifest.addons == kept.manifest.addons
        known = kept.manifest.addons[0]
        monkeypatch.setitem(addons._ADDONS, ("score", known.name), replace(known, source="0" * 64))
        with pytest.raises(
            UsageError, match=r"the column of traces .* was made with another source of score 'new_score"
        ):
            with_scores(kept, ["new_score:Behind@5"])
        with pytest.raises(UsageError, match="holds traces of another run: addons"):
            collect(tmp_path / "run", pair, tiny_task(6), scores=("new_score:Behind@5",), log_probs=K)
