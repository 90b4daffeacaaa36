"""A null character in a path, or no character, wherever a path is taken: one line that names it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fsd_calib import RunConfig, SpeculativeDecoder, ThresholdProfile, calibrate, collect_traces, load_traces
from fsd_calib.cli import calibrate as calibrate_app
from fsd_calib.cli import collect, generate, profile, traces, train_predictor
from fsd_calib.cli.console import run
from fsd_calib.search.study_storage import open_journal
from fsd_calib.tasks import load_task
from fsd_predictors.predictor import Predictor
from support.calibration.profiles import profile as made_up
from support.messages import error_line, usage_error
from support.models.tiny_calibration import task
from support.models.tiny_models import llama, word_tokenizer
from support.models.tiny_task import tiny_task

BAD = "a\0b"
CASES: dict[str, Callable[[], object]] = {
    "RunConfig data": lambda: RunConfig(data=BAD),
    "out": lambda: RunConfig(out=BAD),
    "cache": lambda: RunConfig(cache=BAD),
    "state": lambda: RunConfig(state=BAD),
    "storage": lambda: RunConfig(storage=BAD),
    "data": lambda: load_task("gsm8k", data=Path(BAD)),
    "load_traces": lambda: load_traces(BAD),
    "collect_traces": lambda: collect_traces(
        tiny_task(2), target=llama(seed=0), draft=llama(seed=0), tokenizer=word_tokenizer(), out=BAD
    ),
    "profile": lambda: ThresholdProfile.load(BAD),
    "save": lambda: made_up().save(Path(BAD)),
    "predictor": lambda: Predictor.load(BAD),
    "target": lambda: SpeculativeDecoder.from_pretrained(BAD, BAD),
    "calibrate's predictor": lambda: calibrate(
        task(200), llama(seed=0), llama(seed=0), tokenizer=word_tokenizer(), min_acc=0.5, predictor=BAD
    ),
    "journal": lambda: open_journal(Path(BAD)),
}


@pytest.mark.parametrize("name", CASES)
def test_a_null_character_is_one_line(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FSD_CALIB_CACHE", str(tmp_path))
    monkeypatch.setenv("FSD_CALIB_STATE", str(tmp_path))
    usage_error(CASES[name])


@pytest.mark.parametrize(
    ("app", "arguments"),
    [
        *((calibrate_app, ["--task", "arithmetic", "--min-acc", "0.9", option, BAD])
          for option in ("--out", "--data", "--cache", "--state", "--storage", "--predictor", "--target", "--draft")),
        *((collect, ["--task", "arithmetic", option, BAD]) for option in ("--out", "--data")),
        (train_predictor, ["--traces", BAD, "--out", "x"]), (train_predictor, ["--traces", "x", "--out", BAD]),
        (generate, ["--profile", BAD, "text"]), (profile, ["show", BAD]), (profile, ["validate", BAD]),
        (profile, ["diff", BAD, BAD]), (traces, ["verify", BAD]), (traces, ["describe", BAD]),
        (traces, ["plot", "x", "--out", BAD]),
    ],
)  # fmt: skip
def test_every_command_refuses_it(app: object, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(app.app, app.NAME, arguments) == 2  # type: ignore[attr-defined]
    line = error_line(capsys)
    assert "null character" in line
    assert r"'a\x00b'" in line
    assert "\0" not in line


@pytest.mark.parametrize("name", ["data", "out", "cache", "state", "storage"])
def test_an_empty_path_is_no_current_folder(name: str) -> None:
    assert usage_error(lambda: RunConfig(**{name: ""})).startswith(f"{name} is empty")  # type: ignore[arg-type]


def test_an_empty_model_is_no_model() -> None:
    assert usage_error(lambda: SpeculativeDecoder.from_pretrained("x", "")).startswith("draft is empty")


@pytest.mark.parametrize("option", ["--out", "--data", "--cache", "--state", "--storage", "--target", "--draft"])
@pytest.mark.parametrize("written", [("{}", ""), ("{}=",)])
def test_an_option_of_a_variable_that_is_not_set_is_refused(
    option: str, written: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    given = [part.format(option) for part in written]
    assert run(calibrate_app.app, calibrate_app.NAME, ["--task", "arithmetic", "--min-acc", "0.9", *given]) == 2
    assert f"{option} is empty" in error_line(capsys)
    assert list(tmp_path.iterdir()) == []
