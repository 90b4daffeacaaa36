"""Writing and reading of a trace folder, and what both refuse."""

from __future__ import annotations

import glob
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from fsd_collectors.manifest import Manifest
from fsd_collectors.store.reading import load_traces
from fsd_collectors.store.shard_file import schemas
from fsd_collectors.store.verifying import notes, verify
from fsd_collectors.store.writing import TraceWriter
from support.messages import usage_error
from support.traces.rows import ON_POLICY, VALUES, manifest, portion, replace_column, write

ALONG = manifest(hidden=4)
ON = manifest(hidden=4, **ON_POLICY)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps the cache of `datasets`, which copies what it loads, in a temporary folder."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("whole"), ON)


def expected(of: Manifest, table: str) -> pa.Table:
    return pa.concat_tables([portion(of, number)[table] for number in range(of.portions)])


def same(actual: list[Any], reference: list[Any]) -> bool:
    """Returns whether the values are equal, nulls included, whatever the sequence type of hidden states."""
    return len(actual) == len(reference) and all(
        np.array_equal(a, b) if isinstance(b, list) else a == b and (a is None) == (b is None)
        for a, b in zip(actual, reference, strict=True)
    )


# --- reading ----------------------------------------------------------------------------------------------


@pytest.mark.thinned(every=6)
@pytest.mark.parametrize("of", [ALONG, ON], ids=["along", "on"])
@pytest.mark.parametrize("table", ["tokens", "completions", "rounds"])
def test_every_reader_returns_every_column(of: Manifest, table: str, tmp_path: Path) -> None:
    if table not in schemas(of):
        assert f"no table {table!r}" in usage_error(lambda: load_traces(write(tmp_path, of)).rounds)
        return
    traces = load_traces(write(tmp_path / "it's [traces]", of))
    reference = expected(of, table)
    files = [str(traces.path / shard.file(table).path) for shard in traces.shards]
    frame, hf = traces.to_pandas(table=table), traces.to_hf(table=table)
    plain = datasets.load_dataset(
        "parquet", data_files=[glob.escape(file) for file in files], split="train"
    ).with_format("arrow")[:]
    duck = duckdb.read_parquet([glob.escape(file) for file in files]).to_arrow_table()
    for name in reference.column_names:
        values = reference[name].to_pylist()
        assert same([None if v is pd.NA else v for v in frame[name].tolist()], values), name
        assert same(hf.with_format("arrow")[:][name].to_pylist(), values), name
        assert same(plain[name].to_pylist(), values), name
        assert same(duck[name].to_pylist(), values), name
        assert same(getattr(traces, table).to_table()[name].to_pylist(), values), name
    assert pa.concat_tables(traces.batches(table=table)).equals(reference)
    assert hf.column_names == list(frame.columns) == reference.column_names


def test_types_do_not_depend_on_which_rows_are_read(whole: Path) -> None:
    traces = load_traces(whole)
    none = traces.to_pandas(where=[("position", "<", 0)])
    assert not len(none)
    assert none.dtypes.equals(traces.to_pandas().dtypes)
    assert [str(none[name].dtype) for name in ("round", "accepted", "js")] == ["Int32", "boolean", "float32"]


@pytest.mark.parametrize("where", [[("split", "==", "tuning"), ("js", "<", 0.1)],
                                   (ds.field("split") == "tuning") & (ds.field("js") < 0.1)])  # fmt: skip
def test_columns_and_rows_are_selected(whole: Path, where: Any) -> None:
    frame = load_traces(whole).to_pandas(["tv", "problem"], where)
    every = expected(ON, "tokens").to_pandas()
    reference = every[(every["split"] == "tuning") & (every["js"] < 0.1)][["tv", "problem"]].reset_index(drop=True)
    assert 0 < len(frame) < len(every)
    pd.testing.assert_frame_equal(frame, reference)
    assert load_traces(whole).to_hf(["tv", "problem"]).column_names == ["tv", "problem"]


def test_batches_are_whole_completions_and_never_empty(whole: Path) -> None:
    traces, last = load_traces(whole), portion(ON, 3)["completions"]["problem"][0].as_py()
    assert [len(set(rows["problem"].to_pylist())) for rows in traces.batches(["problem"])] == [8, 8, 8, 6]
    assert [set(rows["problem"].to_pylist()) for rows in traces.batches(where=[("problem", "==", last)])] == [{last}]


@pytest.mark.parametrize(
    ("query", "complaint"),
    [
        ({"columns": ["jsd"]}, "has no column 'jsd'; it has run, problem"),
        ({"where": [("jsd", "<", 1)]}, "does not suit table tokens: No match for FieldRef.Name(jsd)"),
        ({"where": [("js", "<")]}, "does not suit table tokens: not enough values"),
        ({"where": ds.field("js") + 1}, "must evaluate to bool"),
        ({"table": "token"}, "there is no table 'token'; on-policy traces have tokens, completions, rounds"),
    ],
)
def test_invalid_queries_are_refused(whole: Path, query: dict[str, Any], complaint: str) -> None:
    assert complaint in usage_error(lambda: load_traces(whole).to_pandas(**query))


def test_an_unfinished_run_is_readable_and_marked(tmp_path: Path) -> None:
    write(tmp_path, ALONG, portions=0)
    assert load_traces(tmp_path).to_pandas().columns.tolist() == schemas(ALONG)["tokens"].names
    assert load_traces(tmp_path).to_hf(["js"], table="tokens").shape == (0, 1)
    assert load_traces(tmp_path).tokens.count_rows() == 0
    write(tmp_path, ALONG, portions=2)
    traces = load_traces(tmp_path)
    assert not traces.complete
    assert traces.to_pandas(table="completions")["problem"].size == 16
    assert (verify(tmp_path), notes(tmp_path)) == ([], ["2 of 4 portions are finished"])
    assert load_traces(write(tmp_path, ALONG)).complete
    assert (verify(tmp_path), notes(tmp_path)) == ([], [])


# --- writing ----------------------------------------------------------------------------------------------


def test_floats_are_split_and_strings_are_not_repeated(whole: Path) -> None:
    group = pq.read_metadata(whole / "tokens/00000.parquet").row_group(0)
    columns = {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}
    assert {column.compression for column in columns.values()} == {"ZSTD"}
    assert "BYTE_STREAM_SPLIT" in columns["js"].encodings
    assert "RLE_DICTIONARY" in columns["run"].encodings


def changed(table: str, change: Callable[[pa.Table], pa.Table]) -> dict[str, pa.Table]:
    tables = portion(ALONG, 0)
    return {**tables, table: change(tables[table])}


@pytest.mark.parametrize(
    ("number", "tables", "complaint"),
    [
        (1, portion(ALONG, 1), "portion 1 does not follow the 0 finished ones"),
        (0, portion(ON, 0), "a portion of this run has"),
        (0, changed("tokens", lambda t: t.drop_columns(["js"])), r"\['js'\] are missing"),
        (0, changed("tokens", lambda t: t.append_column("more", t["js"])), r"\['more'\] are unknown"),
        (0, changed("tokens", lambda t: t.append_column("js", t["js"])), "doubled"),
        (
            0,
            changed("tokens", replace_column("draft_rank", 2**31)),
            "column 'draft_rank' does not fit int32: .*2147483648",
        ),
        (0, changed("tokens", replace_column("correct", "yes and no")), "column 'correct' does not fit bool"),
        (0, changed("tokens", replace_column("js", None)), "column 'js' has [0-9]+ nulls"),
        (0, changed("completions", lambda t: t.slice(1)), "portion 0 has 7 completions; in this run it has 8"),
    ],
)
def test_invalid_portions_are_not_written(
    number: int, tables: dict[str, pa.Table], complaint: str, tmp_path: Path
) -> None:
    with TraceWriter(tmp_path, ALONG) as writer, pytest.raises(ValueError, match=complaint):
        writer.write(number, tables)
    assert not list(tmp_path.glob("*/*"))


def test_columns_in_another_order_and_of_wider_types_are_the_same_rows(tmp_path: Path) -> None:
    wide = pa.schema(
        [pa.field(f.name, pa.int64() if f.type == pa.int32() else f.type) for f in schemas(ALONG)["tokens"]]
    )
    with TraceWriter(tmp_path, ALONG) as writer:
        writer.write(0, changed("tokens", lambda t: t.cast(wide).select(t.column_names[::-1])))
    assert next(load_traces(tmp_path).batches()).equals(portion(ALONG, 0)["tokens"])


# --- refusing ---------------------------------------------------------------------------------------------


def test_another_run_is_refused_by_its_first_difference(tmp_path: Path) -> None:
    folder = write(tmp_path, ON, portions=2)
    before = sorted((path, path.stat().st_mtime_ns) for path in folder.rglob("*.parquet"))
    message = usage_error(lambda: write(folder, manifest(hidden=4, **ON_POLICY, on="processed")))
    assert (
        f"folder {str(folder)!r} holds traces of another run: on 'raw', not 'processed'; choose another out" in message
    )
    assert before == sorted((path, path.stat().st_mtime_ns) for path in folder.rglob("*.parquet"))


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"target": {**VALUES["target"], "dtype": "bfloat16"}}, "target.dtype 'float32', not 'bfloat16'"),
        ({"task": {**VALUES["task"], "prompts": "other"}}, "task.prompts 'p', not 'other'"),
        (ON_POLICY, "way 'along-target', not 'on-policy'"),
        ({"versions": {"torch": "2", "engine": "3"}}, "versions {'torch': '2'}, not {'torch': '2', 'engine': '3'}"),
        ({"versions": {"torch": "3"}}, "versions.torch '2', not '3'"),
        ({"device": "cuda:1"}, "device 'cpu', not 'cuda'"),
    ],
)
def test_a_difference_names_the_innermost_fact(changes: dict[str, Any], complaint: str) -> None:
    actual = Manifest.model_validate({**VALUES, **changes}).difference(Manifest.model_validate(VALUES))
    assert actual is not None
    assert complaint in actual
    assert Manifest.model_validate(VALUES).difference(Manifest.model_validate(VALUES)) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"target": {**VALUES["target"], "id": "elsewhere/big", "revision": "c0ffee"}},
        {"task": {**VALUES["task"], "name": "mine", "source": "/other/path.jsonl"}},
        {"versions": {"torch": "2", "python": "3.12.9", "pyarrow": "99", "fsd-calib": "99"}},
        {"seed": 1},
    ],
)
def test_what_rows_do_not_depend_on_is_no_difference(changes: dict[str, Any]) -> None:
    """A place, a name, a version that changes no number, and a seed where nothing is drawn."""
    other = Manifest.model_validate({**VALUES, **changes})
    assert other.difference(Manifest.model_validate(VALUES)) is None


@pytest.mark.parametrize("drawing", [{"sampling": {**VALUES["sampling"], "temperature": 0.5}}, {"projected": True}])
def test_a_seed_is_a_difference_where_something_is_drawn(drawing: dict[str, Any]) -> None:
    mine, theirs = (Manifest.model_validate({**VALUES, **drawing, "seed": seed}) for seed in (1, 0))
    assert mine.difference(theirs) == "seed 0, not 1"


def test_two_devices_of_a_type_are_no_difference() -> None:
    mine, theirs = (Manifest.model_validate({**VALUES, "device": f"cuda:{index}"}) for index in (1, 0))
    assert mine.difference(theirs) is None


def test_a_run_without_finished_portions_is_replaced(tmp_path: Path) -> None:
    with TraceWriter(tmp_path, manifest(batch_size=64, **ON_POLICY)):
        (tmp_path / "rounds" / "00000.parquet").write_bytes(b"killed before it was listed")
    other = manifest(problems=30)
    write(tmp_path, other)
    assert load_traces(tmp_path).manifest == other
    assert verify(tmp_path) == []


def test_a_folder_of_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("")
    assert "holds 'thesis.tex' and no manifest.json; choose another out" in usage_error(lambda: write(tmp_path, ALONG))
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_second_collector_is_refused_until_the_first_has_finished(tmp_path: Path) -> None:
    with TraceWriter(tmp_path, ALONG) as writer:
        message = usage_error(lambda: write(tmp_path, ALONG))
        assert "is being written by another collector; choose another out, or wait" in message
        writer.write(0, portion(ALONG, 0))
    assert verify(write(tmp_path, ALONG)) == []


def test_a_file_in_the_place_of_the_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    assert "cannot be written (File exists)" in usage_error(lambda: write(tmp_path / "out", ALONG))
