"""Whole calibrations of tiny models: what is told apart, what is refused, and what no attempt is spent on."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiny_calibration
from fsd_calib import calibrate
from fsd_calib.calibration import Calibration
from fsd_calib.certifying.claim import Claim
from fsd_calib.certifying.outcomes import Paired
from fsd_calib.measuring.configuration import Configuration
from fsd_calib.planning import check_enough
from fsd_calib.progress import Lines, Silent
from fsd_calib.searching.space import Space
from fsd_calib.wish import Wish
from fsd_calib.workbench import opened
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.errors import UsageError
from fsd_decoding.sampling import Sampling
from tiny import word_tokenizer
from tiny_pair import related


def planned(cache: Path, spread: float = 0.05, **wish: Any) -> None:
    target, draft = related(seed=1, spread=spread)
    space = Space(("fsd-coupled",), ("js",), (2, 4))
    Calibration(
        tiny_calibration.task(240), target, draft, Wish(**({"min_acc": 0.7} | wish)), space,
        tokenizer=word_tokenizer(), cache=cache,
    ).plan()  # fmt: skip


def attempt(cache: Path, seeds: int, temperature: float) -> int:
    decoder = SpeculativeDecoder(
        *related(seed=1, spread=0.05), word_tokenizer(), seed=0, sampling=Sampling(temperature, None, None)
    )
    frozen, claim = [Configuration("fsd-coupled", "js", 2, 0.1)], Claim(0.7, problems=100)
    with opened(decoder, tiny_calibration.task(240), 32, seeds, cache, Silent(), cache) as bench:
        return bench.sealed.open(frozen, bench.configuration("target"), claim, 0.95).attempt.number


def test_repeated_problems_count_once_and_the_user_is_told() -> None:
    task, told = tiny_calibration.task(60), StringIO()
    again = replace(task.problems[0], id=1, question=f"{task.problems[0].question} ")
    doubled = replace(task, problems=(*task.problems, again))
    decoder = SpeculativeDecoder(*related(seed=1, spread=0.05), word_tokenizer(), seed=0)
    with opened(decoder, doubled, 32, 1, None, Lines(told), None) as bench:
        kept = [*(problem.id for problem in bench.tuning.problems), *bench.sealed.ids]
    distinct = {problem.question for problem in task.problems}
    assert len(kept) == len(distinct)
    assert 1 in kept  # the smallest of its ids
    assert f"{61 - len(distinct)} of 61 problems repeat others" in told.getvalue()


def test_two_drafts_share_a_cache(tmp_path: Path) -> None:
    planned(tmp_path, spread=0.05)
    planned(tmp_path, spread=0.2)


@pytest.mark.slow
def test_a_wish_is_taken_up_again(tmp_path: Path) -> None:
    for min_acc in (0.7, 0.6, 0.7):
        profile = tiny_calibration.run(tmp_path / "out", tmp_path / "cache", min_acc=min_acc)
    assert profile.certificate.attempt == 1  # "the same command again is the same attempt"


@pytest.mark.parametrize("other", [(2, 0.8), (1, 0.6)])
def test_other_seeds_or_sampling_are_another_attempt(tmp_path: Path, other: tuple[int, float]) -> None:
    assert attempt(tmp_path, 1, 0.8) == 1
    assert attempt(tmp_path, *other) == 2


@pytest.mark.parametrize(("seeds", "test"), [(1, "betting"), (4, "score")])
def test_enough_problems_are_enough_for_the_test_that_is_used(seeds: int, test: Any) -> None:
    """Losing nothing, as the refusal has it."""
    claim, same = Claim(0.98, test=test, problems=200), Paired(*[np.ones((200, seeds), bool)] * 2)
    if claim.p_value(same) > 0.0304:
        with pytest.raises(UsageError, match="takes at least"):
            check_enough(claim, 200, 0.0304, seeds=seeds)


def test_damaged_traces_are_set_aside(tmp_path: Path) -> None:
    planned(tmp_path)
    (shard,) = tmp_path.glob("traces/*/completions/*.parquet")
    shard.write_bytes(shard.read_bytes()[:100])
    with pytest.warns(UserWarning, match="damaged"):
        planned(tmp_path)


def test_nothing_is_certified_on_so_few_are_enough(tmp_path: Path) -> None:
    planned(tmp_path, min_acc=0.98, confidence=0.999, guarantee="none")


@pytest.mark.slow
def test_a_draft_that_never_errs_leaves_nothing_to_be_lossy_for(tmp_path: Path) -> None:
    target, draft = related(seed=1, spread=0.0)
    profile = calibrate(
        tiny_calibration.task(240), target=target, draft=draft, tokenizer=word_tokenizer(), cache=tmp_path,
        min_acc=0.7, draft_length=(2, 4), divergence="js",
    )  # fmt: skip
    assert profile.outcome == "lossless-suffices", (profile.threshold, profile.speed.chosen, profile.speed.sd)


@pytest.mark.slow
def test_too_few_to_time_is_said_before_an_attempt_is_spent(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="to time"):
        tiny_calibration.run(tmp_path / "out", tmp_path / "cache", serve_batch=64)
    assert tiny_calibration.run(tmp_path / "out", tmp_path / "cache").certificate.attempt == 1
