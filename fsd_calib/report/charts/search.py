"""Chart: what each trial of the search showed, in their order."""

from __future__ import annotations

from collections.abc import Sequence

from fsd_calib.report.charts.marks import levels, padded_range, series
from fsd_calib.report.record import RunRecord, Trial
from fsd_calib.report.rows import Row
from fsd_common.formatting import in_trees, pace, percent, threshold
from fsd_common.pages.charts import Chart, layered, quantitative
from fsd_decoding.profile.threshold_profile import ThresholdProfile

_SHOWN = ("trial", "verdict", "T", "L", "divergence", "policy", "retention", "lossless share", "tokens/s", "problems")


def trials(profile: ThresholdProfile, record: RunRecord, found: Sequence[Row]) -> Chart | None:
    """Returns the chart; None: the search tried nothing."""
    if not record.trials:
        return None
    values = [_trial_value(number, trial) for number, trial in enumerate(record.trials, 1)]
    names = sorted({str(value["series"]) for value in values})
    x = quantitative(
        "number", "trial of the search", axis={"tickMinStep": 1, "format": "d"},
        scale={"domain": [0.5, len(values) + 0.5], "nice": False},
    )  # fmt: skip
    scale = {
        "domain": padded_range([trial.retention for trial in record.trials], profile),
        "zero": False,
        "nice": False,
    }
    y = quantitative("kept", "retention (% of the target's accuracy)", scale=scale)
    looks = series(names, found)
    tooltip = [{"field": name, "type": "nominal"} for name in _SHOWN if name in values[0]]
    layers = [
        *levels(profile),
        {"mark": {"type": "line", "color": "@faint", "strokeWidth": 1.5}, "encoding": {"x": x, "y": y}},
        {"transform": [{"filter": "!datum.feasible"}],
         "mark": {"type": "point", "filled": False, "strokeWidth": 2, "size": 80, "fill": "@paper"},
         "encoding": {"x": x, "y": y, **looks, "tooltip": tooltip}},
        {"transform": [{"filter": "datum.feasible"}],
         "mark": {"type": "point", "filled": True, "size": 95, "opacity": 1},
         "encoding": {"x": x, "y": y, **looks, "tooltip": tooltip}},
    ]  # fmt: skip
    return Chart("trials", _trials_alt(record.trials), layered(values, layers, 280))


def _trial_value(number: int, trial: Trial) -> dict[str, object]:
    by = "" if trial.policy is None else f" by {trial.policy.name}"
    return {
        "number": number, "trial": str(number), "kept": 100 * trial.retention, "feasible": trial.feasible,
        "series": f"{trial.divergence}{by}{in_trees(trial.tree)}", "T": threshold(trial.threshold),
        "L": str(trial.draft_length),
        "divergence": trial.divergence, "policy": "constant T" if trial.policy is None else str(trial.policy),
        "retention": percent(trial.retention), "tokens/s": f"{pace(trial.speed)}, forecast",
        "problems": f"{trial.problems:,} tuning problems",
        "verdict": "meets the goal, as far as the search can tell" if trial.feasible else "does not meet the goal",
    }  # fmt: skip


def _trials_alt(done: Sequence[Trial]) -> str:
    shown = (f"{n}: {t.divergence} at {threshold(t.threshold)}, {percent(t.retention)}" for n, t in enumerate(done, 1))
    return f"Retention of {len(done)} trials in their order: {'; '.join(shown)}."
