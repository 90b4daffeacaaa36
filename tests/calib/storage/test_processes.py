"""Which process left a record, and whether it still runs. Real processes, of other users and namespaces too."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from multiprocessing.connection import Connection
from typing import Any

import pytest

from fsd_calib.storage import Watch, is_alive, this_process
from lib.common.forked_programs import environment
from support.child_processes import start_process

LOOK = "import json, sys; from fsd_calib.storage import is_alive; print(is_alive(json.loads(sys.argv[1])))"
INTRODUCE = """
import json, sys
from fsd_calib.storage import this_process
print(json.dumps(this_process()), flush=True)
sys.stdin.read()
"""
OTHER_USER = 65534


def another() -> tuple[subprocess.Popen[str], dict[str, Any]]:
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    child = subprocess.Popen([sys.executable, "-c", INTRODUCE], text=True, env=environment(), **pipes)
    assert child.stdout is not None
    return child, json.loads(child.stdout.readline())


def test_a_process_is_alive_until_it_is_killed() -> None:
    assert is_alive(this_process()) is True
    child, identity = another()
    assert is_alive(identity) is True
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # a zombie, which its parent has not waited for
    assert is_alive(identity) is False
    child.communicate()
    assert is_alive(identity) is False


def test_another_process_with_the_same_id_is_not_the_same() -> None:
    assert is_alive(this_process() | {"started": "1"}) is False


def look_as_another_user(pipe: Connection, identity: dict[str, Any]) -> None:
    os.setgid(OTHER_USER)
    os.setuid(OTHER_USER)
    with pytest.raises(PermissionError):
        os.kill(identity["process"], 0)
    pipe.send(is_alive(identity))


def test_a_process_is_alive_for_other_users() -> None:
    """They may send it no signal, which was taken for its death."""
    if os.geteuid() != 0:
        pytest.skip("only root can start a process of another user")
    process, pipe = start_process(look_as_another_user, this_process())
    assert pipe.recv() is True
    process.join()


def test_a_process_is_not_visible_from_another_namespace_of_process_ids() -> None:
    """Containers may have the same host name; ids in them are of other processes."""
    apart = [shutil.which("unshare") or "unshare", "--pid", "--fork", "--mount-proc"]
    if not shutil.which("unshare") or subprocess.run([*apart, "true"], capture_output=True, check=False).returncode:
        pytest.skip("namespaces cannot be made here")
    look = [sys.executable, "-c", LOOK, json.dumps(this_process())]
    found = subprocess.run([*apart, *look], capture_output=True, text=True, env=environment(), check=True)
    assert found.stdout.strip() == "None"


@pytest.mark.parametrize("what", ["host", "boot", "namespace"])
def test_a_process_elsewhere_or_before_a_reboot_is_not_visible(what: str) -> None:
    elsewhere = this_process() | {what: "another", "process": 2**22 + 1}
    assert is_alive(elsewhere) is None


def test_a_watch_counts_by_its_own_clock_from_the_last_change() -> None:
    now = 100.0
    watch = Watch(lambda: now)
    assert watch.seconds_unchanged("a", 1) == 0
    now = 105.0
    assert watch.seconds_unchanged("a", 1) == 5
    assert watch.seconds_unchanged("b", 1) == 0
    now = 107.0
    assert watch.seconds_unchanged("a", 2) == 0
    now = 110.0
    assert (watch.seconds_unchanged("a", 2), watch.seconds_unchanged("b", 1)) == (3, 5)
