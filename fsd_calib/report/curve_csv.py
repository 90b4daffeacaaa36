"""Every setting that calibrations measured, as CSV."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from fsd_calib.report.run_folder import Run
from fsd_common.csv_text import csv_text
from fsd_common.errors import UsageError
from fsd_decoding.profile.fields import CurvePoint


def curves_as_csv(runs: Sequence[Run]) -> str:
    """Returns a line for each point of each run's curve: setting, part, counts, accuracy, retention with its interval
    and bound, tokens a round and the forecast of tokens/s."""
    found = [dict(_fields(run, point)) for run in runs for point in run.profile.curve]
    if not found:
        raise UsageError(f"{', '.join(run.name for run in runs)}: no setting was measured; there is nothing to write")
    return csv_text(found)


def _fields(run: Run, point: CurvePoint) -> Iterator[tuple[str, Any]]:
    yield from {"run": run.name, "task": run.profile.task}.items()
    for name, value in point.model_dump(mode="json", exclude={"counts", "interval", "setting"}).items():
        yield name, value
    for name, value in point.setting.values.items():
        yield name, value if isinstance(value, str | int | float | None) else str(value)
    low, high = point.interval or (None, None)
    yield from {"retention_low": low, "retention_high": high}.items()
    for name in ("both_right", "lost", "gained", "both_wrong"):
        yield name, None if point.counts is None else getattr(point.counts, name)
