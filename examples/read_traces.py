"""Traces read with DuckDB: how many of the drafted tokens each threshold keeps, of which those of the target's own.

python examples/read_traces.py fsd-traces/arithmetic  # needs: pip install duckdb
"""

from __future__ import annotations

import sys

import duckdb

QUERY = """
    SELECT threshold, avg((same_token OR js <= threshold)::INT) AS kept, avg(same_token::INT) AS own
    FROM read_parquet(?), (SELECT unnest([0, 0.05, 0.1, 0.2, 0.4, 0.8]::DOUBLE[]) AS threshold)
    GROUP BY threshold ORDER BY threshold
"""


def main(folder: str) -> None:
    for threshold, kept, own in duckdb.execute(QUERY, [f"{folder}/tokens/*.parquet"]).fetchall():
        print(f"T = {threshold:g}: {kept:.1%} of the drafted tokens are kept, {own:.1%} are the target's own")


if __name__ == "__main__":
    main(sys.argv[1])
