"""What notebooks show of a profile and of a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fsd_calib.report.page import run_page
from fsd_calib.report.plan import (
    attempt_line,
    design_line,
    device_time,
    first_line,
    outlook,
    pilot_summary,
    prospect_cells,
    prospect_headings,
    rounds_line,
    worth_lines,
)
from fsd_calib.report.run_folder import Run
from fsd_common.formatting import duration
from fsd_common.pages.blocks import Paragraph, Section, Sheet
from fsd_common.pages.fragment import fragment

if TYPE_CHECKING:
    from fsd_calib.calibration.plan import Plan
    from fsd_decoding.profile.threshold_profile import ThresholdProfile

_SHOWN = ("verdict", "speed", "threshold")  # sections of the page that need no record


def profile_html(profile: ThresholdProfile) -> str:
    """Returns verdict, figures and the charts of retention; `fsd-report` has the rest."""
    page = run_page(Run("", profile))
    return fragment(page.title, [section for section in page.sections if section.name in _SHOWN])


def plan_html(plan: Plan) -> str:
    """Returns what the problems can show and how long the calibration is expected to take."""
    blocks: list[Paragraph | Sheet] = [Paragraph(pilot_summary(plan))]
    if plan.claim.guarantee == "population":
        cells = tuple(tuple(prospect_cells(prospect)) for prospect in plan.prospects)
        blocks.append(Sheet("What can be shown", tuple(prospect_headings(plan)), cells))
    design = () if plan.design is None else (Paragraph(design_line(plan, plan.design)),)
    blocks += [Paragraph(outlook(plan)), *design, Paragraph(attempt_line(plan)), *map(Paragraph, worth_lines(plan))]
    if plan.steps:
        steps = [(step.name, f"{step.decodings:,}", duration(step.seconds)) for step in plan.steps]
        total = ("total", f"{sum(step.decodings for step in plan.steps):,}", duration(plan.seconds))
        blocks.append(Sheet("Estimated time", ("step", "decodings", "time"), (*steps, total)))
        first = [] if plan.first is None else [first_line(plan.first)]
        blocks += [Paragraph(line, "note") for line in (device_time(plan), *first, rounds_line(plan))]
    return fragment("Plan of a calibration", [Section("plan", "Plan of a calibration", "", tuple(blocks))])
