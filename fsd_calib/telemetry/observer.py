"""Telemetry: an observer that tells a run as a table of rounds, or as one page of pictures.

Knows tables of rounds and their units. What is kept of a round is `round_log.py`'s; what the page shows is
`run_picture.py`'s and `run_sheet.py`'s.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fsd_decoding.errors import UsageError
from fsd_decoding.observers.round_log import RoundLog
from fsd_decoding.validation import check_count

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = {
    "seconds": ("s", "since the first round began, by the host's clock"),
    "round_seconds": ("s", "of the round, with whatever lay between it and the one before: prompts being read, say"),
    "rows": ("", "texts in the round"),
    "drafted": ("tokens", "drafted, of all rows"),
    "accepted": ("tokens", "of these, before the first rejection"),
    "emitted": ("tokens", "accepted and one more a row; more than a text keeps in the round that ends it"),
    "decided": ("tokens", "drafted, up to the first rejected one"),
    "threshold_least": ("as D", "smallest T that decided tokens were held against; NaN: the rule has no T"),
    "threshold": ("as D", "mean T of decided tokens"),
    "threshold_most": ("as D", "largest T of decided tokens"),
    "divergence": ("as D", "mean D of decided tokens"),
    "substituted": ("tokens", "accepted for D ≤ T alone: the exact rule had said no"),
    "divergence_substituted": ("as D", "largest D of these; NaN: there were none"),
    "tokens_per_second": ("tokens/s", "emitted by all rows, over the last `window` rounds"),
    "tokens_per_second_of_one": ("tokens/s", "the same of one row, on average"),
}
"""Columns of `Telemetry.frame`: unit and meaning. "as D": nats or none, as the divergence has."""


class Telemetry(RoundLog):
    """Give it to `generate` as `observer`, then ask for its `frame`, or `save` the page.

    What it costs is what a `RoundLog` costs. Several calls of `generate` go on as one run, the time between them
    included.
    """

    def frame(self, window: int = 32) -> pd.DataFrame:
        """A row a round: `COLUMNS`, and `policy.…`, what the policy told of itself in a unit that its name says.

        UsageError: `window`, in rounds, is no whole number of at least 1.
        """
        import pandas as pd

        check_count("window", window)
        table = pd.DataFrame({name: column.numpy() for name, column in self.columns().items()}).rename_axis("round")
        if table.empty:
            return pd.DataFrame(columns=list(COLUMNS), dtype=float).rename_axis("round")
        table["round_seconds"] = table.seconds.diff().fillna(table.seconds)
        streams = table.rows * table.round_seconds
        emitted, seconds, of_one = (
            of.rolling(window, min_periods=1).sum() for of in (table.emitted, table.round_seconds, streams)
        )
        table["tokens_per_second"], table["tokens_per_second_of_one"] = emitted / seconds, emitted / of_one
        return table[[*COLUMNS, *(name for name in table if name not in COLUMNS)]]

    def save(self, path: str | Path, title: str = "A run, round by round") -> Path:
        """Writes one page that needs nothing beside itself: T, divergences, accepted lengths, tokens/s and what the
        policy told, over time. Its size does not grow with the run: long ones are drawn in 300 steps.

        UsageError: nothing was watched, or the file cannot be written.
        """
        from fsd_calib.telemetry.figures import picture
        from fsd_calib.telemetry.tables import remarks, sheet
        from fsd_collectors.report.page import page
        from fsd_collectors.report.plot import write

        table = self.frame()
        if table.empty:
            raise UsageError("no round was watched; give the telemetry to generate(observer=…) before it is saved")
        shown = page(title, [sheet(table, self.ways)], [picture(table, self.ways)], remarks(self.ways))
        return write(Path(path), shown.encode())
