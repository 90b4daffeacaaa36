"""`Traces`: the tables of a run, read in batches, as Arrow datasets, or into pandas and `datasets`."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from fsd_collectors.manifest import Manifest
from fsd_collectors.store.listing import FileEntry, Listing, Shard, read_manifest
from fsd_collectors.store.shard_file import (
    CHECKED,
    FILES,
    FORMAT,
    check_content,
    check_schema,
    check_size,
    read_file,
    schemas,
)
from fsd_common.argument_checks import check_path
from fsd_common.errors import UsageError
from fsd_common.notebook import html_of

_NULLABLE = {pa.bool_(): pd.BooleanDtype(), pa.int16(): pd.Int16Dtype(), pa.int32(): pd.Int32Dtype()}


def load_traces(path: str | os.PathLike[str]) -> Traces:
    """Opens the traces in a folder without reading rows; those of an unfinished run too, see `Traces.complete`.

    Raises:
        UsageError: there are none, or a listed file is missing, has another size, or has the schema of another run.
    """
    check_path("the folder of traces", path)
    folder = Path(path).absolute()
    manifest = read_manifest(folder)
    tables = schemas(manifest)
    shards = Listing(folder, tuple(tables)).shards
    for entry in (file for shard in shards for file in shard.files):
        check_size(folder, entry)
        check_schema(folder, entry, tables[entry.table])
    return Traces(folder, manifest, tuple(shards))


@dataclass(frozen=True)
class Traces:
    """The rows of a run, in the folder `path`.

    The argument `where` of the methods selects rows: a `pyarrow.dataset` expression, or tuples like pyarrow's
    `filters`, such as [("split", "==", "tuning"), ("js", "<", 0.1)]. The methods raise UsageError where a file is
    damaged, or a table or column does not exist.
    """

    path: Path
    manifest: Manifest
    shards: tuple[Shard, ...]

    @property
    def complete(self) -> bool:
        """Whether all portions are finished."""
        return sum(shard.problems for shard in self.shards) == self.manifest.task.problems

    def _repr_html_(self) -> str | None:
        """Returns what notebooks show; None: of labels the text alone."""
        return None if self.manifest.way == "labels" else html_of("traces", self)

    @property
    def tokens(self) -> ds.Dataset:
        """The table of tokens, one row for each drafted token.

        A dataset caches the metadata of each shard, 100 kB each; `batches` takes less memory.
        """
        return self._dataset("tokens")

    @property
    def completions(self) -> ds.Dataset:
        """The table of completions, one row for each problem."""
        return self._dataset("completions")

    @property
    def rounds(self) -> ds.Dataset:
        """The table of rounds, one row for each round of a completion; on-policy traces only."""
        return self._dataset("rounds")

    def batches(
        self, columns: Sequence[str] | None = None, where: Any = None, table: str = "tokens"
    ) -> Iterator[pa.Table]:
        """Yields the rows one portion at a time, in order; a portion holds whole completions.

        Portions in which `where` selects no rows are skipped.
        """
        names, condition = self._query(columns, where, table)
        for entry in self._files(table):
            rows = read_file(self.path, entry, self._schema(table), names, condition)
            if rows.num_rows:
                yield rows

    def to_pandas(self, columns: Sequence[str] | None = None, where: Any = None, table: str = "tokens") -> pd.DataFrame:
        """Returns the rows as a data frame; nullable columns have pandas' nullable types, the others NumPy's."""
        rows = pa.concat_tables([self._no_rows(columns, table), *self.batches(columns, where, table)])
        frame: pd.DataFrame = rows.to_pandas()
        for field in rows.schema:
            if field.nullable:
                frame[field.name] = rows[field.name].to_pandas(types_mapper=_NULLABLE.get).array
        return frame

    def to_hf(self, columns: Sequence[str] | None = None, table: str = "tokens") -> Any:
        """Returns a `datasets.Dataset`, memory-mapped from an uncompressed copy in the cache of `datasets`."""
        from datasets import Dataset, load_dataset
        from datasets.exceptions import DatasetGenerationError

        empty = self._no_rows(columns, table)
        if not self.shards:
            return Dataset(empty)
        files = [glob.escape(str(self.path / entry.path)) for entry in self._files(table)]
        try:
            return load_dataset(
                "parquet", data_files=files, split="train", columns=empty.column_names, fragment_scan_options=CHECKED
            ).select_columns(empty.column_names)
        except (DatasetGenerationError, pa.ArrowException, OSError):
            for entry in self._files(table):
                check_size(self.path, entry)
                check_content(self.path, entry)
            raise

    @cached_property
    def _schemas(self) -> dict[str, pa.Schema]:
        return schemas(self.manifest)

    def _schema(self, table: str) -> pa.Schema:
        if table not in self._schemas:
            raise UsageError(f"there is no table {table!r}; {self.manifest.way} traces have {', '.join(self._schemas)}")
        return self._schemas[table]

    def _files(self, table: str) -> list[FileEntry]:
        return [shard.file(table) for shard in self.shards]

    def _no_rows(self, columns: Sequence[str] | None, table: str) -> pa.Table:
        names, _ = self._query(columns, None, table)
        return self._schema(table).empty_table().select(names)

    def _dataset(self, table: str) -> ds.Dataset:
        schema = self._schema(table)
        paths = [str(self.path / entry.path) for entry in self._files(table)]
        return ds.FileSystemDataset.from_paths(paths, schema, FORMAT, FILES)

    def _query(self, columns: Sequence[str] | None, where: Any, table: str) -> tuple[list[str], ds.Expression | None]:
        """Checks columns and condition, and returns them as names and an expression."""
        schema = self._schema(table)
        names = schema.names if columns is None else list(columns)
        if unknown := [name for name in names if name not in schema.names]:
            raise UsageError(f"table {table} has no column {unknown[0]!r}; it has {', '.join(schema.names)}")
        try:
            condition = where if where is None or isinstance(where, ds.Expression) else pq.filters_to_expression(where)
            ds.InMemoryDataset(schema.empty_table()).scanner(filter=condition)
        except (pa.ArrowException, ValueError, TypeError) as error:
            reason = str(error).partition("\n")[0]
            raise UsageError(f"where {where!r:.80} does not suit table {table}: {reason}") from error
        return names, condition
