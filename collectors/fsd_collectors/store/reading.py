"""Traces as a whole: every table of a run, read a shard at a time or into pandas and `datasets`.

Knows the listed shards and what the tools that read them expect. Knows no Parquet beyond `shard_file.py`, and
nothing of how rows came about.
"""

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
from fsd_collectors.store.shard_file import CHECKED, FILES, FORMAT, check_content, check_schema, check_size, read_file
from fsd_collectors.store.tables import schemas
from fsd_decoding.errors import UsageError

_NULLABLE = {pa.bool_(): pd.BooleanDtype(), pa.int16(): pd.Int16Dtype(), pa.int32(): pd.Int32Dtype()}


def load_traces(path: str | os.PathLike[str]) -> Traces:
    """The traces in a folder, of an unfinished run too (`complete` says which). Reads no row.

    Raises:
        UsageError: there are none, or a listed file is missing, of another size, or of another run's schema.
    """
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
    """One run's rows, in the folder `path`.

    `where`, in what follows, chooses rows: a `pyarrow.dataset` expression, or tuples as pyarrow's `filters`, such
    as [("split", "==", "tuning"), ("js", "<", 0.1)]. A file found damaged while it is read is a UsageError that
    names it; so is a column or a table that there is not.
    """

    path: Path
    manifest: Manifest
    shards: tuple[Shard, ...]

    @property
    def complete(self) -> bool:
        """All portions are there."""
        return len(self.shards) == self.manifest.portions

    @property
    def tokens(self) -> ds.Dataset:
        """One row a drafted token. A dataset keeps what it learns of each shard (100 kB): `batches` takes less."""
        return self._dataset("tokens")

    @property
    def completions(self) -> ds.Dataset:
        """One row a problem."""
        return self._dataset("completions")

    @property
    def rounds(self) -> ds.Dataset:
        """One row a completion's round; of on-policy traces."""
        return self._dataset("rounds")

    def batches(
        self, columns: Sequence[str] | None = None, where: Any = None, table: str = "tokens"
    ) -> Iterator[pa.Table]:
        """The rows, a portion at a time: whole completions, in order, in the memory that one portion takes.

        Portions where `where` leaves no row are passed over.
        """
        names, condition = self._asked(columns, where, table)
        for entry in self._files(table):
            rows = read_file(self.path, entry, self._schema(table), names, condition)
            if rows.num_rows:
                yield rows

    def to_pandas(self, columns: Sequence[str] | None = None, where: Any = None, table: str = "tokens") -> pd.DataFrame:
        """The rows in memory. Columns that may be null have pandas's nullable types, the others NumPy's."""
        rows = pa.concat_tables([self._no_rows(columns, table), *self.batches(columns, where, table)])
        frame: pd.DataFrame = rows.to_pandas()
        for field in rows.schema:
            if field.nullable:
                frame[field.name] = rows[field.name].to_pandas(types_mapper=_NULLABLE.get).array
        return frame

    def to_hf(self, columns: Sequence[str] | None = None, table: str = "tokens") -> Any:
        """A `datasets.Dataset`, memory-mapped from an uncompressed copy in the cache of `datasets`."""
        from datasets import Dataset, load_dataset
        from datasets.exceptions import DatasetGenerationError

        none = self._no_rows(columns, table)
        if not self.shards:
            return Dataset(none)
        files = [glob.escape(str(self.path / entry.path)) for entry in self._files(table)]
        try:
            return load_dataset(
                "parquet", data_files=files, split="train", columns=none.column_names, fragment_scan_options=CHECKED
            ).select_columns(none.column_names)
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
        names, _ = self._asked(columns, None, table)
        return self._schema(table).empty_table().select(names)

    def _dataset(self, table: str) -> ds.Dataset:
        schema = self._schema(table)
        paths = [str(self.path / entry.path) for entry in self._files(table)]
        return ds.FileSystemDataset.from_paths(paths, schema, FORMAT, FILES)

    def _asked(self, columns: Sequence[str] | None, where: Any, table: str) -> tuple[list[str], ds.Expression | None]:
        """Names and an expression that every file can be read with."""
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
