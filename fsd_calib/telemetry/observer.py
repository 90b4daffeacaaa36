"""Telemetry: an observer that returns a run as a table of rounds, or writes it as one page with figures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fsd_common.argument_checks import check_count
from fsd_common.errors import UsageError
from fsd_decoding.observers.round_log import RoundLog

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = {
    "seconds": ("s", "since the first round began, by the host's clock"),
    "round_seconds": ("s", "duration, including the time since the round before, for example for prefill"),
    "rows": ("", "texts in the round"),
    "drafted": ("tokens", "drafted, in all rows"),
    "accepted": ("tokens", "accepted before the first rejection, in all rows"),
    "emitted": ("tokens", "accepted and one more per row; the last round of a text may emit more than the text keeps"),
    "decided": ("tokens", "drafted, up to the first rejected one: accepted or rejected"),
    "threshold_least": ("as D", "smallest T that decided tokens were compared with; NaN: the rule has no T"),
    "threshold": ("as D", "mean T of decided tokens"),
    "threshold_most": ("as D", "largest T of decided tokens"),
    "divergence": ("as D", "mean D of decided tokens"),
    "substituted": ("tokens", "accepted only because D ≤ T: the exact rule would have rejected them"),
    "divergence_substituted": ("as D", "largest D of these; NaN: there were none"),
    "tokens_per_second": ("tokens/s", "emitted in all rows, over the last `window` rounds"),
    "tokens_per_second_of_one": ("tokens/s", "emitted in one row on average, over the last `window` rounds"),
}
"""Columns of `Telemetry.frame`: unit and meaning. "as D": the unit of the divergence, nats or none."""


class Telemetry(RoundLog):
    """Records a run: pass it to `generate` as `observer`, then call `frame`, or `save` for a page with figures.

    Several calls of `generate` continue one run, which includes the time between them. The cost is that of `RoundLog`.
    """

    def frame(self, window: int = 32) -> pd.DataFrame:
        """Returns a table with one row per round: `COLUMNS`, and the policy's facts as `policy.…`, named with units.

        Args:
            window: number of rounds that speeds are averaged over.

        Raises:
            UsageError: `window` is not a whole number of at least 1.
        """
        import pandas as pd

        check_count("window", window)
        table = pd.DataFrame({name: column.numpy() for name, column in self.columns().items()}).rename_axis("round")
        if table.empty:
            return pd.DataFrame(columns=list(COLUMNS), dtype=float).rename_axis("round")
        table["round_seconds"] = table.seconds.diff().fillna(table.seconds)
        streams = table.rows * table.round_seconds
        emitted, seconds, stream_seconds = (
            column.rolling(window, min_periods=1).sum() for column in (table.emitted, table.round_seconds, streams)
        )
        table["tokens_per_second"], table["tokens_per_second_of_one"] = emitted / seconds, emitted / stream_seconds
        return table[[*COLUMNS, *(name for name in table if name not in COLUMNS)]]

    def save(self, path: str | Path, title: str = "A run, round by round") -> Path:
        """Writes one self-contained page: T, divergences, accepted lengths, tokens/s and the policy's facts over time.
        Its size does not grow with the run, as long runs are drawn in 300 steps. Returns the path.

        Raises:
            UsageError: no round was recorded, or the file cannot be written.
        """
        from fsd_calib.telemetry.charts import run_section
        from fsd_calib.telemetry.tables import remarks, summary_table
        from fsd_common.pages.blocks import Page, Paragraph, Section
        from fsd_common.pages.page import html, write

        table = self.frame()
        if table.empty:
            raise UsageError("the telemetry recorded no round; pass it to generate(observer=…) before you save it")
        notes = (Paragraph(line, "note") for line in remarks(self.setups))
        whole = Section("summary", "The whole run", "Totals and means.", (summary_table(table, self.setups), *notes))
        return write(Path(path), html(Page(title, (whole, run_section(table, self.setups)))).encode())
