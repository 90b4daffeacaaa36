"""What notebooks show of traces."""

from __future__ import annotations

from fsd_collectors.report.description import sheets, summarise
from fsd_collectors.report.plot import separation, substitutions
from fsd_collectors.store.reading import Traces
from fsd_common.pages.blocks import Block, Paragraph, Section
from fsd_common.pages.fragment import fragment

_MOST = 2_000_000  # rows, which take some seconds to read


def traces_html(traces: Traces) -> str:
    """Returns the tables of `fsd-traces describe` and two charts; of very large traces only how to see them."""
    manifest = traces.manifest
    title = f"Traces of {manifest.task.name}, {manifest.way}"
    rows = sum(shard.file("tokens").rows for shard in traces.shards)
    if rows > _MOST:
        large = Paragraph(f"{rows:,} token rows, too many to show here: fsd-traces plot {traces.path} draws them.")
        return fragment(title, [Section("large", title, "", (large,))])
    summary = summarise(traces)
    blocks: tuple[Block, ...] = sheets(manifest, summary)
    if summary.counted and summary.scores:
        blocks = (separation(summary), substitutions(summary), *blocks)
    return fragment(title, [Section("traces", title, "", blocks)])
