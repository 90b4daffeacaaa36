"""The numerical floor: noted once, used by plans, and finer goals are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.stats import beta

from fsd_calib import calibrate
from fsd_calib.calibration.api import Calibration
from fsd_calib.calibration.baseline import check_numerical_floor, note_numerical_churn
from fsd_calib.certification.bounds import Floor
from fsd_calib.options.goal import Goal
from fsd_calib.options.run_config import RunConfig
from fsd_calib.options.search_space import SearchSpace
from fsd_calib.report.plan import pilot_summary
from fsd_common.errors import UsageError
from fsd_common.progress.base import Silent
from fsd_decoding.profile.parts import NumericalChurn
from support.models import tiny_calibration
from support.models.tiny_models import VOCABULARY, word_tokenizer
from support.models.tiny_pair import related


class Notes(Silent):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, line: str) -> None:
        self.lines.append(line)


def said(goal: Goal, flipped: int, problems: int, accuracy: float = 0.9) -> list[str]:
    churn = NumericalChurn(problems=problems, texts_changed=flipped + 1, outcomes_flipped=flipped)
    check_numerical_floor(goal, accuracy, churn, notes := Notes())
    return notes.lines


def coarse_pair(size: float) -> tuple[Any, Any]:
    """A pair whose target rounds differently when it reads several tokens at once, as matrix products in bf16 do."""
    target, draft = related(seed=1, spread=0.05)
    error = size * torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    target.lm_head.register_forward_hook(lambda module, read, logits: logits + error * (logits.shape[1] > 1))
    return target, draft


def test_the_floor_is_noted_in_one_line() -> None:
    note_numerical_churn(NumericalChurn(problems=64, texts_changed=1, outcomes_flipped=0), notes := Notes())
    assert notes.lines == [
        "rounding alone (the lossless rule compared with the target) flipped 0 of 64 outcomes, so it flips at most "
        "4.6% of outcomes (95% confidence); it changed 1 texts"
    ]


def test_one_unlucky_flip_refuses_no_usual_goal() -> None:
    (warned,) = said(Goal(min_acc=0.99), 1, 64)
    assert "leaves room for 0.9% of the outcomes" in warned
    assert "1.6% here" in warned
    assert said(Goal(min_acc=0.95), 1, 64) == []


def test_a_goal_that_is_surely_finer_than_the_floor_is_refused_with_the_figure() -> None:
    """Of 9 in 256 the lower end is .01846 (Clopper and Pearson, one-sided 95 %); .98 leaves .018."""
    assert Floor.of(9, 256).least == pytest.approx(beta.ppf(0.05, 9, 248))
    with pytest.raises(UsageError, match=r"9 of 256, at least 1\.8% \(95% confidence\)") as refused:
        said(Goal(min_acc=0.98), 9, 256)
    assert "\n" not in str(refused.value)
    for way_out in ("dtype float32", "lower min_acc", "or explore"):
        assert way_out in str(refused.value)
    assert len(said(Goal(min_acc=0.975), 9, 256)) == 1  # .0225 is within what the floor may be
    assert said(Goal(min_acc=0.95), 9, 256) == []


def test_room_is_a_share_of_problems_so_it_shrinks_with_the_targets_accuracy() -> None:
    said(Goal(min_acc=0.95), 9, 256, accuracy=0.9)
    with pytest.raises(UsageError):
        said(Goal(min_acc=0.95), 9, 256, accuracy=0.3)


def test_more_than_the_target_keeps_must_stand_out_from_rounding_too() -> None:
    said(Goal(min_acc=1.05), 9, 256)
    with pytest.raises(UsageError):
        said(Goal(min_acc=1.01), 9, 256)


@pytest.mark.parametrize("goal", [Goal(min_acc=0.89, acc="absolute"), Goal(min_acc=0.999, explore=True)])
def test_what_is_compared_with_nothing_or_claims_nothing_is_not_refused(goal: Goal) -> None:
    said(goal, 60, 256)


@pytest.mark.slow
def test_a_calibration_refuses_before_it_spends_an_attempt(tmp_path: Path) -> None:
    def calibration(min_acc: float, size: float) -> Calibration:
        target, draft = coarse_pair(size)
        return Calibration(
            tiny_calibration.task(240), target, draft, Goal(min_acc=min_acc),
            SearchSpace(score="js", draft_length=(2, 4)), RunConfig(cache=tmp_path),
            word_tokenizer(),
        )  # fmt: skip

    with pytest.raises(UsageError, match="rounding alone flips more than that"):
        calibration(0.97, size=0.5).plan()
    plan = calibration(0.6, size=0.5).plan()
    assert plan.pilot.floor is not None
    assert plan.pilot.cautious_churn >= plan.pilot.floor.share > 0
    assert plan.pilot.floor.bound_in_words in pilot_summary(plan)


@pytest.mark.slow
def test_the_goal_is_judged_again_on_more_problems(tmp_path: Path) -> None:
    """The count on the first 64 leaves the goal possible, the one on 256 does not."""
    target, draft = coarse_pair(0.15)
    notes = Notes()
    with pytest.raises(UsageError, match="of 256"):
        calibrate(
            tiny_calibration.task(1400), target=target, draft=draft, tokenizer=word_tokenizer(), cache=tmp_path,
            min_acc=0.96, score="js", draft_length=(2, 4), progress=notes,
        )  # fmt: skip
    assert sum("flipped" in line for line in notes.lines) == 1
