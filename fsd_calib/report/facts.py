"""Tables of a run's page: frozen settings, what T means, all settings, and where everything comes from."""

from __future__ import annotations

from collections.abc import Sequence

from fsd_calib.report.record import Rung, RunRecord
from fsd_calib.report.rows import Row, setting_name
from fsd_calib.report.run_folder import Run
from fsd_calib.report.tables import details
from fsd_common.formatting import NONE, bound, in_trees, pace, percent, threshold
from fsd_common.pages.blocks import Section, Sheet
from fsd_decoding.profile.threshold_profile import ThresholdProfile

_SHARES = (0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999)


def rung_sheet(profile: ThresholdProfile, record: RunRecord) -> Sheet:
    """Returns the frozen settings in the order of the test, with what it showed."""
    rows = [_rung(profile, number, rung) for number, rung in enumerate(record.rungs, 1)]
    none = "" if rows else "No setting was frozen, so the certification part was not opened."
    headings = ("rung", "setting", "result", "retention", "at least", "lost", "gained", "p-value")
    return Sheet("Frozen settings, in the order of the test", headings, tuple(rows), none, names=3)


def _rung(profile: ThresholdProfile, number: int, rung: Rung) -> tuple[str, ...]:
    name, c = setting_name(rung), rung.counts
    if c is None:
        return str(number), name, "not tested", *[NONE] * 5
    right = c.both_right + c.lost
    retention = (c.both_right + c.gained) / right if right else None
    result = "bounded"
    if rung.p_value is not None:
        result = "passed" if rung.p_value <= profile.certificate.level else "failed"
    p_value = NONE if rung.p_value is None else f"{rung.p_value:.2g}"
    return str(number), name, result, percent(retention), bound(rung.lower_bound), f"{c.lost}", f"{c.gained}", p_value


def scale_sheet(record: RunRecord) -> Sheet:
    """Returns the T that accepts a share of the drafted tokens, by divergence."""
    shares = [share for share in _SHARES if all(share in scale.shares for scale in record.scales)]
    rows = []
    for scale in record.scales:
        by = "" if scale.policy is None else f", {scale.policy.name}"
        at = dict(zip(scale.shares, scale.thresholds, strict=True))
        rows.append((f"{scale.divergence}{by}{in_trees(scale.tree)}", *(threshold(at[share]) for share in shares)))
    headings = ("divergence", *(f"{100 * share:g}%" for share in shares))
    return Sheet("T that accepts a share of the drafted tokens", headings, tuple(rows),
                 "Along the target's own text, on the tuning part, by D ≤ T alone.")  # fmt: skip


def settings_section(found: Sequence[Row], profile: ThresholdProfile) -> Section:
    """Returns every measured setting in a table that can be sorted."""
    ordered = sorted(found, key=lambda row: (row.source != "certification", -(row.forecast or 0.0)))
    headings = ("setting", "part", "T", "L", "retention", "≥", "accuracy", "tokens\n/round", "accepted",
                "tokens/s\n(forecast)", "problems")  # fmt: skip
    marked = frozenset(i for i, row in enumerate(ordered) if row.chosen)
    table = Sheet("", headings, tuple(map(_cells, ordered)), names=2, marked=marked, sortable=True)
    return Section(
        "settings", "All settings",
        "Every setting that was decoded, on each part; click a heading to sort by it. Highlighted: the profile's own. "
        "≥ is the certificate's lower bound of retention, for settings that were tested.",
        (table,),
    )  # fmt: skip


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.series if row.threshold is None else f"{row.rule}, {row.series}", row.source, threshold(row.threshold),
        str(row.draft_length) if row.drafts else NONE, percent(row.retention), bound(row.lower_bound),
        percent(row.accuracy), pace(row.tokens_per_round, 2), percent(row.accepted), pace(row.forecast),
        f"{row.problems:,}",
    )  # fmt: skip


def provenance_section(run: Run) -> Section:
    """Returns models, data, settings, certificate, costs and versions."""
    sheets = [Sheet(title.capitalize(), (), tuple(lines.items())) for title, lines in details(run.profile).items()]
    digest = run.profile.digest or "none"
    of_file = Sheet("Profile", (), (("digest", digest), ("schema version", str(run.profile.schema_version))))
    return Section(
        "provenance", "Where this comes from",
        "Models, data, settings and versions, as the profile records them: what another calibration must agree in to "
        "be compared with this one.",
        (*sheets, of_file),
    )  # fmt: skip
