"""The first estimate: what it says of the time, what it keeps, and what rounds that are cut short tell."""

from __future__ import annotations

import re
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
import torch

from fsd_calib.calibration import first_estimate
from fsd_calib.calibration.api import Calibration
from fsd_calib.calibration.first_estimate import FirstLook, Seen, _cut_lengths, _ended_lengths, _seen, in_words
from fsd_calib.calibration.plan import FirstEstimate, Plan
from fsd_calib.measuring.interleaved import MachineLoad
from fsd_calib.measuring.look import Look
from fsd_calib.options.goal import Goal
from fsd_calib.options.run_config import RunConfig
from fsd_calib.options.search_space import SearchSpace
from fsd_common.progress.chosen import Lines
from support.models import tiny_calibration
from support.models.tiny_models import word_tokenizer
from support.models.tiny_pair import related


def planned(folder: Path, log: StringIO) -> Plan:
    target, draft = related(seed=1, spread=0.05)
    config = RunConfig(cache=folder, state=folder, progress=Lines(log), compile="off")
    decoding = SearchSpace(score="js", draft_length=(2, 4))
    task = tiny_calibration.task(200)
    return Calibration(task, target, draft, Goal(min_acc=0.6), decoding, config, word_tokenizer()).plan()


def watched(rows: int, rounds: float, tokens: int, first: float = 1.0) -> Look:
    look = Look(torch.device("cpu"), 0.0, rows=rows, first=first, tokens=tokens, row_rounds=4 * rows)
    look.seconds, look.drafting = [rounds] * 3, [rounds / 2] * 3
    return look


def test_a_round_of_a_batch_follows_from_two_numbers_of_rows() -> None:
    seen = _seen([watched(1, 0.3, 12), watched(5, 0.7, 60)], 0, 512)
    assert [seen.fixed, seen.row] == pytest.approx([0.2, 0.1])
    assert seen.prefill == pytest.approx((1.0 - 0.7) / 5)
    assert seen.tokens_per_round == 3.0
    one, many = seen.paces(90.0, 1), seen.paces(90.0, 32)
    assert many.lossless == pytest.approx(seen.prefill + 30 * (0.2 / 32 + 0.1))
    assert many.lossless < one.lossless < one.target
    assert seen.paces(90.0, 32, processes=2).target == pytest.approx(many.target / 2)


def test_one_row_alone_gives_an_estimate_too() -> None:
    seen = _seen([watched(1, 0.3, 12)], 0, 512)
    assert isinstance(seen, Seen)
    assert seen.fixed + seen.row == pytest.approx(0.3)


@pytest.mark.parametrize("tokens", [1, 20, 500, 512])
def test_texts_that_all_go_on_are_between_what_was_seen_and_the_limit(tokens: int) -> None:
    low, middle, high = _cut_lengths(tokens, 512)
    assert tokens <= low <= middle <= high <= 512


def test_texts_that_ended_narrow_the_mean() -> None:
    few, many = _ended_lengths(400, 4, 512), _ended_lengths(12_800, 128, 512)
    assert few[0] < many[0] < 100 == many[1] < many[2] < few[2]
    assert _ended_lengths(4000, 2, 512)[1:] == (512, 512)


def test_words_name_the_load_or_what_is_left_out() -> None:
    found = FirstEstimate(300.0, 420.0, 600.0, 60.0, "search", 0.5, 3.0, 5, 1.0)
    texts = "about 7 min (5 min to 10 min by the length of texts"
    assert in_words(found, MachineLoad(1.3, 1)) == (
        f"{texts} and by whether what else runs here ends or grows, load 1.3 on 1 core)"
    )
    for idle in (MachineLoad(1.0, 1), None):
        assert in_words(found, idle) == f"{texts}, if nothing else begins to run here)"


@pytest.mark.slow
def test_the_interval_is_wider_by_what_the_load_makes_of_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    estimates: list[FirstEstimate] = []
    estimate = FirstLook.estimate

    def at_three_loads(look: FirstLook) -> FirstEstimate:
        estimates.extend(estimate(replace(look, load=MachineLoad(average, 2))) for average in (0.5, 2.0, 5.0))
        return estimate(look)

    monkeypatch.setattr(FirstLook, "estimate", at_three_loads)
    planned(tmp_path, StringIO())
    alone, full, busy = estimates
    assert alone == full
    assert (busy.low, busy.seconds, busy.high) == pytest.approx((alone.low / 2.5, alone.seconds, alone.high * 2.5))


@pytest.mark.slow
def test_a_plan_begins_with_an_estimate_and_keeps_its_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = StringIO()
    plan = planned(tmp_path, log)
    said = log.getvalue()
    assert re.search(
        r"^first estimate, after \d+:\d\d of decoding: about .* until the plan\. Lossless rounds", said, re.M
    )
    assert said.index("first estimate") < said.index("estimate with the lengths of")
    assert plan.first is not None
    assert plan.first.low <= plan.first.seconds <= plan.first.high
    assert plan.first.preparation > 0
    again = planned(tmp_path, log := StringIO())
    assert again.first is None  # every text was kept, or decoded by the pilot
    assert again.pilot == plan.pilot
    assert "first estimate" not in log.getvalue()


@pytest.mark.slow
def test_a_look_ends_in_time_whatever_the_models_and_changes_no_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = planned(tmp_path / "whole", StringIO())
    monkeypatch.setattr(first_estimate, "_SECONDS", 0.0)
    cut = planned(tmp_path / "cut", StringIO())
    assert cut.first is not None
    assert cut.first.low < cut.first.high
    assert (cut.pilot, cut.prospects) == (whole.pilot, whole.prospects)
