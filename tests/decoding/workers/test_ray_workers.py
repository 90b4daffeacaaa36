"""Workers on a Ray cluster, started on this machine: results, errors, and killed workers."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fsd_common.errors import NumericalError, UsageError
from fsd_decoding.workers import backends
from fsd_decoding.workers.backends import RayWorkers, cluster_nodes, connected
from fsd_decoding.workers.pool import WorkerPool
from fsd_decoding.workers.serving import Served
from support import worker_tasks
from support.ray_clusters import local_cluster

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """The module `ray`."""
    with local_cluster(2) as ray:
        yield ray


@pytest.fixture
def notes() -> list[str]:
    return []


@pytest.fixture
def pool(cluster: Any, notes: list[str]) -> Iterator[WorkerPool]:
    with WorkerPool(2, RayWorkers(cluster, 1, 0), notes.append) as made:
        yield made


def test_work_is_done_by_actors_that_stay(pool: WorkerPool) -> None:
    processes = {process for _, process in pool.run(worker_tasks.pid_after, [0.2] * 4)}
    assert len(processes) == 2
    assert {process for _, process in pool.run(worker_tasks.pid_after, [0.2] * 4)} == processes


def test_errors_are_raised_as_in_one_process(pool: WorkerPool) -> None:
    with pytest.raises(NumericalError, match=r"^prompt 3 is refused$") as caught:
        list(pool.run(worker_tasks.refuse, [3]))
    assert caught.value.finished == {3: "done"}


def test_a_killed_worker_costs_its_own_piece_alone(pool: WorkerPool, notes: list[str], tmp_path: Path) -> None:
    path = str(tmp_path / "begun")
    assert list(pool.run(worker_tasks.die_unless, [path])) == [(path, path)]
    assert notes == [f"a worker process was killed; {path} begins again in another"]


def test_a_worker_killed_from_outside_is_replaced(pool: WorkerPool, notes: list[str], tmp_path: Path) -> None:
    first, second = {process for _, process in pool.run(worker_tasks.pid_after, [0.2] * 4)}
    threading.Timer(1.0, os.kill, (first, signal.SIGKILL)).start()
    found = list(pool.run(worker_tasks.pid_after, [2.0, 2.0]))
    assert len(found) == 2
    assert second in {process for _, process in found}
    assert first not in {process for _, process in found}
    assert len(notes) == 1


def test_work_that_always_kills_is_named(pool: WorkerPool) -> None:
    with pytest.raises(UsageError, match="-7 ended 3 worker processes in a row"):
        list(pool.run(worker_tasks.die, [-7]))


def test_a_worker_that_cannot_start_says_why(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = ModuleType("only_here")
    monkeypatch.setitem(sys.modules, "only_here", elsewhere)
    elsewhere.RayServer = type("RayServer", (), {"serve": lambda self, request: None, "__module__": "only_here"})  # type: ignore[attr-defined]
    monkeypatch.setattr(backends, "RayServer", elsewhere.RayServer)
    with (
        WorkerPool(1, RayWorkers(cluster, 1, 0)) as pool,
        pytest.raises(UsageError, match=r"could not start \(ModuleNotFoundError: No module named 'only_here'\)"),
    ):
        list(pool.run(abs, [-7]))


class Dying(RayWorkers):
    """Workers of whom the first dies with an error of Ray's."""

    def __init__(self, ray: Any, death: Exception) -> None:
        super().__init__(ray, 1, 0)
        self._outcomes: list[Exception | Served] = [death, Served("done")]

    def worker(self, number: int) -> Any:
        return self

    def send(self, request: bytes) -> Future[Served]:
        future, outcome = Future[Served](), self._outcomes.pop(0)
        future.set_result(outcome) if isinstance(outcome, Served) else future.set_exception(outcome)
        return future

    def stop(self) -> None:
        pass


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        ("OutOfMemoryError", ["low on memory"]),
        ("NodeDiedError", ["node died"]),
        ("ObjectLostError", ["0f", "", ""]),
        ("ObjectReconstructionFailedError", ["0f", "", ""]),
    ],
)
def test_a_worker_lost_with_memory_or_machine_is_replaced(notes: list[str], kind: str, arguments: list[str]) -> None:
    """Such errors are no `RayActorError`."""
    ray = pytest.importorskip("ray", reason="Ray is not installed (extra 'ray')")
    death = getattr(ray.exceptions, kind)(*arguments)
    with WorkerPool(1, Dying(ray, death), notes.append) as pool:
        assert list(pool.run(worker_tasks.die_unless, ["it"])) == [("it", "done")]
    assert notes == ["a worker process was killed; it begins again in another"]


def test_the_cluster_says_what_it_has(cluster: Any) -> None:
    assert cluster_nodes(cluster) == [(2, 0)]


def test_a_connection_that_there_was_stays(cluster: Any) -> None:
    own = cluster.get_runtime_context().gcs_address
    for address in ("auto", own):
        with connected(address) as ray:
            assert cluster_nodes(ray) == [(2, 0)]
    assert cluster.is_initialized()


def test_another_cluster_than_the_connected_one_is_refused(cluster: Any) -> None:
    own = cluster.get_runtime_context().gcs_address
    expected = f"ray is '10.0.0.7:6379', and this process is connected to the cluster at {own} already"
    with pytest.raises(UsageError, match=expected), connected("10.0.0.7:6379"):
        pass
    assert cluster.is_initialized()


def test_a_port_that_nothing_listens_on_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray", reason="Ray is not installed (extra 'ray')")
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        expected = f"ray is '{address}', and no cluster answers there"
        with pytest.raises(UsageError, match=expected), connected(address):
            pass


def test_an_address_without_a_cluster_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray", reason="Ray is not installed (extra 'ray')")
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with (
        pytest.raises(UsageError, match="ray is 'nonsense', and no cluster can be used there") as caught,
        connected("nonsense"),
    ):
        pass
    assert "\n" not in str(caught.value)


def test_a_node_that_starts_too_slowly_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray raises an exception of no kind, as on a busy machine."""
    ray = pytest.importorskip("ray", reason="Ray is not installed (extra 'ray')")

    def init(**settings: object) -> None:
        raise Exception("The current node timed out during startup.\nThis could happen")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(UsageError) as caught, connected("local"):
        pass
    assert str(caught.value).endswith("can be used there: The current node timed out during startup. This could happen")


OWN_CLUSTER = """
import os, subprocess, sys
import psutil
from fsd_decoding.workers.backends import connected

for turn in range(2):
    with connected("local") as ray:
        assert ray.get(ray.remote(lambda: 1).remote()) == 1
        address = ray.get_runtime_context().gcs_address
        others = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
        if turn == 0:
            own = [psutil.Process(), *psutil.Process().children(recursive=True)]
            open_to = [each.laddr.ip for one in own for each in one.net_connections("inet") if each.status == "LISTEN"]
            print(len(open_to) > 3, {address.removeprefix("::ffff:") for address in open_to})
            stranger = f"import ray; ray.init(address={address!r}); ray.get(ray.remote(lambda: 1).remote())"
            ran = subprocess.run([sys.executable, "-c", stranger], env=others, capture_output=True, text=True)
            print(ran.returncode, "ConnectionError" in ran.stderr)
"""


def test_a_cluster_of_this_process_listens_here_alone_and_serves_no_stranger() -> None:
    """Whoever may use a cluster can run commands as its user."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    started = partial(
        subprocess.run, [sys.executable, "-c", OWN_CLUSTER], env=environment,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    done = started()
    if "timed out during startup" in done.stderr:  # a busy machine, as in `local_cluster`
        done = started()
    assert (done.returncode, done.stdout) == (0, "True {'127.0.0.1'}\n1 True\n"), done.stderr
