"""A prompt is the same, byte for byte, from calibration, `fsd-generate`, Python and lm-eval; tests/vllm has servers."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import lm_eval
import pytest
from lm_eval.tasks import TaskManager

from fsd_calib import ThresholdProfile, load_task
from fsd_calib.cli import calibrate as calibrate_app
from fsd_calib.cli import generate as generate_app
from fsd_calib.cli.console import run
from fsd_calib.lm_eval_plugin.model import FsdLM
from support.calibration.harness_tasks import write_task
from support.calibration.profiles import profile
from support.calibration.prompt_cases import CASES, DRAFT, PromptCase
from support.calibration.task_files import QWEN
from support.messages import usage_error

pytestmark = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def saved(case: PromptCase, folder: Path) -> Path:
    """A profile in a folder of its own, without the file that described its task."""
    path = folder / "elsewhere" / "profile.json"
    path.parent.mkdir()
    case.profile(folder).save(path)
    (folder / "asked.yaml").unlink(missing_ok=True)
    return path


@pytest.mark.thinned(every=7)
def test_a_command_and_a_calibration_ask_alike(
    case: PromptCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    problem = case.task(tmp_path).problems[0]
    options = ["--task", case.task_name(tmp_path), "--limit", "3", "--target", str(case.target(tmp_path))]
    for name, value in case.options.items():
        options += [f"--{name.replace('_', '-')}", json.dumps(value)]
    assert run(calibrate_app.app, calibrate_app.NAME, [*options, "--draft", str(DRAFT), "--show-prompt"]) == 0
    assert capsys.readouterr().out == problem.prompt + "\n"
    path = saved(case, tmp_path)
    monkeypatch.chdir(path.parent)
    capsys.readouterr()
    certifying = ["--certify", str(path), "--limit", "3", "--show-prompt"]
    assert run(calibrate_app.app, calibrate_app.NAME, certifying) == 0
    assert capsys.readouterr().out == problem.prompt + "\n"
    assert run(calibrate_app.app, calibrate_app.NAME, [*certifying, "--max-new-tokens", "7"]) == 2
    assert "max_new_tokens is 7, and the profile's prompts were made with" in capsys.readouterr().err
    assert run(generate_app.app, generate_app.NAME, ["--profile", str(path), "--json", problem.question]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["result"]["texts"][0]["rendered"] == problem.prompt
    assert "does not apply" not in shown.err


@pytest.mark.thinned(every=7)
def test_python_asks_alike(case: PromptCase, tmp_path: Path) -> None:
    task, tokenizer = case.task(tmp_path), case.tokenizer(tmp_path)
    followed = ThresholdProfile.load(saved(case, tmp_path))
    made = followed.prompts(tokenizer)
    assert [made.prompt(problem.question) for problem in task.problems] == [p.prompt for p in task.problems]
    assert (made.stop, made.max_new_tokens) == (task.stop, task.max_new_tokens)
    assert [made.asks(task.problems[0].prompt), made.asks("x" + task.problems[0].prompt)] == [True, False]
    again = load_task(followed, limit=3, tokenizer=tokenizer)
    assert (again.problems, again.prompt, again.graded) == (task.problems, task.prompt, task.graded)
    assert followed.prompt_doubt(tokenizer) is None
    tokenizer.chat_template = QWEN + "{# another #}"
    assert (followed.prompt_doubt(tokenizer) is None) == (case.template is None)
    if case.template is None:
        assert followed.prompts(tokenizer).prompt(task.problems[0].question) == task.problems[0].prompt
    else:
        assert "load the tokenizer that the calibration had" in usage_error(lambda: followed.prompts(tokenizer))


@pytest.mark.slow
def test_lm_eval_asks_alike(case: PromptCase, tmp_path: Path) -> None:
    path, problem = case.harness_task(tmp_path), case.task(tmp_path).problems[0]
    model = FsdLM(profile=str(saved(case, tmp_path)), device="cpu")
    chats = case.template is not None

    def asked(**options: Any) -> str:
        own, usual = TaskManager(include_defaults=False), {"apply_chat_template": chats, "fewshot_as_multiturn": chats}
        found = lm_eval.simple_evaluate(
            model=model, tasks=[str(path)], task_manager=own, bootstrap_iters=0, limit=1, **{**usual, **options}
        )
        return str(found["samples"]["local_arithmetic"][0]["arguments"][0][0])

    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert asked() == problem.prompt
    with pytest.warns(UserWarning, match=r"^max_new_tokens is 7 instead of \d+: the certificate"):
        asked(gen_kwargs={"max_gen_toks": 7})
    write_task(tmp_path, changes={**json.loads(path.read_text()), "description": "Guess."})
    with pytest.warns(UserWarning, match="^prompts are not made as in the calibration: the certificate"):
        asked()


@pytest.mark.slow
def test_a_profile_of_lm_eval_s_task_is_asked_alike_there(
    case: PromptCase, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, chats = case.harness_task(tmp_path), case.template is not None
    kwargs = {name: value for name, value in case.options.items() if name == "chat_template_kwargs"}
    task = load_task(f"lm-eval:{path}", tokenizer=case.tokenizer(tmp_path), **kwargs)
    assert task.prompt is not None
    case.profile(tmp_path).model_copy(update={"task": task.name, "prompt": task.prompt}).sealed().save(
        tmp_path / "profile.json"
    )
    model = FsdLM(profile=str(tmp_path / "profile.json"), device="cpu")

    def asked(**options: Any) -> list[str]:
        caplog.clear()
        own, usual = TaskManager(include_defaults=False), {"apply_chat_template": chats, "fewshot_as_multiturn": chats}
        lm_eval.simple_evaluate(
            model=model, tasks=[str(path)], task_manager=own, bootstrap_iters=0, limit=1, **{**usual, **options}
        )
        return [each.getMessage() for each in caplog.records if each.name.startswith("fsd_calib")]

    assert asked() == []
    (said,) = asked(system_instruction="Guess.")
    assert said.startswith("model fsd: prompts are not made as in the calibration: the profile of 'lm-eval:")


@pytest.mark.slow
def test_a_task_of_lm_eval_asks_alike_in_a_calibration(case: PromptCase, tmp_path: Path) -> None:
    task = load_task(
        f"lm-eval:{case.harness_task(tmp_path)}", tokenizer=case.tokenizer(tmp_path),
        **{name: value for name, value in case.options.items() if name == "chat_template_kwargs"},
    )  # fmt: skip
    assert task.problems[0].prompt == case.task(tmp_path).problems[0].prompt
    assert task.prompt is not None
    changes = {"task": task.name, "prompt": task.prompt.model_dump(mode="json")}
    followed, tokenizer = profile(changes), case.tokenizer(tmp_path)
    assert load_task(followed, tokenizer=tokenizer).problems == task.problems
    tokenizer.chat_template = QWEN + "{# another #}"
    if case.template is None:
        assert load_task(followed, tokenizer=tokenizer).problems == task.problems
    else:
        message = usage_error(lambda: load_task(followed, tokenizer=tokenizer))
        assert "load the tokenizer that the calibration had" in message
    assert "made of whole documents" in usage_error(lambda: followed.prompts(case.tokenizer(tmp_path)))
