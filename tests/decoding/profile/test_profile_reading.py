"""Strict reading of profile files: types, JSON, and what kind of file it is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fsd_common.errors import UsageError
from fsd_decoding.profile.threshold_profile import ThresholdProfile
from support.calibration.profiles import profile, values


def refusal(path: Path) -> str:
    """The one line that refuses a file, edited or not."""
    with pytest.raises(UsageError) as raised:
        ThresholdProfile.load(path, allow_edited=True)
    message = str(raised.value)
    assert "\n" not in message
    assert str(path) in message
    return message


def written(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "profile.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def text_of(changes: dict[str, Any] | None = None) -> str:
    content: dict[str, Any] = json.loads(profile().model_dump_json())
    for dotted, value in (changes or {}).items():
        *folders, last = dotted.split(".")
        place: Any = content
        for step in folders:
            place = place[int(step) if step.isdigit() else step]
        place[last] = value
    return json.dumps(content)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"threshold": True}, "threshold: Input should be a valid number"),
        ({"threshold": "0.1"}, "threshold: Input should be a valid number"),
        ({"draft_length": 5.0}, "draft_length: Input should be a valid integer"),
        ({"draft_length": "5"}, "draft_length: Input should be a valid integer"),
        ({"draft_length": True}, "draft_length: Input should be a valid integer"),
        ({"lossy": 1}, "lossy: Input should be a valid boolean"),
        ({"lossy": "true"}, "lossy: Input should be a valid boolean"),
        ({"task": 3}, "task: Input should be a valid string"),
        ({"created": 0}, "created: Input should be a valid datetime"),
        ({"certificate.lower_bound": "0.98"}, "certificate.lower_bound: Input should be a valid number"),
        ({"certificate.certified": "yes"}, "certificate.certified: Input should be a valid boolean"),
        ({"certificate.wanted": True}, "certificate.wanted: Input should be a valid number"),
        ({"speed.intervals.sd": [True, 51.0]}, "speed.intervals.sd.0: Input should be a valid number"),
        ({"curve.4.problems": 700.0}, "curve.4.problems: Input should be a valid integer"),
        ({"versions": {"torch": 2}}, "versions.torch: Input should be a valid string"),
        ({"created": "1767323045"}, "created: Value error, '1767323045' is not a date and time"),
        ({"created": "20260102"}, "created: Value error, '20260102' is not a date and time"),
        ({"created": "2026-01-02T03:04:05"}, "created: Input should have timezone info"),
        ({"two\nlines": 1}, "Extra inputs are not permitted"),
    ],
)
def test_types_are_not_converted(tmp_path: Path, changes: dict[str, Any], complaint: str) -> None:
    assert complaint in refusal(written(tmp_path, text_of(changes)))


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"certificate.attempt": 10**400}, "certificate.attempt: Input should be less than or equal to 90071992547409"),
        ({"certificate.attempt": 10**300}, "certificate.attempt: Input should be less than or equal to 90071992547409"),
        ({"effort.search.decoded_tokens": 2**53 + 1}, "effort.search.decoded_tokens: Input should be less than"),
        ({"numerical_churn.problems": 10**400}, "numerical_churn.problems: Input should be less than"),
        ({"certificate.lower_bound": 1e308}, "certificate.lower_bound: Input should be less than"),
        ({"speed.target": 0}, "speed.target: Input should be greater than 0"),
        ({"speed.sd": 0.0}, "speed.sd: Input should be greater than 0"),
        ({"tokens_per_round.sd": 0}, "tokens_per_round.sd: Input should be greater than 0"),
        ({"curve.0.tokens_per_round": 0}, "curve.0.tokens_per_round: Input should be greater than 0"),
    ],
)
def test_values_that_no_calibration_writes_are_refused(tmp_path: Path, changes: dict[str, Any], complaint: str) -> None:
    assert complaint in refusal(written(tmp_path, text_of(changes)))


def test_the_largest_count_is_read_and_added_up(tmp_path: Path) -> None:
    most = {f"effort.{part}.decoded_tokens": 2**53 for part in ("baseline", "search", "certification")}
    loaded = ThresholdProfile.load(written(tmp_path, text_of(most)), allow_edited=True)
    assert loaded.effort is not None
    assert loaded.effort.total.decoded_tokens == 3 * 2**53


def test_an_integer_is_a_number(tmp_path: Path) -> None:
    loaded = ThresholdProfile.load(written(tmp_path, text_of({"speed.target": 20})))
    assert loaded.model_dump() == profile().model_dump()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (text_of().replace('"threshold"', '"threshold": 0.9, "threshold"', 1), "'threshold' is there twice"),
        (text_of().replace('"wanted"', '"wanted": 0.1, "wanted"', 1), "'wanted' is there twice"),
        (text_of().replace('"torch"', '"torch": "1", "torch"'), "'torch' is there twice"),
        (text_of().replace("0.0625", "NaN"), "NaN is not a number of JSON"),
        (text_of().replace("0.0625", "Infinity"), "Infinity is not a number of JSON"),
        (text_of().replace("0.0625", "-Infinity"), "-Infinity is not a number of JSON"),
        (text_of().replace("0.0625", "1e999"), "1e999 is not a number of JSON that fits"),
        (text_of() + "}", "Extra data"),
        (text_of() + text_of(), "Extra data"),
        (text_of() + "\0", "Extra data"),
        ("\ufeff" + text_of(), "BOM"),
        (text_of().encode("utf-16"), "can't decode"),
        (text_of().encode() + b"\xff", "can't decode"),
        (text_of().replace("0.0625", "0x1"), "is not JSON"),
        (text_of().replace("0.0625", "9" * 5000), "is not JSON"),
    ],
)
def test_only_plain_json_is_read(tmp_path: Path, text: str | bytes, complaint: str) -> None:
    assert complaint in refusal(written(tmp_path, text))


def test_python_may_still_give_what_converts() -> None:
    assert ThresholdProfile.model_validate(values({"speed.sd": 51})).speed.sd == 51.0


# What kind of file


def test_a_fifo_is_refused_at_once(tmp_path: Path) -> None:
    """Nothing writes to it, so reading it would wait for ever; a process of its own, so that this test would not."""
    os.mkfifo(tmp_path / "profile.json")
    command = "import sys; from fsd_calib.cli.profile import app; from fsd_calib.cli.console import run; "
    command += f"sys.exit(run(app, 'fsd-profile', ['show', {str(tmp_path / 'profile.json')!r}]))"
    ran = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, timeout=120)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "is not a regular file" in ran.stderr
    assert len(ran.stderr.splitlines()) == 1


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/full", "/dev/null"])
def test_devices_are_refused(device: str) -> None:
    assert "is not a regular file" in refusal(Path(device))


def test_a_huge_file_is_refused_unread(tmp_path: Path) -> None:
    with (tmp_path / "profile.json").open("wb") as file:
        file.truncate(1 << 36)  # sparse
    assert "68,719,476,736 bytes" in refusal(tmp_path / "profile.json")


def test_a_folder_stands_for_the_profile_in_it(tmp_path: Path) -> None:
    profile().save(tmp_path / "profile.json")
    loaded = ThresholdProfile.load(tmp_path)
    assert (loaded, loaded.folder) == (ThresholdProfile.load(tmp_path / "profile.json"), tmp_path)


def test_a_folder_without_a_profile_is_refused(tmp_path: Path) -> None:
    assert "profile.json' cannot be read: No such file" in refusal(tmp_path)
    (tmp_path / "profile.json").mkdir()
    assert "is not a regular file" in refusal(tmp_path / "profile.json" / "..")


@pytest.mark.parametrize("path", ["\0", "a\0b"])
def test_a_path_that_cannot_be_is_refused(path: str) -> None:
    with pytest.raises(UsageError, match="cannot be read: embedded null byte"):
        ThresholdProfile.load(path)
