"""A run's folder: its profile, its record if there is one, and its page."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from fsd_calib.report.record import FILE_NAME, RunRecord
from fsd_collectors.pages.files import write
from fsd_decoding.errors import UsageError
from fsd_decoding.profile.io import file_of, first_problem
from fsd_decoding.profile.threshold_profile import ThresholdProfile
from fsd_decoding.strict_json import parse

PAGE = "report.html"
_LARGEST = 256 << 20  # bytes of a record


@dataclass(frozen=True)
class Run:
    """A calibration as its folder holds it.

    Attributes:
        name: The folder's.
        record: None: there is none of this profile; `lacks` says why.
    """

    name: str
    profile: ThresholdProfile
    record: RunRecord | None = None
    lacks: str = ""


def load_run(path: str | os.PathLike[str]) -> Run:
    """Returns the run of a profile's file or folder; an edited profile is loaded too.

    Raises:
        UsageError: The profile or the record is missing, malformed, or of a newer version.
    """
    file = file_of(path)
    profile = ThresholdProfile.load(file, allow_edited=True)
    record_file = file.with_name(FILE_NAME)
    name = file.absolute().parent.name
    if not record_file.exists():
        return Run(name, profile, lacks=f"there is no {FILE_NAME} beside the profile")
    record = _load_record(record_file)
    if record.profile != profile.digest:
        return Run(name, profile, lacks=f"the {FILE_NAME} beside the profile is of another profile")
    return Run(name, profile, record)


def save_record(record: RunRecord, folder: Path) -> Path:
    """Writes run.json, readable by the folder's readers, and returns its path. UsageError: it cannot be written."""
    return write(folder / FILE_NAME, (record.model_dump_json(indent=1) + "\n").encode())


def _load_record(path: Path) -> RunRecord:
    name = f"record {str(path)!r}"
    try:
        if path.stat().st_size > _LARGEST:
            raise UsageError(f"{name} has {path.stat().st_size:,} bytes, too many for a record; remove it")
        text = path.read_bytes().decode()
        content = parse(text)
    except OSError as error:
        raise UsageError(f"{name} cannot be read: {error.strerror or error}; repair it, or remove it") from error
    except ValueError as error:
        raise UsageError(f"{name} is not JSON: {error}; remove it, and pages leave out what it held") from error
    version = content.get("version") if isinstance(content, dict) else None
    if isinstance(version, int) and version > 1:
        raise UsageError(f"{name} has version {version}, but this fsd-calib reads up to 1; upgrade fsd-calib")
    try:
        return RunRecord.model_validate_json(text, strict=True)
    except ValidationError as error:
        raise UsageError(
            f"{name} is not valid: {first_problem(error)}; remove it, and pages leave out what it held"
        ) from error
