"""The draft by itself, the other end of what speculative decoding trades: how often it is right, and how fast it is."""

from __future__ import annotations

from dataclasses import asdict

from fsd_calib.calibration.baseline import COMPARED
from fsd_calib.calibration.findings import Findings
from fsd_calib.certification.harm import retention_interval
from fsd_calib.engines.configuration import Configuration
from fsd_calib.measuring.evaluator import Evaluator
from fsd_calib.report.record import DraftAlone
from fsd_common.errors import UsageError
from fsd_decoding.profile.parts import Counts


def measure_draft_alone(findings: Findings) -> DraftAlone | None:
    """Decodes the first tuning problems with the draft of what decoders of the profile run, and times it.

    For pages alone: it is no point of the profile's curve, and no failure of it ends a calibration that is done.

    Returns:
        What was measured; None where the engine cannot run a draft alone, or where that failed, which a note says.
    """
    session = findings.ready.session
    alone = Configuration.draft_alone(session.engine.divergence, findings.followed.draft)
    if not session.engine_of(alone).runs_draft_alone:
        return None
    try:
        return _measure(findings, alone)
    except UsageError as error:
        session.progress.note(f"the draft alone was not measured: {error}")
        return None


def _measure(findings: Findings, alone: Configuration) -> DraftAlone:
    ready = findings.ready
    measured = Evaluator(ready.session.decode, ready.session.tuning.problems, "tuning").measure(alone, COMPARED)
    paired = findings.paired(measured)
    speed = ready.timer.time_here(alone, findings.opened)
    return DraftAlone(
        draft=alone.draft, counts=Counts(**asdict(paired.outcomes)),
        interval=retention_interval(paired, ready.goal.confidence), problems=measured.problems, tokens=measured.tokens,
        speed=None if speed is None else speed.value,
        speed_interval=(speed.low, speed.high) if speed is not None and speed.bounded else None,
    )  # fmt: skip
