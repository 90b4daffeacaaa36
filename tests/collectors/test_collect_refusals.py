"""Settings, tasks and models that cannot be collected from are refused before the work begins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fsd_calib import NGram
from fsd_common.errors import NumericalError, UsageError
from support.models.tiny_pair import related
from support.models.tiny_task import TinyProblem, TinyTask, tiny_task
from support.traces.collecting import Frame, collect


@pytest.fixture(scope="module")
def pair() -> tuple[Any, Any]:
    return related(seed=1, spread=0.05)


def test_a_draft_without_a_model(pair: tuple[Any, Any], tmp_path: Path) -> None:
    rows: Frame = collect(tmp_path / "on", (pair[0], NGram()), tiny_task(5), rule="sd", temperature=1.0).to_pandas()
    assert rows.draft_entropy.gt(0).all()
    with pytest.raises(UsageError, match=r"NGram\(\) is not a model, so traces along the target cannot be collected"):
        collect(tmp_path / "along", (pair[0], NGram()), tiny_task(5))


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"threshold": 0.1}, "threshold is 0.1, but it applies to on-policy traces only; give a rule too"),
        ({"score": "tv"}, "score is tv, but it applies to on-policy traces"),
        ({"draft_length": 4}, "draft_length is 4, but it applies to on-policy traces"),
        ({"within_support": True}, "within_support is True, but it applies to on-policy traces"),
        ({"rule": "target"}, "rule 'target' drafts nothing; leave the rule out"),
        ({"rule": "fsd"}, "rule 'fsd' needs a threshold; give one"),
        ({"rule": "sd", "threshold": 0.1}, "threshold is 0.1, but rule 'sd' has none; leave it out"),
        ({"rule": "guess"}, "unknown rule 'guess'"),
        ({"rule": "fsd", "threshold": float("nan")}, "threshold is NaN"),
        ({"rule": "sd", "draft_length": 0}, "draft_length is 0"),
        ({"scores": ["js", "x"]}, "unknown score 'x'"),
        ({"scores": ["js", "tv", "js"]}, "scores are js, tv, js; name each of them once"),
        ({"on": "cooked"}, "not on 'cooked'"),
        ({"hidden": 99}, "hidden is 99, but the draft's state has 32 components"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"top_k": 3}, "top_k is 3 at temperature 0"),
    ],
)
def test_invalid_settings_are_refused(
    settings: dict[str, Any], complaint: str, pair: tuple[Any, Any], tmp_path: Path
) -> None:
    with pytest.raises(UsageError) as caught:
        collect(tmp_path / "out", pair, tiny_task(3), **settings)
    assert complaint in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_task_without_problems_is_refused(pair: tuple[Any, Any], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="task 'tiny' has no problems"):
        collect(tmp_path / "out", pair, TinyTask(()))


def test_an_id_of_two_problems_is_refused(pair: tuple[Any, Any], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="id 1 names both 'w3' and 'w4'"):
        collect(tmp_path, pair, TinyTask((TinyProblem(1, "w3"), TinyProblem(1, "w4"))))


def test_a_prompt_that_is_too_long_is_refused_before_decoding(pair: tuple[Any, Any], tmp_path: Path) -> None:
    task = tiny_task(3)
    long = TinyTask((*task.problems, type(task.problems[0])(7, "w3 " * 200)))
    with pytest.raises(UsageError, match="prompt 3 has 200 tokens, the target's context is 128"):
        collect(tmp_path / "out", pair, long)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("broken", [0, 1])
def test_nan_logits_stop_the_run(broken: int, tmp_path: Path) -> None:
    models = list(related(seed=1, spread=0.05))
    with torch.no_grad():
        models[broken].get_input_embeddings().weight[35] = torch.nan
    with pytest.raises(NumericalError, match="NaN or \\+inf"):
        collect(tmp_path, (models[0], models[1]), tiny_task(8))
