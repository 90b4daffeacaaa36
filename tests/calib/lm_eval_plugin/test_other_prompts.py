"""What the model `fsd` says of prompts that are not the profile's: one line each, whatever the profile and the task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lm_eval
import pytest
from lm_eval.api.instance import Instance
from lm_eval.tasks import TaskManager

from fsd_calib import load_task
from fsd_calib.lm_eval_plugin.model import FsdLM, departure
from support.calibration.harness_tasks import write_task
from support.calibration.profiles import profile
from support.calibration.prompt_cases import CASES
from support.messages import usage_error

NO_FORM: dict[str, Any] = {"digest": "0" * 64, "form": None, "template": None, "max_new_tokens": 9}
THINKING, PLAIN = CASES[0], next(case for case in CASES if case.template is None)


def first(document: Any, prompt: str = "?") -> Instance:
    return Instance("generate_until", document, (prompt, {}), 0, ("one", 0, 1))


@pytest.mark.parametrize(
    ("task", "why"), [("arithmetic", "it is none of lm-eval's"), ("gone.yaml", "task file gone.yaml: cannot be read")]
)
def test_a_task_that_is_not_lm_evals_cannot_be_compared(task: str, why: str) -> None:
    line = departure(profile({"task": task, "prompt": NO_FORM}), None, [first({"question": "?"})])
    assert line is not None
    assert line.startswith(f"prompts cannot be compared with those of the profile of {task!r} ({why}")


def test_a_document_of_another_task_is_asked_otherwise(tmp_path: Path) -> None:
    task = load_task(f"lm-eval:{write_task(tmp_path)}")
    assert task.prompt is not None
    followed = profile({"task": task.name, "prompt": task.prompt.model_dump(mode="json")})
    line = departure(followed, None, [first({"asked": "?"})])
    assert line is not None
    assert line.startswith("prompts are not made as in the calibration")


def test_what_chat_templates_cannot_have_is_refused(tmp_path: Path) -> None:
    thinking, plain = (tmp_path / name for name in ("thinking", "plain"))
    for case, folder in ((THINKING, thinking), (PLAIN, plain)):
        folder.mkdir()
        case.profile(folder).save(folder / "profile.json")
    reserved: dict[str, Any] = {"chat_template_kwargs": {"tokenize": True}}
    message = usage_error(lambda: FsdLM(profile=str(thinking), device="cpu", **reserved))
    assert message.startswith("chat_template_kwargs has 'tokenize'")
    without = FsdLM(profile=str(plain), device="cpu")
    assert usage_error(lambda: without.apply_chat_template).endswith(
        "has no chat template; leave --apply_chat_template out"
    )


@pytest.mark.slow
def test_of_lossless_decoding_nothing_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = THINKING.harness_task(tmp_path)
    task = load_task(f"lm-eval:{path}", tokenizer=THINKING.tokenizer(tmp_path))
    THINKING.profile(tmp_path).model_copy(update={"task": task.name, "prompt": task.prompt}).sealed().save(
        tmp_path / "profile.json"
    )
    model = FsdLM(profile=str(tmp_path / "profile.json"), device="cpu", threshold=-1.0)
    caplog.clear()
    lm_eval.simple_evaluate(
        model=model, tasks=[str(path)], task_manager=TaskManager(include_defaults=False), bootstrap_iters=0, limit=1
    )
    assert not [record for record in caplog.records if record.name.startswith("fsd_calib")]
