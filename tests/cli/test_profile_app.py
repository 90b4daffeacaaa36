"""`fsd-profile` on files: what it prints, its exit codes, and what it calls a difference."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsd_calib.cli import profile as profile_app
from fsd_calib.cli.console import run
from fsd_calib.report.diff import differences
from support.calibration.profiles import FRONT, UNCERTIFIED, profile, values
from support.messages import error_line


def app(*arguments: str | Path) -> int:
    return run(profile_app.app, profile_app.NAME, [str(argument) for argument in arguments])


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    changes = UNCERTIFIED | {"target.fingerprint": "x" * 64, "speed.lossless": 50.0, "curve": FRONT["curve"]}
    profile().save(tmp_path / "a.json")
    profile(changes).save(tmp_path / "[b].json")
    return tmp_path / "a.json", tmp_path / "[b].json"


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def test_show_prints_report_curve_and_sheets(files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert app("show", files[0]) == 0
    shown = capsys.readouterr().out
    for piece in (
        *("Certified at 95% confidence", "the curve on the tuning part", "the curve on the certification part"),
        *("300 for tuning, 700 for certification", "both right 650, lost 3", "tested at level 0.045"),
        *("one draft step          1 ms", "88.0% ± 7.0% per text", "decoded 712 (0.04 M tokens)", "reused 9,000"),
    ):
        assert piece in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_validate_names_every_bad_file_once(
    files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert app("validate", *files) == 0
    assert capsys.readouterr().out.splitlines() == [f"{path}: valid" for path in files]
    bad = tmp_path / "bad.json"
    bad.write_text(files[0].read_text().replace('"lossy": true', '"lossy": false'))
    assert app("validate", files[0], bad, tmp_path / "none") == 2
    captured = capsys.readouterr()
    assert captured.out == f"{files[0]}: valid\n"
    assert [line.partition("profile '")[0] for line in captured.err.splitlines()] == ["fsd-profile: error: "] * 2
    assert "bad.json' is not valid: Value error, lossy is False" in captured.err


@pytest.fixture
def edited(files: tuple[Path, Path], tmp_path: Path) -> Path:
    """A certified profile into which another threshold was typed."""
    path = tmp_path / "edited.json"
    path.write_text(files[0].read_text().replace('"threshold": 0.0625,\n  "policy"', '"threshold": 0.9,\n  "policy"'))
    assert path.read_text() != files[0].read_text()
    return path


def test_show_says_first_that_a_file_was_edited(edited: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert app("show", edited) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("edited: not certified")
    assert "edited: not certified. The profile says: Certified at 95% confidence" in " ".join(shown.split())
    assert "yes, says the profile, but it was edited" in " ".join(shown.split())


def test_validate_fails_what_was_edited(edited: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert app("validate", edited) == 2
    captured = capsys.readouterr()
    assert (captured.out, len(captured.err.splitlines())) == ("", 1)
    assert "edited.json' was changed after the calibration that wrote it, so nothing certifies" in captured.err


@pytest.mark.parametrize("command", ["show", "validate", "vllm"])
def test_a_file_without_a_digest_is_refused_in_one_line(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "profile.json").write_text(profile().model_copy(update={"digest": None}).model_dump_json())
    assert app(command, tmp_path / "profile.json") == 2
    assert "profile.json' has no digest, so the file was changed" in error_line(capsys)


def test_diff_compares_what_was_edited_and_says_so(
    files: tuple[Path, Path], edited: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert app("diff", files[0], edited) == 1
    captured = capsys.readouterr()
    assert ["threshold", "0.0625", "0.9"] in [line.split() for line in captured.out.splitlines()]
    assert captured.err == (
        f"fsd-profile: warning: {edited} was changed after the calibration that wrote it, so it is not certified\n"
    )


def test_every_command_takes_the_folder_of_a_profile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        profile().save(tmp_path / name / "profile.json")
    assert app("show", tmp_path / "a") == 0
    assert "Certified at 95% confidence" in capsys.readouterr().out
    assert app("validate", tmp_path / "a", tmp_path / "b") == 0
    assert app("diff", tmp_path / "a", tmp_path / "b") == 0
    capsys.readouterr()
    (tmp_path / "empty").mkdir()
    assert app("show", tmp_path / "empty") == 2
    assert "empty/profile.json' cannot be read: No such file" in capsys.readouterr().err


def test_diff_shows_what_differs_in_its_section(files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert app("diff", *files) == 1
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    for line in (
        ["outcome", "certified-faster", "not-certified"],
        ["threshold", "0.0625", "–"],
        ["certificate.wanted", "0.98", "0.995"],
        ["speed.lossless", "51", "50"],
        ["counts.both_right", "650", "–"],
    ):
        assert line in lines
    headings = [" ".join(line) for line in lines if line and line[0] in ("settings", "models", "certificate")]
    assert headings == ["settings", "models", "certificate"]
    assert max(sum(map(len, line)) + len(line) for line in lines) <= 80


def test_equal_profiles_do_not_differ(
    files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile({"created": "2027-01-02T03:04:05Z", "effort": None}).save(tmp_path / "again.json")
    assert app("diff", files[0], tmp_path / "again.json") == 0
    assert capsys.readouterr().out == "no difference\n"


def test_diff_of_what_is_no_profile_is_bad_input(files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert app("diff", files[0], "nowhere.json") == 2
    assert "cannot be read" in capsys.readouterr().err


def test_values_that_look_alike_are_written_out() -> None:
    (found,) = differences(profile({"speed.lossless": 51.0}), profile({"speed.lossless": 51.0000001}))
    assert (found.section, found.name, found.first, found.second) == (
        "certificate",
        "speed.lossless",
        "51.0",
        "51.0000001",
    )
    (text,) = differences(profile({"tokenizer": "a" * 40}), profile({"tokenizer": "a" * 39 + "b"}))
    assert text.first != text.second


def leaves(value: Any, path: str = "") -> list[str]:
    if isinstance(value, dict):
        return [leaf for key, inner in value.items() for leaf in leaves(inner, f"{path}.{key}" if path else key)]
    return [path] if isinstance(value, float) and value and "curve" not in path else []


@given(st.sampled_from(leaves(values())))
def test_no_number_can_change_unseen(path: str) -> None:
    value: Any = values()
    for step in path.split("."):
        value = value[step]
    changed = profile({path: value * (1 - 1e-8)})
    assert [found.name for found in differences(profile(), changed)] == [path]


def loaded_by(*arguments: str) -> tuple[str, set[str]]:
    """Returns what the command prints, and the modules that it imports."""
    code = f"import sys; from fsd_calib.cli.profile import main; sys.argv = {['x', *arguments]!r}\ntry: main()\n"
    code += "finally: print('LOADED', *sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=os.environ)
    assert ran.returncode == 0, ran.stderr
    shown, loaded = ran.stdout.split("LOADED")
    return shown, set(loaded.split())


def test_help_answers_without_heavy_imports() -> None:
    shown, loaded = loaded_by("--help")
    assert all(command in shown for command in ("show", "validate", "diff", "Exit codes"))
    assert {"torch", "transformers", "optuna", "pydantic"}.isdisjoint(loaded)


@pytest.mark.thinned(every=3)
@pytest.mark.parametrize("command", ["show", "validate", "diff"])
def test_profiles_are_shown_without_what_decodes(command: str, tmp_path: Path) -> None:
    profile().save(tmp_path / "profile.json")
    _, loaded = loaded_by(command, *[str(tmp_path / "profile.json")] * (2 if command == "diff" else 1))
    assert {"torch", "transformers", "optuna"}.isdisjoint(loaded)


def test_a_wrong_call_leads_to_the_help_of_the_command_in_question(capsys: pytest.CaptureFixture[str]) -> None:
    assert app("diff", "a.json") == 2
    assert error_line(capsys) == "fsd-profile: error: Missing argument 'B' (see fsd-profile diff --help)"


def test_an_empty_path_is_not_the_current_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert app("show", "") == 2
    assert error_line(capsys).startswith("fsd-profile: error: PATH is empty, perhaps from a variable that is not set")
