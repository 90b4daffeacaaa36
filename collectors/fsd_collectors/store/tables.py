"""The tables of a run with their schemas, and the conversion of rows to a schema."""

from __future__ import annotations

import pyarrow as pa

from fsd_collectors.manifest import Manifest
from fsd_collectors.schema import schema_of, tables_of

_RUN = "fsd_run"


def schemas(manifest: Manifest) -> dict[str, pa.Schema]:
    """Returns the schemas of the run's tables, in the order of the listing; their metadata hold the run's id."""
    columns = tables_of(manifest.way, manifest.divergences, manifest.hidden)
    plain = {table: schema_of(table, of) for table, of in columns.items()}
    return {table: schema.with_metadata({**schema.metadata, _RUN: manifest.run}) for table, schema in plain.items()}


def problems_in(earlier: int, manifest: Manifest) -> range:
    """Returns the numbers of completions that a portion may have, behind `earlier` completions of the run.

    Only the last portion has fewer than `manifest.portion`. In serving any may: one ends wherever the server did.
    """
    most = min(manifest.portion, manifest.task.problems - earlier)
    return range(1 if manifest.way == "serving" else most, most + 1)


def in_words(counts: range) -> str:
    least, most = counts.start, counts.stop - 1
    return f"{most}" if least >= most else f"{least} to {most}"


def conform(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Returns the rows with exactly the schema's columns, order and types.

    Raises:
        ValueError: a column is missing or unknown, does not fit its type, or has nulls though it is not nullable.
    """
    missing = [name for name in schema.names if name not in table.column_names]
    unknown = [name for name in table.column_names if name not in schema.names]
    if missing or unknown or len(table.column_names) != len(schema):
        raise ValueError(
            f"columns {table.column_names}: {missing} are missing, {unknown} are unknown, or one is doubled"
        )
    return pa.Table.from_arrays([_cast(table[field.name], field) for field in schema], schema=schema)


def _cast(values: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    if values.null_count and not field.nullable:
        raise ValueError(f"column {field.name!r} has {values.null_count} nulls; it may have none")
    try:
        return values.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise ValueError(f"column {field.name!r} does not fit {field.type}: {error}") from error


def difference(actual: pa.Schema, expected: pa.Schema) -> str | None:
    """Returns, in words, how a schema differs from that of the run, or None where it does not."""
    for field in expected:
        if field.name not in actual.names:
            return f"it has no column {field.name!r:.80}"
        if not actual.field(field.name).equals(field):
            return f"its column {actual.field(field.name)!s:.80} should be {field!s:.80}"
    if actual.names != expected.names:
        return f"its columns are {actual.names}"
    of_run, run = (schema.metadata.get(_RUN.encode(), b"?").decode() for schema in (actual, expected))
    return f"it is of run {of_run}, not {run}" if of_run != run else None
