"""Saving of a calibration's record and page beside its profile, which no failure of theirs may lose."""

from __future__ import annotations

from pathlib import Path

from fsd_calib.calibration.findings import Findings
from fsd_calib.calibration.to_record import to_record
from fsd_calib.report.page import run_page
from fsd_calib.report.run_folder import PAGE, Run, save_record, write_as
from fsd_decoding.profile.threshold_profile import ThresholdProfile


def save_pages(findings: Findings, profile: ThresholdProfile, folder: Path) -> None:
    """Writes run.json and report.html; where that fails, a note says so. The profile is saved already."""
    try:
        (folder / PAGE).unlink(missing_ok=True)  # an earlier profile's page must not stand beside this one
        record = to_record(findings, profile)
        save_record(record, folder)
        write_as("html", run_page(Run(folder.absolute().name, profile, record)), folder / PAGE)
    except Exception as error:  # whatever it is: the calibration is done, and its profile is safe
        why = " ".join(str(error).split()) or type(error).__name__
        findings.ready.session.progress.note(
            f"{folder / PAGE} was not written ({why}); the profile is complete, and fsd-report {folder} tries again"
        )
