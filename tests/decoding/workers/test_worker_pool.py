"""Batches for workers, and a pool of real processes: results, errors, deaths at any moment, Ctrl-C."""

from __future__ import annotations

import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsd_common.errors import NumericalError, UsageError
from fsd_decoding.workers.backends import LocalWorkers
from fsd_decoding.workers.pool import WorkerPool, batch_sizes
from fsd_decoding.workers.serving import Served, serve
from support import worker_tasks


@pytest.fixture
def notes() -> list[str]:
    return []


@pytest.fixture
def pool(notes: list[str]) -> Iterator[WorkerPool]:
    with WorkerPool(2, LocalWorkers(1), notes.append) as made:
        yield made


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def processes_of_session(session: int) -> list[int]:
    return [int(entry.name) for entry in Path("/proc").glob("[0-9]*") if session_of(int(entry.name)) == session]


def session_of(process: int) -> int | None:
    try:
        return os.getsid(process)
    except ProcessLookupError:
        return None


def wait_until_ended(process: int, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while is_running(process):
        assert time.monotonic() < deadline, f"process {process} still runs"
        time.sleep(0.05)


def test_all_work_is_done_by_processes_that_stay(pool: WorkerPool, capfd: pytest.CaptureFixture[str]) -> None:
    pieces = [0.2] * 4
    found = list(pool.run(worker_tasks.pid_after, pieces))
    assert [piece for piece, _ in found] == pieces
    processes = {process for _, process in found}
    assert len(processes) == 2
    assert os.getpid() not in processes
    assert {process for _, process in pool.run(worker_tasks.pid_after, pieces)} == processes
    assert capfd.readouterr() == ("", "")


def test_pieces_are_drawn_when_a_worker_is_free(pool: WorkerPool) -> None:
    drawn = []
    done = 0
    for _ in pool.run(abs, (drawn.append(number) or number for number in range(20))):  # type: ignore[func-returns-value]
        done += 1
        assert len(drawn) <= done + 2 * pool.workers  # those of this moment, and those that were done with this one
    assert done == 20


def test_closing_ends_the_processes() -> None:
    with WorkerPool(2, LocalWorkers(1)) as pool:
        processes = {process for _, process in pool.run(worker_tasks.pid_after, [0.1, 0.1])}
    for process in processes:
        wait_until_ended(process)


def test_workers_may_be_closed_as_soon_as_they_have_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an error in loky's threads."""
    failed: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    worker = LocalWorkers(1).worker(0)
    assert worker.send(pickle.dumps((abs, -1))).result().returned == 1
    worker.send(pickle.dumps((abs, -1)))
    worker.stop()
    assert failed == []


def test_a_pool_without_work_starts_no_process() -> None:
    with WorkerPool(2, LocalWorkers(1)) as pool:
        assert list(pool.run(abs, [])) == []
        assert pool._started == {}


def test_an_error_that_cannot_be_pickled_is_no_death(pool: WorkerPool, notes: list[str]) -> None:
    with pytest.raises(RuntimeError, match=r"^OfTwoArgumentsError: number 1: odd\n"):
        list(pool.run(worker_tasks.break_down_oddly, [1]))
    assert notes == []


def test_errors_are_raised_as_in_one_process(pool: WorkerPool) -> None:
    with pytest.raises(NumericalError, match=r"^prompt 3 is refused$") as caught:
        list(pool.run(worker_tasks.refuse, [3]))
    assert caught.value.finished == {3: "done"}
    with pytest.raises(UsageError, match=r"^number is 4; it must be another$"):
        list(pool.run(worker_tasks.refuse_usage, [4]))
    with pytest.raises(ZeroDivisionError) as broken:
        list(pool.run(worker_tasks.break_down, [4]))
    assert "break_down" in broken.value.__notes__[0]
    assert list(pool.run(abs, [-1])) == [(-1, 1)]


def test_a_killed_worker_costs_its_own_piece_alone(pool: WorkerPool, notes: list[str], tmp_path: Path) -> None:
    (other,) = {process for _, process in pool.run(worker_tasks.pid_after, [0.0])}
    path = str(tmp_path / "begun")
    assert list(pool.run(worker_tasks.die_unless, [path])) == [(path, path)]
    assert notes == [f"a worker process was killed; {path} begins again in another"]
    assert not is_running(other)


@pytest.mark.slow
def test_a_stopped_worker_is_told_and_its_piece_goes_to_another(
    pool: WorkerPool, notes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fsd_decoding.workers.pool._LOOK", 0.1)
    monkeypatch.setattr("fsd_decoding.workers.pool._LEAST", 1.0)
    stopped, _ = (process for _, process in pool.run(worker_tasks.pid_after, [0.05, 0.05]))
    os.kill(stopped, signal.SIGSTOP)
    found = dict(pool.run(abs, [-1, -2, -3]))
    assert found == {-1: 1, -2: 2, -3: 3}
    (note,) = notes
    assert re.fullmatch(r"a worker process has not answered for \d+ s; -\d begins again in another", note)
    wait_until_ended(stopped)


@pytest.mark.slow
def test_a_worker_may_take_long_where_nothing_is_known(
    pool: WorkerPool, notes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fsd_decoding.workers.pool._LOOK", 0.05)
    monkeypatch.setattr("fsd_decoding.workers.pool._LEAST", 0.1)
    assert len(list(pool.run(worker_tasks.pid_after, [0.5, 0.5]))) == 2
    assert notes == []


@pytest.mark.slow
def test_a_worker_killed_while_it_has_nothing_to_do_is_replaced(pool: WorkerPool) -> None:
    processes = {process for _, process in pool.run(worker_tasks.pid_after, [0.1, 0.1])}
    for process in processes:
        os.kill(process, signal.SIGKILL)
        wait_until_ended(process)
    assert sorted(pool.run(abs, [-1, -2])) == [(-2, 2), (-1, 1)]


@pytest.mark.slow
def test_work_that_always_kills_is_named_and_the_rest_is_done(
    pool: WorkerPool, notes: list[str], tmp_path: Path
) -> None:
    done, others_are_done = list[int](), tmp_path / "done"
    with pytest.raises(UsageError) as caught:
        _take(pool.run(partial(worker_tasks.die_after, str(others_are_done)), [1, -7, 2, 3]), done, others_are_done)
    assert "-7 ended 3 worker processes in a row, which were killed (out of memory" in str(caught.value)
    assert "(The exit codes of the workers are {SIGKILL(-9)})" in str(caught.value)
    assert isinstance(caught.value.__cause__, BrokenProcessPool)
    assert "\n" not in str(caught.value)
    assert len(notes) == 2
    assert sorted(done) == [1, 2, 3]


def _take(outcomes: Iterator[tuple[int, int]], done: list[int], three_are_done: Path) -> None:
    for piece, _ in outcomes:
        done.append(piece)
        if len(done) == 3:
            three_are_done.touch()


def test_an_iteration_that_ends_early_ends_what_is_at_work(pool: WorkerPool, tmp_path: Path) -> None:
    path = tmp_path / "process"
    running = pool.run(worker_tasks.write_and_wait, [str(path)])
    with pytest.raises(KeyboardInterrupt):
        _interrupted_when(path, running)
    wait_until_ended(int(path.read_text()))


def _interrupted_when(path: Path, running: Iterator[object]) -> None:
    child = f"import os, signal, time\nwhile not os.path.exists({str(path)!r}): time.sleep(0.01)\n"
    child += f"time.sleep(0.2)\nos.kill({os.getpid()}, signal.SIGINT)"
    with subprocess.Popen([sys.executable, "-c", child]):
        list(running)


SCRIPT = """
import sys
from fsd_decoding.workers.backends import LocalWorkers
from fsd_decoding.workers.pool import WorkerPool
from support import worker_tasks
print("begun", flush=True)
with WorkerPool(2, LocalWorkers(1)) as pool:
    print(list(pool.run(abs, [-3])), flush=True)
    list(pool.run(worker_tasks.show_progress, [3, 3]))
    list(pool.run(worker_tasks.write_and_wait, sys.argv[1:]))
"""


def started(tmp_path: Path, **settings: object) -> tuple[subprocess.Popen[str], list[int]]:
    """A script without a guard whose two workers are at work, and their ids."""
    script, paths = tmp_path / "script.py", [tmp_path / "first", tmp_path / "second"]
    script.write_text(SCRIPT)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(  # type: ignore[call-overload]
        [sys.executable, script, *paths], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        **settings,
    )  # fmt: skip
    while not all(path.exists() and path.read_text() for path in paths):
        assert process.poll() is None
        time.sleep(0.05)
    return process, [int(path.read_text()) for path in paths]


def test_ctrl_c_ends_the_workers_and_only_the_parent_speaks(tmp_path: Path) -> None:
    process, workers = started(tmp_path, start_new_session=True)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    out, err = process.communicate(timeout=30)
    assert out == "begun\n[(-3, 3)]\n"  # and the script did not run again in a worker
    assert err.count("Traceback") == 1
    assert err.rstrip().endswith("KeyboardInterrupt")
    for worker in workers:
        wait_until_ended(worker)


INTERRUPTED = """
import sys
from fsd_decoding.workers.backends import LocalWorkers
from fsd_decoding.workers.pool import WorkerPool
from support import worker_tasks
try:
    print("begun", flush=True)
    with WorkerPool(2, LocalWorkers(1)) as pool:
        list(pool.run(worker_tasks.pid_after, [60.0, 60.0]))
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0.0, 0.15, 0.3, 0.45, 0.6, 0.9, 1.2])
def test_ctrl_c_while_workers_start_is_silent(delay: float) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    time.sleep(delay)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    assert process.communicate(timeout=30) == ("", "")
    assert process.returncode == 130


CLOSED = """
import sys
from pathlib import Path
from fsd_decoding.workers.backends import LocalWorkers
from fsd_decoding.workers.pool import WorkerPool
from support import worker_tasks
opened = open(sys.executable)  # a file that has got the number of a closed stream
with WorkerPool(2, LocalWorkers(1)) as pool:
    found = [piece for piece, _ in pool.run(worker_tasks.pid_after, [0.0, 0.0])]
    Path(sys.argv[1]).write_text(str(found))
"""


@pytest.mark.slow
@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_no_obstacle(tmp_path: Path, closed: str) -> None:
    found = tmp_path / "found"
    command = ["sh", "-c", f'exec "$0" "$@" {closed}', sys.executable, "-c", CLOSED, str(found)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    assert found.read_text() == "[0.0, 0.0]"


def test_workers_end_with_a_killed_parent(tmp_path: Path) -> None:
    process, workers = started(tmp_path)
    process.kill()
    assert process.communicate(timeout=30)[1] == ""  # no word of semaphores, which are removed
    for worker in workers:
        wait_until_ended(worker)


KILLED_BEFORE_SENDING = """
import os, signal
from fsd_decoding.workers.backends import LocalWorkers
worker = LocalWorkers(1).worker(0)
worker._executor._call_queue.put = lambda *args, **kwargs: os.kill(os.getpid(), signal.SIGKILL)
worker.send(b"")
signal.pause()
"""


def test_workers_end_with_a_parent_that_is_killed_before_they_have_work() -> None:
    process = subprocess.Popen([sys.executable, "-c", KILLED_BEFORE_SENDING], start_new_session=True)
    assert process.wait(30) == -signal.SIGKILL
    for worker in processes_of_session(process.pid):
        wait_until_ended(worker)


class AtOnce:
    """A backend whose workers have done their work as soon as they have it."""

    deaths = (BrokenProcessPool,)

    def worker(self, number: int) -> AtOnce:
        return self

    def send(self, request: bytes) -> Future[Served]:
        future = Future[Served]()
        future.set_result(serve(request))
        return future

    def stop(self) -> None:
        pass


def test_what_is_finished_beside_an_error_is_not_lost() -> None:
    found: list[int] = []
    with WorkerPool(3, AtOnce()) as pool, pytest.raises(ZeroDivisionError):
        found.extend(piece for piece, _ in pool.run(worker_tasks.divide_by, [1, 0, 2]))
    assert sorted(found) == [1, 2]


def test_iterations_may_outlive_the_pool() -> None:
    """As they do where an error in the caller's loop ends both, and the loop's own frame goes last."""
    with WorkerPool(1, LocalWorkers(1)) as pool:
        outcomes = pool.run(worker_tasks.divide_by, [1, 2, 3])
        next(outcomes)
    outcomes.close()  # type: ignore[attr-defined]


@given(st.integers(0, 5000), st.integers(1, 64), st.integers(1, 16))
def test_batches_cover_the_problems_and_shrink(problems: int, rows: int, workers: int) -> None:
    sizes = batch_sizes(problems, rows, workers)
    assert sum(sizes) == problems
    assert all(size >= 1 for size in sizes)
    assert all(after <= before for before, after in pairwise(sizes))
    assert max(sizes, default=0) <= 4 * rows
    few = [size for size in sizes if size < rows]
    assert len(few) <= workers  # of the last round alone
    assert len(sizes) >= min(workers, problems)  # every worker gets a batch, if there are enough problems


def test_examples() -> None:
    assert batch_sizes(64, 32, 2) == [32, 32]
    assert batch_sizes(20, 32, 2) == [10, 10]
    assert batch_sizes(3, 32, 4) == [1, 1, 1]
    assert batch_sizes(1000, 32, 2) == [128] * 4 + [122] * 2 + [61] * 4
