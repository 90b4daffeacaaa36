"""Timing a profile again: what changes in its file and beside it, and what is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from fsd_calib import ThresholdProfile, calibrate, retime
from fsd_calib.calibration.timing import Timed, Timer
from fsd_calib.cli import profile as profile_app
from fsd_calib.cli.console import run
from fsd_calib.report.run_folder import load_run
from fsd_common.errors import UsageError
from fsd_data import pair_paths
from fsd_decoding.profile.io import file_of
from support.calibration.fixed_speeds import fix_speeds
from support.calibration.profiles import UNCERTIFIED, profile

pytestmark = pytest.mark.slow

TIMED = {"digest", "outcome", "speed", "threshold", "lossy", "estimate", "certificate", "acceptance"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a certified profile, by the clock of a machine on which it is 1.5 times as fast as sd."""
    folder = tmp_path_factory.mktemp("retime")
    target, draft = pair_paths()
    with pytest.MonkeyPatch.context() as patch:
        fix_speeds(patch, 1.5)
        calibrate(
            "arithmetic", target, draft, min_acc=0.5, limit=120, trials=2, score="js", draft_length=4,
            out=folder / "out", cache=folder / "cache", state=folder / "state", workers=1,
        )  # fmt: skip
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made / "out", tmp_path / "out")
    return tmp_path / "out"


def ledger(made: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (made / "state").iterdir()}


def seen(folder: Path, **given: Any) -> tuple[ThresholdProfile, ThresholdProfile]:
    before = ThresholdProfile.load(folder)
    retime(folder, minutes=0.2, **given)
    return before, ThresholdProfile.load(folder)


def test_speeds_are_timed_anew_and_nothing_else_changes(made: Path, folder: Path) -> None:
    before_ledger = ledger(made)
    before, after = seen(folder)
    assert after.bound
    assert (round(before.speed.chosen, 9), before.speed.timed) == (150.0, 20)
    assert round(after.speed.chosen, 9) != 150.0
    assert after.speed.part == "certification"
    assert after.speed.forecast == before.speed.forecast
    assert after.model_dump(exclude=TIMED) == before.model_dump(exclude=TIMED)
    assert after.certificate.model_dump(exclude={"certified"}) == before.certificate.model_dump(exclude={"certified"})
    assert ledger(made) == before_ledger
    assert sorted(path.name for path in folder.iterdir()) == sorted(path.name for path in (made / "out").iterdir())


def test_the_outcome_follows_and_comes_back(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a calibration: a setting that is slower than sd is an estimate, until it is shown to be faster."""
    with pytest.MonkeyPatch.context() as patch:
        fix_speeds(patch, 0.8)
        before, slower = seen(folder)
    assert (slower.outcome, slower.threshold, slower.lossy) == ("certified-slower", None, False)
    assert slower.estimate is not None
    assert slower.estimate.threshold == before.threshold
    assert slower.estimate.retention == before.certificate.retention
    fix_speeds(monkeypatch, 1.7)
    _, again = seen(folder)
    assert (again.outcome, again.threshold, again.estimate) == ("certified-faster", before.threshold, None)
    assert again.certificate == before.certificate
    assert again.speed.over_lossless == pytest.approx(1.7)


def test_what_was_too_slow_for_a_requested_speed_comes_back(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that a busy machine made: speeds are 80 tokens/s, and then 170."""
    file = file_of(folder)
    made = ThresholdProfile.load(file)
    certificate, speed = made.certificate.model_dump(), made.speed.model_dump() | {"wanted": 120.0}
    asked = made.model_copy(
        update={
            "certificate": type(made.certificate)(**certificate | {"wanted": None}),
            "speed": type(made.speed)(**speed),
        }
    ).sealed()
    asked.save(file)
    with pytest.MonkeyPatch.context() as patch:
        fix_speeds(patch, 0.8)
        before, slow = seen(folder)
    assert (slow.outcome, slow.threshold, slow.certificate.certified, slow.met) == ("too-slow", None, True, False)
    fix_speeds(monkeypatch, 1.7)
    _, again = seen(folder)
    assert (again.outcome, again.threshold, again.estimate) == ("certified-faster", before.threshold, None)
    assert again.certificate == before.certificate


def test_the_record_and_the_page_agree_with_the_new_speeds(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fix_speeds(monkeypatch, 3.25)
    _, after = seen(folder)
    run_now = load_run(folder)
    assert run_now.record is not None
    assert run_now.record.profile == after.digest
    assert run_now.record.draft_alone is not None
    assert run_now.record.draft_alone.speed is None
    assert "3.25x" in (folder / "report.html").read_text()


def test_what_is_beside_another_profile_stays(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beside = {name: (folder / name).read_bytes() for name in ("profile.json", "run.json", "report.html", "run.yaml")}
    file = folder / "profile-0123ab.json"
    found = ThresholdProfile.load(folder)
    found.model_copy(update={"created": datetime.now(UTC)}).sealed().save(file)
    fix_speeds(monkeypatch, 3.25)
    retime(file, minutes=0.2)
    assert ThresholdProfile.load(file).speed.over_lossless == pytest.approx(3.25)
    assert {name: (folder / name).read_bytes() for name in beside} == beside


def test_it_is_a_command(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    fix_speeds(monkeypatch, 1.6)
    planned, fixed = list[float](), Timer.time

    def timed(timer: Timer, *given: Any) -> Timed:
        planned.append(timer.reported * timer.seconds)
        return fixed(timer, *given)

    monkeypatch.setattr(Timer, "time", timed)
    assert run(profile_app.app, profile_app.NAME, ["retime", str(folder), "--minutes", "1.5"]) == 0
    assert planned == [pytest.approx(90.0)]
    assert "1.60x" in capsys.readouterr().out
    assert run(profile_app.app, profile_app.NAME, ["retime", str(folder), "--timing", "none"]) == 2


def changed(folder: Path, **changes: Any) -> None:
    file = file_of(folder)
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def without_run_file(folder: Path) -> None:
    (folder / "run.yaml").unlink()


def of_other_problems(folder: Path) -> None:
    file = folder / "run.yaml"
    file.write_text(file.read_text().replace("limit: 120", "limit: 119"))


def of_other_models(folder: Path) -> None:
    file = folder / "run.yaml"
    target, draft = map(str, pair_paths())
    file.write_text(file.read_text().replace(draft, target))


def on_another_device(folder: Path) -> None:
    found = ThresholdProfile.load(folder)
    found.model_copy(update={"device": "cuda:0"}).sealed().save(file_of(folder))


def not_certified(folder: Path) -> None:
    profile(UNCERTIFIED).save(file_of(folder))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda folder: changed(folder, threshold=0.9), "was changed"),
        (without_run_file, "there is no run.yaml beside"),
        (of_other_problems, "the problems of task 'arithmetic' are not those"),
        (of_other_models, "is not the one that the setting was found with"),
        (on_another_device, "the device is cpu, and the profile's certificate is for cuda"),
        (not_certified, "has the outcome not-certified, and no setting that speed decides on"),
    ],
)
def test_what_is_not_what_was_certified_is_refused(folder: Path, change: Callable[[Path], None], said: str) -> None:
    change(folder)
    before = file_of(folder).read_bytes()
    with pytest.raises(UsageError, match=said) as caught:
        retime(folder)
    assert "\n" not in str(caught.value)
    assert file_of(folder).read_bytes() == before


@pytest.mark.parametrize("minutes", [0.0, -1.0, float("inf"), float("nan")])
def test_minutes_are_a_time(folder: Path, minutes: float) -> None:
    with pytest.raises(UsageError, match="minutes is"):
        retime(folder, minutes=minutes)
