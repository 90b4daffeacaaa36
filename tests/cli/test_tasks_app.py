"""`fsd-tasks` as a shell sees it, and tasks of lm-evaluation-harness in commands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fsd_calib.cli import calibrate as calibrate_app
from fsd_calib.cli import collect as collect_app
from fsd_calib.cli import tasks as tasks_app
from fsd_calib.cli.console import run
from fsd_calib.cli.options import folder_name, with_preset
from fsd_calib.options.common import Drawing
from fsd_calib.options.search_space import SearchSpace
from fsd_calib.tasks import TASKS
from fsd_data import pair_paths
from fsd_decoding.profile.threshold_profile import ThresholdProfile
from support.calibration.harness_tasks import write_task
from support.calibration.task_files import PROBLEMS, lines, write_file
from support.messages import error_line


def tasks(*arguments: str | Path) -> int:
    return run(tasks_app.app, tasks_app.NAME, [str(argument) for argument in arguments])


def calibrate(*arguments: str | Path) -> int:
    return run(calibrate_app.app, calibrate_app.NAME, [str(argument) for argument in arguments])


def test_list_has_every_task_with_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert tasks("list") == 0
    listed = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert set(TASKS) <= set(listed)
    assert all(about.endswith(".") for name, about in listed.items() if name in TASKS)


def test_names_that_do_not_tell_what_is_asked_are_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert tasks("list") == 0
    listed = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert "the target's own text" in listed["agreement"]
    assert "lm-eval:NAME, a generative task of" in listed["lm-eval"]
    assert calibrate("--help") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "agreement (your own prompts by --data, without keys: right is the target's own text), arithmetic" in said
    assert "lm-eval:NAME (a task of lm-evaluation-harness), math" in said


def test_show_has_the_first_prompt_and_what_ends_an_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_file(tmp_path, lines(PROBLEMS))
    assert tasks("show", "gsm8k", "--data", data) == 0
    shown = capsys.readouterr().out
    assert "problems: 40 (" in shown
    assert "an answer ends: after 512 tokens, at '\\nQuestion:'" in shown
    assert f"Question: {PROBLEMS[0].question}\nAnswer:\n\nits reference:\n{PROBLEMS[0].answer}" in shown
    assert tasks("show", "arithmetic", "--limit", "1", "--target", str(pair_paths()[0])) == 0
    assert "problems: 1 " in capsys.readouterr().out


def test_check_grades_references_and_altered_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tasks("check", "arithmetic", "--limit", "50") == 0
    assert (
        "50 of 50 references are graded right, and 100 of 100 altered and empty texts wrong" in capsys.readouterr().out
    )


def test_check_names_every_grade_that_is_not_as_it_should_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rows.jsonl").write_text(
        "".join(json.dumps({"question": f"{i}?", "answer": f"x{i}"}) + "\n" for i in range(3))
    )
    (tmp_path / "careless.py").write_text("def grade(reference, text):\n    return text != 'x1'\n")
    path = tmp_path / "my.yaml"
    path.write_text("data: rows.jsonl\ngrader: python\nfunction: careless.grade\n")
    assert tasks("check", path) == 3
    out, err = capsys.readouterr()
    assert "2 of 3 references are graded right, and 1 of 6 altered and empty texts wrong" in out
    assert err.count("an altered reference is graded right") == 5
    assert "('1?'): the reference is graded wrong: 'x1'" in err


def test_agreement_has_nothing_to_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_text("Hi\nBye\n")
    assert tasks("check", "agreement", "--data", tmp_path / "a.txt") == 0
    assert "2 problems, whose references are no answers that could be graded" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--task", "gsm8k", "--subjects", "law"], "--subjects is 'law', and task gsm8k has none"),
        (["--task", "gsm8k:law"], "task 'gsm8k:law': gsm8k takes nothing after a colon; write gsm8k"),
        (["--task", "gsm9k"], "unknown task 'gsm9k': the known tasks are agreement, arithmetic"),
        (["--task", "none.yaml"], "task file none.yaml: cannot be read"),
        (["--task", "gsm8k", "--preset", "x"], "--preset is 'x'; the presets are fsd-paper"),
        (["--task", "gsm8k", "--preset", "fsd-paper", "--top-k", "5"], "--preset fsd-paper and --top-k contradict"),
    ],
)
def test_bad_names_and_presets_are_refused(
    arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert calibrate(*arguments, "--min-acc", "0.9") == 2
    assert expected in capsys.readouterr().err
    assert run(collect_app.app, collect_app.NAME, arguments) == 2
    assert expected in capsys.readouterr().err


def test_a_preset_samples_as_the_published_evaluation() -> None:
    preset = Drawing(temperature=0.6, top_k=50, top_p=0.9)
    assert Drawing.over({}, with_preset({}, "fsd-paper")) == preset
    assert Drawing.over({"min_p": 0.1}, with_preset({}, "fsd-paper")) == preset  # of a file, which it replaces
    assert SearchSpace.over(preset.given, {"temperature": 0}) == SearchSpace()  # greedy, which truncates nothing
    assert with_preset({"top_k": 9}, None) == {"top_k": 9}


def test_folders_have_names_without_paths_and_colons() -> None:
    names = {"gsm8k": "gsm8k", "mmlu:law,art": "mmlu-law-art", "tasks/my.yaml": "my", "agreement:0.9": "agreement-0.9"}
    assert {name: folder_name(name) for name in names} == names


def test_traces_on_policy_of_agreement_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_text("Hi\nBye\n")
    target, draft = map(str, pair_paths())
    options = ["--task", "agreement", "--data", str(tmp_path / "a.txt"), "--target", target, "--draft", draft]
    code = run(
        collect_app.app, collect_app.NAME, [*options, "--rule", "fsd", "--threshold", "1", "--out", str(tmp_path / "o")]
    )
    assert code == 2
    assert "grades texts by the target's own, which traces on-policy lack; leave --rule out" in capsys.readouterr().err


def calibrate_pair(*arguments: str) -> int:
    target, draft = map(str, pair_paths())
    return run(calibrate_app.app, calibrate_app.NAME, ["--target", target, "--draft", draft, *arguments])


@pytest.mark.slow
def test_a_task_of_lm_eval_is_calibrated_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_task(tmp_path, count=20, train=12)
    soon = ["--device", "cpu", "--score", "js", "--draft-length", "5", "--min-acc", "0.5", "--confidence", "0.6",
            "--timing", "none", "--workers", "1", "--limit", "32", "--out", str(tmp_path / "out")]  # fmt: skip
    code = calibrate_pair("--task", f"lm-eval:{path}", *soon)
    found = ThresholdProfile.load(tmp_path / "out")
    assert code == (0 if found.met else 3)
    assert found.task == f"lm-eval:{path}"
    assert (found.data.tuning, found.data.certification) == (12, 20)
    assert "exact_match after strict-match" in found.data.source
    assert "T = " in capsys.readouterr().out


def test_a_task_that_compares_probabilities_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    choice = {"output_type": "multiple_choice", "doc_to_choice": ["1", "2"], "doc_to_target": 0, "metric_list": None}
    path = write_task(tmp_path, changes=choice)
    assert calibrate_pair("--task", f"lm-eval:{path}", "--min-acc", "0.9") == 2
    assert "output type is multiple_choice" in error_line(capsys)
