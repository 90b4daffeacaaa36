"""Records as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence


def csv_text(records: Sequence[Mapping[str, object]]) -> str:
    """Returns a line of names and a line for each record; None is empty. All have the same names, and there is one."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(records[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()
