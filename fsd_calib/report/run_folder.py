"""A run's folder: its profile, its record if there is one, and its page, in the formats of `fsd-report`."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from fsd_calib.report.record import FILE_NAME, RunRecord
from fsd_common.errors import UsageError
from fsd_common.files import read_regular
from fsd_common.pages.blocks import Page
from fsd_common.pages.markdown import markdown
from fsd_common.pages.page import html, write
from fsd_common.pages.pictures import pdf, png, svg
from fsd_common.strict_json import parse
from fsd_decoding.profile.io import FIELD, digest_of, file_of, first_problem
from fsd_decoding.profile.threshold_profile import ThresholdProfile

Format = Literal["html", "png", "svg", "pdf", "md"]
_DRAWN = {"png": png, "svg": svg, "pdf": pdf}
PICTURES = "pictures"  # the folder of a page's charts


def write_as(format: Format, page: Page, path: Path) -> list[Path]:
    """Writes the page and returns the paths of its files.

    Args:
        path: Of the file; with PNG, SVG and PDF of the folder that each chart gets a file in.

    Raises:
        UsageError: A file cannot be written.
    """
    if format == "html":
        return [write(path, html(page).encode())]
    if format == "md":
        drawn = [write(path.parent / PICTURES / f"{chart.name}.svg", svg(chart)) for chart in page.charts]
        return [write(path, markdown(page, lambda chart: f"{PICTURES}/{chart.name}.svg").encode()), *drawn]
    return [write(path / f"{chart.name}.{format}", _DRAWN[format](chart)) for chart in page.charts]


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
    content = _read(record_file)
    if content.pop(FIELD, None) != digest_of(content):
        return Run(name, profile, lacks=f"the {FILE_NAME} beside the profile was changed after it was written")
    record = _record_of(content, record_file)
    if record.profile != profile.digest:
        return Run(name, profile, lacks=f"the {FILE_NAME} beside the profile is of another profile")
    return Run(name, profile, record)


def save_record(record: RunRecord, folder: Path) -> Path:
    """Writes run.json with its digest, readable by the folder's readers, and returns its path.

    Raises:
        UsageError: It cannot be written.
    """
    content = record.model_dump(mode="json")
    return write(folder / FILE_NAME, json.dumps({**content, FIELD: digest_of(content)}, indent=1).encode() + b"\n")


def _read(path: Path) -> dict[str, Any]:
    name = f"record {str(path)!r}"
    try:
        content = parse(read_regular(path, _LARGEST))
    except OSError as error:
        raise UsageError(f"{name} cannot be read: {error.strerror or error}; repair it, or remove it") from error
    except ValueError as error:
        raise UsageError(f"{name} is not JSON: {error}; remove it, and pages leave out what it held") from error
    if not isinstance(content, dict):
        raise UsageError(f"{name} is not valid: it holds no object; remove it, and pages leave out what it held")
    version = content.get("version")
    if isinstance(version, int) and version > 1:
        raise UsageError(f"{name} has version {version}, but this fsd-calib reads 1; upgrade fsd-calib")
    return content


def _record_of(content: dict[str, Any], path: Path) -> RunRecord:
    try:
        return RunRecord.model_validate_json(json.dumps(content), strict=True)
    except ValidationError as error:
        raise UsageError(
            f"record {str(path)!r} is not valid: {first_problem(error)}; remove it, and pages leave out what it held"
        ) from error
