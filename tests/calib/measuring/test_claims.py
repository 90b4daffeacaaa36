"""Processes that share a cache share the work: what is claimed, waited for, taken over. Real processes and files."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import time
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from fsd_calib.engines.base import KeyedPrompt
from fsd_calib.engines.own import OwnEngine
from fsd_calib.measuring import result_cache
from fsd_calib.measuring.evaluator import CachedDecoder
from fsd_calib.measuring.result_cache import ResultCache
from fsd_calib.storage import this_process
from fsd_calib.tasks import Task
from fsd_decoding.profile.setting import Setting
from support.calibration.cached_results import KEY, QUERY, key, result
from support.child_processes import kill, start_process
from support.models.tiny_pair import tiny_decoder
from support.models.tiny_task import tiny_task

FUZZY = Setting("fsd-coupled", "js", 4, 0.1)
COUNT = 24


def task() -> Task:
    return cast(Task, tiny_task(COUNT))


def claim(pipe: Connection, path: Path, count: int) -> None:
    """Claims problems, says so, and waits to be killed or told to go on; then drops them."""
    with ResultCache(path) as store:
        pipe.send([store.claim(KEY, KeyedPrompt(n, "2 + 2"), 0.2) for n in range(count)])
        pipe.recv()
        store.drop_claims()
        pipe.send("dropped")


def rows(path: Path) -> list[Any]:
    with sqlite3.connect(path) as file:
        return file.execute("SELECT hex(key), problem, threshold, text FROM decodings").fetchall()


def test_a_problem_is_claimed_by_one_process_at_any_threshold(tmp_path: Path) -> None:
    process, pipe = start_process(claim, tmp_path / "cache", 3)
    assert pipe.recv() == [True] * 3
    with ResultCache(tmp_path / "cache") as store:
        wanted = [
            (KEY, 1, 0.2),
            (KEY, 1, 0.9),
            (KEY, 3, 0.2),
            (key(setting=Setting("fsd-coupled", "js", 6)), 1, 0.2),
            (KEY, 3, 0.2),
        ]
        assert [store.claim(of, KeyedPrompt(n, "2 + 2"), t) for of, n, t in wanted] == [False, False, True, True, True]
        pipe.send("drop")
        pipe.recv()
        assert store.claim(KEY, KeyedPrompt(1, "2 + 2"), 0.2)
    process.join()


def test_claims_of_a_killed_process_are_taken_over_at_once(tmp_path: Path) -> None:
    process, pipe = start_process(claim, tmp_path / "cache", 1)
    pipe.recv()
    with ResultCache(tmp_path / "cache") as store:
        assert not store.claim(KEY, KeyedPrompt(0, "2 + 2"), 0.2)
        kill(process)
        assert store.claim(KEY, KeyedPrompt(0, "2 + 2"), 0.2)


def claimed_elsewhere(path: Path, number: int = 1) -> None:
    """Leaves a claim of a process on a machine with the same name, as containers may have, and the id of a dead one."""
    owner = json.dumps(this_process() | {"boot": "another", "process": 2**22 + 1})
    with sqlite3.connect(path) as file:
        place = (KEY.hash, QUERY.id, hashlib.blake2b(QUERY.prompt.encode(), digest_size=16).digest())
        file.execute("INSERT OR REPLACE INTO claims VALUES (?, ?, ?, ?, ?)", (number, *place, owner.encode()))


def test_claims_of_another_machine_last_while_it_makes_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(result_cache, "_SILENT", 0.5)
    with ResultCache(tmp_path / "cache") as store:
        for number in range(1, 8):
            claimed_elsewhere(tmp_path / "cache", number)
            assert not store.claim(KEY, QUERY, 0.2)
            time.sleep(0.1)
        time.sleep(0.5)
        assert store.claim(KEY, QUERY, 0.2)


def test_caches_of_one_process_do_not_share_claims(tmp_path: Path) -> None:
    """Two threads may calibrate at once."""
    with ResultCache(tmp_path / "cache") as one, ResultCache(tmp_path / "cache") as other:
        assert one.claim(KEY, QUERY, 0.2)
        assert not other.claim(KEY, QUERY, 0.2)
        other.drop_claims()
        assert not other.claim(KEY, QUERY, 0.2)
        one.drop_claims()
        assert other.claim(KEY, QUERY, 0.2)


def test_a_damaged_claim_is_taken_over(tmp_path: Path) -> None:
    with ResultCache(tmp_path / "cache") as store:
        for owner in (b"\xff", b"[1]", None):
            claimed_elsewhere(tmp_path / "cache")
            with sqlite3.connect(tmp_path / "cache") as file:
                file.execute("UPDATE claims SET owner = ?", (owner,))
            assert store.claim(KEY, QUERY, 0.2)
            store.drop_claims()


def test_what_is_cached_is_not_claimed_and_what_is_added_is_no_longer(tmp_path: Path) -> None:
    with ResultCache(tmp_path / "cache") as store:
        assert store.claim(KEY, QUERY, 0.2)
        store.add(KEY, QUERY, 0.2, result())
        assert [store.claim(KEY, QUERY, t) for t in (0.2, 0.25, 0.9)] == [False, False, True]
        store.drop_claims()
        with sqlite3.connect(tmp_path / "cache") as file:
            assert file.execute("SELECT * FROM claims").fetchall() == []


def test_a_cache_in_memory_has_no_claims() -> None:
    with ResultCache(None) as store:
        assert store.claim(KEY, QUERY, 0.2)
        store.add(KEY, QUERY, 0.2, result())
        assert store.claim(KEY, QUERY, 0.2)


# --- decoding ------------------------------------------------------------------------------------------------


def decode(pipe: Connection, path: Path, seconds: float = 0.0) -> None:
    """Decodes all problems, with a pause after each, and sends how many it decoded itself, and the texts."""
    torch.set_num_threads(1)
    with ResultCache(path) as store:
        decoder = CachedDecoder(OwnEngine(tiny_decoder(), task()), task(), store, batch_size=4)
        add = store.add

        def slow_add(*args: Any) -> Any:
            added = add(*args)
            pipe.send("added")
            time.sleep(seconds)
            return added

        store.add = slow_add  # type: ignore[method-assign, assignment]
        pipe.send("ready")
        pipe.recv()
        texts = [seeds[0].text for seeds in decoder(FUZZY, task().problems)]
        pipe.send((decoder.decoded, decoder.reused, texts))


def last(pipe: Connection) -> Any:
    while not isinstance(found := pipe.recv(), tuple):
        pass
    return found


def alone(path: Path) -> list[str]:
    with ResultCache(path) as store:
        return [
            seeds[0].text
            for seeds in CachedDecoder(OwnEngine(tiny_decoder(), task()), task(), store)(FUZZY, task().problems)
        ]


@pytest.mark.slow
def test_four_processes_decode_each_problem_once(tmp_path: Path) -> None:
    path = tmp_path / "cache"
    ResultCache(path).close()
    children = [start_process(decode, path, 0.05) for _ in range(4)]
    for _, pipe in children:
        pipe.recv()
    for _, pipe in children:
        pipe.send("go")
    found = [last(pipe) for _, pipe in children]
    for process, _ in children:
        process.join()
    counts = Counter(row[:3] for row in rows(path))
    assert set(counts.values()) == {1}
    assert len(counts) == COUNT
    assert sum(decoded for decoded, _, _ in found) == COUNT
    assert all(decoded + reused == COUNT for decoded, reused, _ in found)
    assert sum(decoded > 0 for decoded, _, _ in found) > 1  # the work is shared
    assert all(texts == alone(tmp_path / "other") for _, _, texts in found)


def test_the_problems_of_a_killed_process_are_decoded_by_another(tmp_path: Path) -> None:
    path = tmp_path / "cache"
    process, pipe = start_process(decode, path, 5.0)
    pipe.recv()
    pipe.send("go")
    assert pipe.recv() == "added"  # and three more are begun
    waiting, answers = start_process(decode, path)
    answers.recv()
    answers.send("go")
    time.sleep(1.0)  # it comes to the claimed ones
    kill(process)
    decoded, reused, texts = last(answers)
    waiting.join()
    assert decoded + reused == COUNT
    assert reused >= 1
    assert texts == alone(tmp_path / "other")
    assert len(rows(path)) == COUNT


def test_an_error_drops_the_claims(tmp_path: Path) -> None:
    path = tmp_path / "cache"

    def fail(*args: Any) -> Any:
        raise KeyboardInterrupt

    with ResultCache(path) as store:
        store.add = fail  # type: ignore[method-assign, assignment]
        with pytest.raises(KeyboardInterrupt):
            CachedDecoder(OwnEngine(tiny_decoder(), task()), task(), store, batch_size=4)(FUZZY, task().problems)
        with sqlite3.connect(path) as file:
            assert file.execute("SELECT count(*) FROM claims").fetchone() == (0,)
