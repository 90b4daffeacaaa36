"""The tables of a run: which there are, and whether rows in hand are rows of theirs.

Knows the schema's columns and a manifest's facts. Knows no file.
"""

from __future__ import annotations

import pyarrow as pa

from fsd_collectors.manifest import Manifest
from fsd_collectors.schema import COMPLETIONS, ROUNDS, schema_of, token_columns

_RUN = "fsd_run"


def schemas(manifest: Manifest) -> dict[str, pa.Schema]:
    """Every table of the run, in the order in which a portion's files are listed; each carries the run's id."""
    columns = {"tokens": token_columns(manifest.divergences, manifest.hidden), "completions": COMPLETIONS}
    if manifest.way == "on-policy":
        columns["rounds"] = ROUNDS
    plain = {table: schema_of(table, of) for table, of in columns.items()}
    return {table: schema.with_metadata({**schema.metadata, _RUN: manifest.run}) for table, schema in plain.items()}


def problems_in(portion: int, manifest: Manifest) -> int:
    """How many completions the portion has; only the last may have fewer than `manifest.portion`."""
    return max(0, min(manifest.portion, manifest.task.problems - portion * manifest.portion))


def conform(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The same rows with exactly the schema's columns, order and types.

    Raises:
        ValueError: a column is missing, unknown, does not fit its type, or has nulls that it may not have.
    """
    missing = [name for name in schema.names if name not in table.column_names]
    unknown = [name for name in table.column_names if name not in schema.names]
    if missing or unknown or len(table.column_names) != len(schema):
        raise ValueError(f"columns {table.column_names}: {missing} are missing, {unknown} are unknown or doubled")
    return pa.Table.from_arrays([_cast(table[field.name], field) for field in schema], schema=schema)


def _cast(values: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    if values.null_count and not field.nullable:
        raise ValueError(f"column {field.name!r} has {values.null_count} nulls; it may have none")
    try:
        return values.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise ValueError(f"column {field.name!r} does not fit {field.type}: {error}") from error


def difference(found: pa.Schema, wanted: pa.Schema) -> str | None:
    """What makes `found` another run's or another version's schema, in words; None where nothing does."""
    for field in wanted:
        if field.name not in found.names:
            return f"it has no column {field.name!r}"
        if not found.field(field.name).equals(field):
            return f"its column {found.field(field.name)} should be {field}"
    if found.names != wanted.names:
        return f"its columns are {found.names}"
    of_run, run = (schema.metadata.get(_RUN.encode(), b"?").decode() for schema in (found, wanted))
    return f"it is of run {of_run}, not {run}" if of_run != run else None
