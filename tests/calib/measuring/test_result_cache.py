"""The result cache: its hits, and damage to its files, with real processes that are killed. Without models."""

from __future__ import annotations

import dataclasses
import math
import os
import random
import sqlite3
import time
import warnings
from collections.abc import Iterable
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsd_calib.engines.base import KeyedPrompt
from fsd_calib.engines.cache_key import CacheKey
from fsd_calib.measuring.result_cache import CachedText, ResultCache
from fsd_calib.storage import LOGS
from fsd_common.errors import UsageError
from fsd_common.files import set_aside
from fsd_decoding.divergence import DIVERGENCES
from fsd_decoding.engine.result import Result
from fsd_decoding.scores import FAMILIES
from support.calibration.cached_results import KEY, QUERY, key, result
from support.child_processes import kill, remaining_messages, start_process


def is_hit(threshold: float | None, *, own: float | None, lo: float, hi: float, cache_key: CacheKey = KEY) -> bool:
    with ResultCache(None) as store:
        store.add(cache_key, QUERY, own, result(lo=lo, hi=hi))
        return bool(store.find(cache_key, [QUERY], threshold))


def test_a_row_is_returned_as_it_was_added() -> None:
    with ResultCache(None) as store:
        added = store.add(KEY, QUERY, 0.2, result("vier 🙂\0\n", tokens=7))
        assert store.find(KEY, [QUERY], 0.2) == {0: added}
        assert added == CachedText(0.2, 0.1, 0.3, "vier 🙂\0\n", 8, 3, 15, 5)  # 7 tokens and the EOS


def test_hits_are_returned_by_the_index_of_the_prompt() -> None:
    others = [KeyedPrompt(5, "2 + 3"), KeyedPrompt(6, "2 + 2"), QUERY, QUERY]
    with ResultCache(None) as store:
        store.add(KEY, QUERY, 0.2, result())
        assert set(store.find(KEY, others, 0.2)) == {2, 3}
        assert not store.find(key(max_new_tokens=255), others, 0.2)
        assert not store.find(KEY, [], 0.2)


@given(st.floats(0, 1), st.floats(0, 1), st.floats(-0.1, 1.1), st.sampled_from(["float64", "float32", "bfloat16"]))
def test_a_row_is_a_hit_inside_its_interval_by_the_margin(a: float, b: float, t: float, dtype: str) -> None:
    lo, hi = sorted((a, b))
    cache_key = key(dtype)
    margin = cache_key.margin(t)
    inside = lo <= t - margin and t + margin < hi
    assert is_hit(t, own=2.0, lo=lo, hi=hi, cache_key=cache_key) == inside
    assert is_hit(t, own=t, lo=lo, hi=hi, cache_key=cache_key)  # independent of the margin


@given(st.floats(0, 40), st.floats(-1, 1), st.sampled_from(["float32", "float16", "bfloat16"]))
def test_rounding_noise_within_the_margin_does_not_change_acceptance(d: float, by: float, dtype: str) -> None:
    """A D that numerical noise moves by at most c sqrt(D) stays on the same side of T."""
    cache_key = key(dtype, "kl_qp")
    c = math.sqrt(cache_key.margin(0.0))
    moved = max(0.0, d + by * c * math.sqrt(d))
    for t in (moved, (d + moved) / 2):  # thresholds between the two: never a hit of an interval that ends at D
        assert not is_hit(t, own=None, lo=d, hi=math.inf, cache_key=cache_key)
        assert not is_hit(t, own=None, lo=-math.inf, hi=d, cache_key=cache_key)


@pytest.mark.parametrize(
    ("dtype", "score", "at", "margin"),
    [("float64", "js", 1.0, 1e-12), ("float32", "js", 0.06, 2.94e-5), ("float32", "js@50", 0.06, 2.94e-5),
     ("float32", "kl_qp", 10.0, 8.85e-4), ("bfloat16", "tv", 0.06, 0.0705), ("float16", "hellinger", 0.25, 0.0336),
     ("float32", "doubt", 0.25, 2.45e-4), ("float8_e4m3fn", "js", 0.06, math.inf), ("float64", "mine", 1.0, math.inf),
     ("float32", "gated-js@50@0.9", 0.06, 2.94e-5), ("float32", "margin@10", 0.5, 1e-5),
     ("float32", "fly@1", 0.0, 2.4e-5), ("float64", "typical", 1.0, 1e-12), ("bfloat16", "margin", 0.5, math.inf)],
)  # fmt: skip
def test_margins_match_the_measured_noise(dtype: str, score: str, at: float, margin: float) -> None:
    assert key(dtype, score).margin(at) == pytest.approx(margin, rel=0.02)


@pytest.mark.parametrize("score", DIVERGENCES)
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_every_score_has_a_margin(score: str, dtype: str) -> None:
    """A new score needs its noise measured, as `cache_key` says; until then only its own T is a hit."""
    assert 0 < key(dtype, score).margin(0.1) < math.inf


@pytest.mark.parametrize("score", FAMILIES)
def test_every_score_has_a_margin_in_32_bits(score: str) -> None:
    assert 0 < key("float32", score).margin(0.1) < 0.01


def test_the_coarser_dtype_of_two_models_sets_the_margin() -> None:
    mixed = {"target": {"dtype": "float32"}, "draft": {"dtype": "bfloat16"}}
    assert key(models=mixed).margin(0.1) == key("bfloat16").margin(0.1)
    assert key(models=mixed | {"draft": "NGram()"}).margin(0.1) == key("float32").margin(0.1)


@pytest.mark.parametrize(
    ("t", "lo", "hi", "expected"),
    [(-1e-9, -math.inf, 0.01, True), (-5.0, -math.inf, 0.01, True), (-math.inf, -math.inf, 0.01, True),
     (-1e-9, 0.0, 0.01, False), (50.0, 0.2, math.inf, True), (0.0, -math.inf, math.inf, True),
     (0.2, 0.2, math.nextafter(0.2, 1), False), (math.inf, 0.2, 9.0, False)],
)  # fmt: skip
def test_infinite_ends_and_thresholds_below_zero(t: float, lo: float, hi: float, expected: bool) -> None:
    assert is_hit(t, own=1.0, lo=lo, hi=hi) == expected


def test_an_unmeasured_dtype_has_hits_at_the_exact_threshold_only() -> None:
    for t in (0.2, -1.0, math.inf):
        assert not is_hit(t, own=0.25, lo=-math.inf, hi=math.inf, cache_key=key("float8_e4m3fn"))
        assert is_hit(t, own=t, lo=-math.inf, hi=math.inf, cache_key=key("float8_e4m3fn"))


def test_a_rule_without_a_threshold_is_found_without_one() -> None:
    assert is_hit(None, own=None, lo=-math.inf, hi=math.inf)
    assert not is_hit(None, own=0.2, lo=-math.inf, hi=math.inf)


def test_a_row_of_the_exact_threshold_is_preferred() -> None:
    with ResultCache(None) as store:
        for t in (0.15, 0.2, 0.25):
            store.add(KEY, QUERY, t, result(str(t)))
        assert store.find(KEY, [QUERY], 0.2)[0].text == "0.2"
        assert store.find(KEY, [QUERY], 0.22)[0].text in ("0.15", "0.2", "0.25")


def test_negative_zero_is_stored_as_zero(tmp_path: Path) -> None:
    with ResultCache(tmp_path / "cache") as store:
        store.add(KEY, QUERY, -0.0, result(lo=-math.inf, hi=-0.0))
        assert store.find(KEY, [QUERY], 0.0)[0].threshold == 0.0


@pytest.mark.slow
def test_a_thousand_problems_are_all_found_at_ten_thresholds(tmp_path: Path) -> None:
    rows = [KeyedPrompt(i, f"problem {i}" * 10) for i in range(1000)]
    with ResultCache(tmp_path / "cache") as store:
        for n in range(10):
            for asked in rows:
                store.add(KEY, asked, n / 10 + 0.02, result("a text " * 40, n / 10, (n + 1) / 10))
        assert sum(len(store.find(KEY, rows, 0.03 + n / 10)) for n in range(10)) == 10_000


def test_equal_keys_have_equal_hashes_and_others_do_not() -> None:
    assert key().hash == key().hash
    other = KEY.setting.under("fsd")
    changed = [dataclasses.replace(KEY, **change) for change in ({"seed": 0}, {"stop": ["a"]}, {"setting": other})]
    assert len({k.hash for k in (KEY, *changed)}) == 4


MANY = [KeyedPrompt(i, f"problem {i}") for i in range(300)]


def texts(seed: int = 0) -> list[Result]:
    rng = random.Random(seed)
    return [result("".join(rng.choices("abc \n0123456789é", k=rng.randrange(400))), rng.random(), 2.0) for _ in MANY]


def filled(path: Path) -> dict[int, CachedText]:
    with ResultCache(path) as store:
        return {i: store.add(KEY, a, 0.2, r) for i, (a, r) in enumerate(zip(MANY, texts(), strict=True))}


def named(path: Path) -> list[str]:
    """Returns the warnings of opening, reading and writing the file, which must succeed whatever it holds."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with ResultCache(path) as store:
            store.find(KEY, MANY, 0.2)
            store.add(KEY, QUERY, 0.9, result())
            assert store.find(KEY, [QUERY], 0.9)
    return [str(warning.message) for warning in caught]


def test_a_person_can_read_the_tables(tmp_path: Path) -> None:
    filled(tmp_path / "cache")
    found = sqlite3.connect(tmp_path / "cache").execute(
        "SELECT keys.key FROM keys JOIN decodings ON hash = decodings.key"
    )
    assert set(found) == {(KEY.json,)}


def test_a_reopened_cache_has_lost_nothing(tmp_path: Path) -> None:
    added = filled(tmp_path / "new folder" / "cache")
    with ResultCache(tmp_path / "new folder" / "cache") as store:
        assert store.find(KEY, MANY, 0.2) == added


@pytest.mark.parametrize("values", ["text = x'ff'", "text = NULL", "lo = NULL, threshold = 0.2", "rounds = 'many'"])
def test_a_row_that_cannot_be_read_renames_the_file(values: str, tmp_path: Path) -> None:
    filled(tmp_path / "cache")
    file = sqlite3.connect(tmp_path / "cache")
    file.execute(f"UPDATE decodings SET {values} WHERE problem = 9")
    file.commit()
    file.close()
    (line,) = named(tmp_path / "cache")
    assert "is damaged (" in line
    assert "\n" not in line


@pytest.mark.parametrize("share", [0.0, 0.001, 0.02, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_renamed(share: float, tmp_path: Path) -> None:
    path = tmp_path / "cache"
    filled(path)
    os.truncate(path, int(share * path.stat().st_size))
    (line,) = named(path)
    assert "is damaged" in line
    assert "\n" not in line
    assert named(path) == []  # the new file is intact


def test_other_files_are_renamed_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "cache"
    for number, content in enumerate((b"{}\n", b"\0" * 5000, random.Random(0).randbytes(100_000)), 1):
        path.write_bytes(content)
        assert "not a database" in named(path)[0] or "it is not a cache" in named(path)[0]
        assert (tmp_path / f"cache.damaged-{number}").read_bytes() == content
        path.unlink()
    sqlite3.connect(path).execute("CREATE TABLE mine (a)")
    assert "it is not a cache of decodings of fsd-calib" in named(path)[0]
    assert sqlite3.connect(tmp_path / "cache.damaged-4").execute("SELECT * FROM mine").fetchall() == []


def test_a_file_of_another_version_is_renamed(tmp_path: Path) -> None:
    filled(tmp_path / "cache")
    sqlite3.connect(tmp_path / "cache").execute("PRAGMA user_version = 7")
    assert "its schema has version 7, and this fsd-calib reads 2" in named(tmp_path / "cache")[0]


def test_damaged_bytes_in_a_warning_do_not_act_on_a_terminal(tmp_path: Path) -> None:
    """SQLite quotes the schema as it stands in the file."""
    path = tmp_path / "cache"
    filled(path)
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"CREATE TABLE decodings", b"CREATE TABLE \x1b[2Jdings"))
    (line,) = named(path)
    assert "malformed database schema" in line
    assert line.isprintable()


def test_a_path_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "file" / "cache"):
        with pytest.raises(UsageError, match=r"cache of decodings '.*' cannot be used \(.*\); free space or repair it"):
            ResultCache(path)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="permissions do not bind this user")
def test_a_read_only_file_is_refused(tmp_path: Path) -> None:
    filled(tmp_path / "cache")
    (tmp_path / "cache").chmod(0o400)
    with pytest.raises(UsageError, match="readonly"):
        ResultCache(tmp_path / "cache")


def test_open_caches_switch_to_the_new_file(tmp_path: Path) -> None:
    path = tmp_path / "cache"
    with ResultCache(path) as here, ResultCache(path) as there:
        here.add(KEY, QUERY, 0.2, result())
        set_aside(path, LOGS)  # as another process does on finding the damage
        assert here.find(KEY, [QUERY], 0.2) == {}
        there.add(KEY, QUERY, 0.2, result("new"))
        assert here.find(KEY, [QUERY], 0.2)[0].text == "new"
    assert (tmp_path / "cache.damaged-1").exists()


# --- processes --------------------------------------------------------------------------------------------


def add_and_announce(pipe: Connection, path: Path, problems: Iterable[int]) -> None:
    with ResultCache(path) as store:
        for i in problems:
            store.add(KEY, KeyedPrompt(i, f"problem {i}"), 0.2, result(f"text {i}" * 20))
            pipe.send(i)


@pytest.mark.slow
def test_no_added_row_is_lost_when_processes_are_killed(tmp_path: Path) -> None:
    path, rng, announced = tmp_path / "cache", random.Random(0), list[int]()
    for run in range(10):
        process, pipe = start_process(add_and_announce, path, range(run * 10**6, (run + 1) * 10**6))
        announced.append(pipe.recv())
        time.sleep(rng.uniform(0, 0.15))
        kill(process)
        announced += remaining_messages(pipe)
        with ResultCache(path) as store:  # a warning would be an error
            found = store.find(KEY, [KeyedPrompt(i, f"problem {i}") for i in announced], 0.2)
        assert [found[n].text for n in range(len(announced))] == [f"text {i}" * 20 for i in announced]
    assert len(announced) > 100
    assert not list(tmp_path.glob("*damaged*"))


def share(pipe: Connection, path: Path, number: int) -> None:
    """Adds its own rows and some of its neighbour's, and finds all rows in the end."""
    pipe.recv()
    rows = [KeyedPrompt(i, "p") for i in range(600)]
    with ResultCache(path) as store:
        for i in range(200 * number, 200 * number + 250):
            store.add(KEY, rows[i % 600], 0.2, result(f"text {i % 600}"))
            store.find(KEY, rows[:: 1 + i % 50], 0.2)
        pipe.send("done")
        pipe.recv()
        pipe.send({i: kept.text for i, kept in store.find(KEY, rows, 0.2).items()})


@pytest.mark.slow
def test_three_processes_create_and_share_one_file(tmp_path: Path) -> None:
    children = [start_process(share, tmp_path / "cache", number) for number in range(3)]
    for order in ("begin", "look"):
        for _, pipe in children:
            pipe.send(order)
        replies = [pipe.recv() for _, pipe in children]
    assert replies == [{i: f"text {i}" for i in range(600)}] * 3
    for process, _ in children:
        process.join()
        assert process.exitcode == 0


def add_when_told(pipe: Connection, path: Path, problem: int) -> None:
    pipe.recv()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with ResultCache(path) as store:
            store.add(KEY, KeyedPrompt(problem, "p"), 0.2, result())
    pipe.send(len(caught))


@pytest.mark.slow
def test_a_damaged_file_is_renamed_once_by_several_processes(tmp_path: Path) -> None:
    for round_ in range(5):
        path = tmp_path / f"{round_}"
        path.write_bytes(b"no database")
        children = [start_process(add_when_told, path, problem) for problem in range(6)]
        for _, pipe in children:
            pipe.send("go")
        assert sum(pipe.recv() for _, pipe in children) == 1
        with ResultCache(path) as store:
            assert len(store.find(KEY, [KeyedPrompt(problem, "p") for problem in range(6)], 0.2)) == 6
        assert not path.with_name(f"{round_}.damaged-2").exists()
