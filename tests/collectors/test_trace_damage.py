"""Damage to the manifest, the listing, the files or the rows of a trace folder is found and named."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from fsd_collectors.manifest import Manifest
from fsd_collectors.store.reading import Traces, load_traces
from fsd_collectors.store.shard_file import checksum, schemas
from fsd_collectors.store.verifying import notes, verify
from fsd_common.files import temporary_of
from support.messages import usage_error, usage_error_of
from support.traces.rows import ON_POLICY, manifest, portion, replace_column, write

ALONG = manifest(hidden=4)
ON = manifest(hidden=4, **ON_POLICY)
LISTED = "shards.jsonl"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("whole"), ON)


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    """A complete on-policy run to be damaged."""
    return Path(shutil.copytree(whole, tmp_path / "traces"))


def edit(path: Path, **facts: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | facts))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda path: path.unlink(), "manifest.json cannot be read (No such file or directory)"),
        (lambda path: path.write_text("{"), "is not JSON: Expecting"),
        (lambda path: path.write_bytes(b"\xff\xfe{"), "is not JSON: 'utf-8' codec"),
        (lambda path: path.write_text("[" * 100_000), "is not JSON: it is nested too deeply"),
        (lambda path: path.write_text('{"seed": 0, "seed": 0}'), "is not JSON: 'seed' is there twice"),
        (lambda path: path.write_text('{"seed": NaN}'), "is not JSON: NaN is not a number of JSON"),
        (lambda path: path.write_text("[]"), "is not one of traces"),
        (
            lambda path: edit(path, schema_version=2),
            "has schema_version 2, but this fsd-calib reads 1; upgrade fsd-calib",
        ),
        (lambda path: edit(path, schema_version=0), "is not one of traces: its schema_version is 0"),
        (lambda path: edit(path, portion=0), "is not valid: portion: "),
        (lambda path: edit(path, colour="red"), "is not valid: colour: "),
    ],
)
@pytest.mark.parametrize("use", [load_traces, verify, notes])
def test_a_manifest_that_cannot_be_used_is_named(
    folder: Path, damage: Callable[[Path], None], said: str, use: Callable[[Path], object]
) -> None:
    damage(folder / "manifest.json")
    message = usage_error(lambda: use(folder))
    assert str(folder) in message
    assert said in message


@pytest.mark.parametrize("name", ["manifest.json", "shards.jsonl"])
def test_a_file_of_a_terabyte_is_refused(folder: Path, name: str) -> None:
    os.truncate(folder / name, 1 << 40)
    assert f"{name} cannot be read (it has 1,099,511,627,776 bytes" in usage_error(lambda: load_traces(folder))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["manifest.json", "shards.jsonl"])
def test_a_fifo_is_refused_at_once(folder: Path, name: str) -> None:
    """Nothing writes to it, so reading it would wait for ever."""
    (folder / name).unlink()
    os.mkfifo(folder / name)
    load = "from fsd_collectors.store.reading import load_traces\nload_traces(sys.argv[1])"
    assert f"{name} cannot be read (it is not a regular file)" in usage_error_of(load, folder)


# --- damaged ----------------------------------------------------------------------------------------------


def change_page(path: Path) -> None:
    """Changes a byte in the first row group's second column."""
    column, content = pq.read_metadata(path).row_group(0).column(1), bytearray(path.read_bytes())
    content[column.data_page_offset + column.total_compressed_size // 2] ^= 0xFF
    path.write_bytes(content)


def use(traces: Traces) -> None:
    for table in ("tokens", "completions", "rounds"):
        traces.to_pandas(table=table)


SHARDS = ["tokens/00001.parquet", "completions/00002.parquet", "rounds/00003.parquet"]


@pytest.mark.parametrize("shard", SHARDS)
def test_a_changed_byte_is_found_where_it_is_read(folder: Path, shard: str, monkeypatch: pytest.MonkeyPatch) -> None:
    change_page(folder / shard)
    traces = load_traces(folder)
    assert shard in usage_error(lambda: use(traces))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", folder / "cache")
    assert shard in usage_error(lambda: traces.to_hf(table=shard.partition("/")[0]))
    assert [shard in fault and "SHA-256" in fault for fault in verify(folder)] == [True]


def foreign(folder: Path, shard: str, change: Callable[[pa.Table], pa.Table]) -> None:
    """Replaces a shard by another file of the same size, listed with its checksum."""
    table, number = shard.removesuffix(".parquet").split("/")
    rows = change(pq.read_table(folder / shard))
    pq.write_table(rows, folder / shard)
    relist(folder, int(number), table, rows.num_rows)


def relist(folder: Path, number: int, table: str, rows: int) -> None:
    path = folder / table / f"{number:05d}.parquet"
    lines = [json.loads(line) for line in (folder / LISTED).read_text().splitlines()]
    entry = next(file for file in lines[number]["files"] if file["path"].startswith(table))
    entry |= {"bytes": path.stat().st_size, "sha256": checksum(path), "rows": rows}
    (folder / LISTED).write_text("".join(json.dumps(line) + "\n" for line in lines))


def misname(folder: Path, shard: str) -> None:
    """A column name that is not valid UTF-8."""
    content = (folder / shard).read_bytes()
    (folder / shard).write_bytes(content.replace(b"split", b"spl\xe2("))


def of_another_run(table: pa.Table) -> pa.Table:
    return table.replace_schema_metadata({**table.schema.metadata, b"fsd_run": b"0123456789ab"})


@pytest.mark.parametrize("shard", SHARDS)
@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda folder, shard: (folder / shard).unlink(), "No such file"),
        (misname, "'utf-8' codec can't decode"),
        (lambda folder, shard: (folder / shard).write_bytes((folder / shard).read_bytes()[:-100]), "are listed"),
        (lambda folder, shard: foreign(folder, shard, lambda t: t.drop_columns(["split"])), "no column 'split'"),
        (lambda folder, shard: foreign(folder, shard, lambda t: t.append_column("x", t["run"])), "its columns are"),
        (
            lambda folder, shard: foreign(folder, shard, replace_column("problem", 1.0)),
            "its column pyarrow.Field<problem",
        ),
        (lambda folder, shard: foreign(folder, shard, of_another_run), "it is of run 0123456789ab, not"),
    ],
)
def test_a_shard_that_is_missing_short_or_foreign_is_named(
    folder: Path, shard: str, damage: Callable[[Path, str], None], said: str
) -> None:
    traces = load_traces(folder)
    damage(folder, shard)
    for message in (usage_error(lambda: load_traces(folder)), *verify(folder)):
        assert shard in message
        assert said in message
    if "listed" not in said:
        assert shard in usage_error(lambda: use(traces))


def test_a_number_of_rows_that_is_not_the_listed_one_is_found(folder: Path) -> None:
    relist(folder, 1, "rounds", 7)
    [fault] = verify(folder)
    assert "rounds/00001.parquet" in fault
    assert "rows, but 7 are listed" in fault


def test_a_run_with_a_missing_shard_is_not_continued(folder: Path) -> None:
    (folder / SHARDS[0]).unlink()
    assert SHARDS[0] in usage_error(lambda: write(folder, ON))


# --- the listing ------------------------------------------------------------------------------------------


def test_a_missing_listing_is_refused(folder: Path) -> None:
    (folder / LISTED).unlink()
    said = f"folder {str(folder)!r}: shards.jsonl cannot be read (No such file or directory)"
    assert said in usage_error(lambda: load_traces(folder))
    assert said in usage_error(lambda: write(folder, ON))
    assert said in usage_error(lambda: load_traces(folder))  # the writer made no empty one
    assert said in verify(folder)[0]


@pytest.mark.parametrize("name", ["shards.jsonl", ".lock"])
def test_a_link_that_was_planted_is_not_written_through(name: str, tmp_path: Path) -> None:
    folder, victim, of = tmp_path / "traces", tmp_path / "victim", manifest(16, portion=8)
    write(folder, of, portions=1)
    (folder / name).rename(victim)
    (folder / name).symlink_to(victim)
    before = victim.read_bytes()
    assert "Too many levels of symbolic links" in usage_error(lambda: write(folder, of))
    assert victim.read_bytes() == before


def test_a_torn_last_line_is_a_portion_that_was_not_finished(folder: Path) -> None:
    complete = (folder / LISTED).read_bytes()
    torn = complete[:-1]
    for length in (len(torn), len(torn) - 40, complete[:-1].rindex(b"\n") + 2):
        (folder / LISTED).write_bytes(complete[:length])
        assert len(load_traces(folder).shards) == 3
        assert notes(folder)[0] == "3 of 4 portions are finished"
        assert verify(folder) == []
        write(folder, ON)
        assert (folder / LISTED).read_bytes() == complete


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda lines: [*lines[:1], b"\0\0\0", *lines[2:]], "line 2, is damaged (Invalid JSON: expected"),
        (lambda lines: [*lines[:1], lines[1][:50], *lines[2:]], "line 2, is damaged (Invalid JSON: EOF"),
        (lambda lines: [lines[0], *lines[2:]], "line 2, is of portion 2"),
        (lambda lines: [lines[0], *lines], "line 2, is of portion 0"),
        (lambda lines: [lines[0].replace(b"tokens/", b"../token"), *lines[1:]], "line 1, is damaged"),
        (lambda lines: [lines[0].replace(b"rounds/", b"tokens/"), *lines[1:]], "line 1, is of portion 0 with"),
    ],
)
def test_an_invalid_listing_is_refused_with_its_line(
    folder: Path, change: Callable[[list[bytes]], list[bytes]], said: str
) -> None:
    lines = (folder / LISTED).read_bytes().splitlines()
    (folder / LISTED).write_bytes(b"".join(line + b"\n" for line in change(lines)))
    for message in (usage_error(lambda: load_traces(folder)), usage_error(lambda: write(folder, ON)), *verify(folder)):
        assert LISTED in message
        assert said in message


# --- verifying rows ---------------------------------------------------------------------------------------


def altered(name: str, rows: list[int], value: Any) -> Callable[[pa.Table], pa.Table]:
    def change(table: pa.Table) -> pa.Table:
        values = table[name].to_pylist()
        for row in rows:
            values[row] = value
        field = table.schema.field(name)
        return table.set_column(table.column_names.index(name), field, pa.array(values, field.type))

    return change


def reordered(order: Callable[[int], list[int]]) -> Callable[[pa.Table], pa.Table]:
    return lambda table: table.take(order(table.num_rows))


@pytest.mark.parametrize(
    ("of", "shard", "change", "said"),
    [
        (ALONG, "tokens/00001", altered("run", [0], "cafe"), "tokens has rows of run cafe"),
        (ALONG, "tokens/00001", altered("split", [3], "dev"), "in the split dev, completions has none"),
        (ALONG, "tokens/00001", altered("problem", [0], 7), "rows of problem 7 in the split"),
        (ALONG, "tokens/00001", altered("position", [2], 3), "tokens has 1 rows out of order"),
        (ON, "rounds/00001", altered("problem", [0], 7), "rounds has rows of problem 7"),
        (ON, "completions/00001", reordered(lambda n: [*range(1, n)]), "it has 7 completions, 8 are listed"),
        (ON, "completions/00001", reordered(lambda n: [0, 0, *range(2, n)]), "a problem has two completions"),
    ],
)
def test_misplaced_rows_are_found(
    of: Manifest, shard: str, change: Callable[[pa.Table], pa.Table], said: str, tmp_path: Path
) -> None:
    foreign(write(tmp_path, of), f"{shard}.parquet", change)
    faults = verify(tmp_path)
    assert any(said in fault for fault in faults), faults
    assert all(fault.startswith("portion 1: ") for fault in faults)


def first_completion(table: pa.Table) -> pa.Table:
    return table.filter(pc.field("problem") == table["problem"][0])


OUT_OF_ORDER: dict[str, tuple[Manifest, Callable[[pa.Table], pa.Table]]] = {
    "first row gone": (ALONG, reordered(lambda n: [*range(1, n)])),
    "row within gone": (ALONG, reordered(lambda n: [0, *range(2, n)])),
    "two rows swapped": (ALONG, reordered(lambda n: [1, 0, *range(2, n)])),
    "first row last": (ALONG, reordered(lambda n: [*range(1, n), 0])),
    "completion doubled": (ALONG, lambda table: pa.concat_tables([table, first_completion(table)])),
    "row of a round gone": (ON, reordered(lambda n: [*range(1, n)])),
    "round doubled": (ON, reordered(lambda n: [*range(5), *range(n)])),
    "rounds swapped": (ON, reordered(lambda n: [*range(5, 10), *range(5), *range(10, n)])),
    "row in another round": (ON, altered("round", [0], 3)),
}


@pytest.mark.parametrize(("of", "change"), OUT_OF_ORDER.values(), ids=OUT_OF_ORDER)
def test_tokens_out_of_order_are_found(of: Manifest, change: Callable[[pa.Table], pa.Table], tmp_path: Path) -> None:
    foreign(write(tmp_path, of), "tokens/00001.parquet", change)
    [fault] = verify(tmp_path)
    assert fault.startswith("portion 1: tokens has ")
    assert "rows out of order" in fault


def test_a_problem_in_two_portions_is_found(folder: Path) -> None:
    for table in schemas(ON):
        source, place = folder / table / "00000.parquet", folder / table / "00002.parquet"
        shutil.copy(source, place)
        relist(folder, 2, table, pq.read_metadata(place).num_rows)
    problems = portion(ON, 0)["completions"]["problem"].to_pylist()
    assert verify(folder) == [f"portion 2: problem {problem} is in portion 0 too" for problem in problems]


def test_files_that_are_not_listed_are_named(folder: Path) -> None:
    lines = (folder / LISTED).read_text().splitlines(keepends=True)
    (folder / LISTED).write_text("".join(lines[:2]))
    unfinished = temporary_of(folder / "tokens" / "00002.parquet")
    unfinished.write_bytes(b"PAR1")
    left = ["completions/00002.parquet", "rounds/00002.parquet", f"tokens/{unfinished.name}", "tokens/00002.parquet"]
    assert [note.split(" is left")[0] for note in notes(folder)] == ["2 of 4 portions are finished", *left]
    strange = [f"{table}/00003.parquet" for table in ("completions", "rounds", "tokens")]
    assert [fault.split(" is not listed")[0] for fault in verify(folder)] == strange
    write(folder, ON)
    assert (verify(folder), notes(folder)) == ([], [])
