"""Which drafts `--draft`, `--head` and `--drafter` ask for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import typer

from fsd_calib import Eagle, NGram
from fsd_calib.calibration.run_file import read_run_file
from fsd_calib.cli.calibrate import app
from fsd_calib.cli.drafters import Drafters
from fsd_calib.cli.request import Request
from fsd_common.errors import UsageError
from fsd_data import head_path, pair_paths
from support.messages import usage_error

SMALL, HEAD = str(pair_paths()[1]), Eagle(str(head_path()))


@pytest.mark.parametrize(
    ("models", "heads", "named", "drafts"),
    [
        ([], [], [], [SMALL]),
        (["a", "a"], [], [], ["a"]),
        ([], ["h"], [], [Eagle("h")]),
        (["a"], ["h", "i"], [], ["a", Eagle("h"), Eagle("i")]),
        ([], [], ["ngram"], [NGram()]),
        ([], [], ["ngram", "model"], [SMALL, NGram()]),
        ([], [], ["eagle"], [HEAD]),
        ([], [], ["auto"], [SMALL, HEAD, NGram()]),
        (["a"], ["h"], ["auto"], ["a", Eagle("h"), NGram()]),
    ],
)
def test_drafts_of_the_bundled_target(
    models: Sequence[str], heads: Sequence[str], named: Sequence[str], drafts: list[Any]
) -> None:
    target = "mine" if models else None
    assert Drafters(models, heads, named).with_target("arithmetic", target)[1] == drafts


def test_the_bundled_head_is_for_its_target_alone() -> None:
    assert Drafters(["a"], [], ["auto"]).with_target("arithmetic", "mine") == ("mine", ["a", NGram()])
    message = usage_error(lambda: Drafters([], [], ["eagle"]).with_target("arithmetic", "mine"))
    assert message == "--drafter eagle needs a head of mine; give --head, or train one with fsd-train-eagle"


@pytest.mark.parametrize(
    ("target", "models", "said"),
    [
        ("mine", [], "--target is 'mine', and --draft is missing; give both, or neither for the default pair of task "),
        (None, ["small"], "--draft is 'small', and --target is missing; give both, or neither for the default pair"),
    ],
)
def test_a_model_without_the_other_is_refused_by_the_default_pairs_name(
    target: str | None, models: list[str], said: str
) -> None:
    message = usage_error(lambda: Drafters(models, [], []).with_target("gsm8k", target))
    assert message.startswith(said)
    assert message.endswith("task gsm8k, Qwen/Qwen2.5-7B-Instruct with Qwen/Qwen2.5-0.5B-Instruct")


def test_a_target_without_a_draft_model_does_for_other_drafts() -> None:
    assert Drafters([], ["h"], []).with_target("gsm8k", "mine") == ("mine", [Eagle("h")])
    assert Drafters([], [], ["ngram"]).with_target("gsm8k", "mine") == ("mine", [NGram()])


@pytest.mark.parametrize(
    ("models", "heads", "named", "message"),
    [
        ([], [], ["tree"], "--drafter is 'tree'; it must be one of model, eagle, ngram, auto"),
        ([], [], ["auto", "model"], "--drafter is 'auto,model'; auto is all of them, give it alone"),
        (["a"], [], ["eagle"], "--draft and --drafter eagle are both given, which leaves model out"),
        ([], ["h"], ["model", "ngram"], "--head and --drafter model,ngram are both given, which leaves eagle out"),
    ],
)
def test_contradictions_are_refused(
    models: Sequence[str], heads: Sequence[str], named: Sequence[str], message: str
) -> None:
    assert usage_error(lambda: Drafters(models, heads, named)).startswith(message)


@pytest.mark.parametrize(
    ("asked", "drafts"),
    [
        ([], ["m", Eagle("h")]),
        (["--drafter", "ngram"], [NGram()]),
        (["--drafter", "model"], ["m"]),
        (["--drafter", "auto"], ["m", Eagle("h"), NGram()]),
        (["--draft", "d"], ["d"]),
        (["--head", "i"], [Eagle("i")]),
    ],
    ids=str,
)
def test_drafts_that_are_given_go_in_place_of_a_files(
    asked: list[str], drafts: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run.yaml").write_text("{task: gsm8k, target: t, draft: m, head: h, goal: {min_acc: 0.9}}")
    seen: list[Any] = []

    def kept(asked: Request, progress: Any) -> Any:
        seen.append(asked.target_and_drafts)
        raise UsageError("seen")

    monkeypatch.setattr("fsd_calib.cli.in_turn.calibration_of", kept)
    arguments = ["--config", str(tmp_path), "--out", str(tmp_path / "out"), *asked]
    assert usage_error(lambda: typer.main.get_command(app).main(arguments, standalone_mode=False)) == "seen"
    assert seen == [("t", drafts)]


@pytest.mark.parametrize("other", [["--predictor", "auto"], ["--threshold-policy", "entropy"]])
def test_auto_goes_with_nothing_that_is_of_chains_of_models(other: list[str]) -> None:
    command = ["--task", "arithmetic", "--min-acc", "0.9", "--drafter", "auto", *other]
    message = usage_error(lambda: typer.main.get_command(app).main(command, standalone_mode=False))
    assert message.startswith(f"--drafter auto and {other[0]} are both given")


def test_a_file_that_certifies_names_no_drafter(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("{certify: profile.json, drafter: ngram}")
    assert "certify takes the profile's own draft" in usage_error(lambda: read_run_file(tmp_path))
