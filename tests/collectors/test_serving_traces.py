"""What the traces of served texts change for a folder: portions of any size, and tables of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fsd_collectors.manifest import Manifest
from fsd_collectors.schema import COMPLETIONS, token_columns
from fsd_collectors.store.reading import load_traces
from fsd_collectors.store.shard_file import schemas
from fsd_collectors.store.verifying import notes, verify
from fsd_collectors.store.writing import TraceWriter
from support.messages import usage_error
from support.traces.rows import ON_POLICY, manifest, portion, write

SERVING: dict[str, Any] = {**ON_POLICY, "way": "serving"}
OF = manifest(20, **SERVING)


def served(of: Manifest, first: int, count: int) -> dict[str, pa.Table]:
    """Returns the tables of `count` texts: those of an on-policy portion, with what serving does not know left out."""
    ours = portion(of.model_copy(update={"portion": 16, "seed": first}), 0)
    problems = ours["completions"]["problem"].to_pylist()[:count]
    tables = {}
    for name in ("tokens", "completions"):
        rows = ours[name].filter(pa.compute.is_in(ours[name]["problem"], pa.array(problems)))
        numbers = pa.array([first + problems.index(each) for each in rows["problem"].to_pylist()], pa.int64())
        rows = _with(_with(rows, "problem", numbers), "correct", pa.nulls(len(rows), pa.bool_()))
        tables[name] = _with(rows, "run", pa.array([of.run] * len(rows)))
    return tables


def _with(rows: pa.Table, name: str, values: pa.Array) -> pa.Table:
    return rows.set_column(rows.column_names.index(name), rows.schema.field(name), values)


@pytest.fixture(autouse=True)
def fuzzy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives the synthetic rows the column that only serving has."""
    from support.traces import rows

    drawn = rows._decision
    monkeypatch.setattr(rows, "_decision", lambda random, count: drawn(random, count) | {"fuzzy": np.ones(count, bool)})


def test_portions_may_have_any_number_of_texts_up_to_the_run_s_end(tmp_path: Path) -> None:
    with TraceWriter(tmp_path, OF) as writer:
        for number, count in enumerate((8, 3, 8)):
            writer.write(number, served(OF, writer.problems, count))
        assert not load_traces(tmp_path).complete
        assert notes(tmp_path) == ["19 of 20 texts are recorded"]
        with pytest.raises(ValueError, match="portion 3 has 2 completions; in this run it has 1"):
            writer.write(3, served(OF, 19, 2))
        writer.write(3, served(OF, 19, 1))
    assert load_traces(tmp_path).complete
    assert (verify(tmp_path), notes(tmp_path)) == ([], [])
    too_many = "portion 0 has 9 completions; in this run it has 1 to 8"
    with TraceWriter(tmp_path / "more", OF) as writer, pytest.raises(ValueError, match=too_many):
        writer.write(0, served(OF, 0, 9))


def test_other_ways_have_the_columns_that_earlier_versions_wrote() -> None:
    nullable = {"round", "draft_position", "accepted", "accepted_1_back", "accepted_2_back", "accepted_3_back"}
    for of in (manifest(), manifest(**ON_POLICY)):
        tables = schemas(of)
        assert {field.name for field in tables["tokens"] if field.nullable} == nullable
        assert tables["tokens"].names == [column.name for column in token_columns(of.scores)]
        assert not any(field.nullable for field in tables["completions"])
        assert tables["completions"].names == [column.name for column in COMPLETIONS]


def test_there_is_no_table_of_rounds(tmp_path: Path) -> None:
    with TraceWriter(tmp_path, OF) as writer:
        writer.write(0, served(OF, 0, 8))
    assert usage_error(lambda: load_traces(tmp_path).rounds) == (
        "there is no table 'rounds'; serving traces have tokens, completions"
    )


def test_a_portion_that_cannot_be_written_leaves_no_file(tmp_path: Path) -> None:
    of = manifest(**ON_POLICY)
    write(tmp_path, of, portions=1)
    (tmp_path / "completions/00001.parquet/in the way").mkdir(parents=True)
    assert "its 1 finished portions are intact" in usage_error(lambda: write(tmp_path, of, portions=2))
    assert [path.name for path in (tmp_path / "tokens").iterdir()] == ["00000.parquet"]
    (tmp_path / "completions/00001.parquet/in the way").rmdir()
    (tmp_path / "completions/00001.parquet").rmdir()
    write(tmp_path, of)
    assert load_traces(tmp_path).complete
    assert verify(tmp_path) == []
