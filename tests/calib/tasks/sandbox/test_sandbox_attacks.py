"""Programs that attack the sandbox: all are contained and count as wrong, and the next problem is graded as right."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from platformdirs import user_cache_path

from lib.attacks.programs import EXHAUSTION, FORGERIES, RIGHT
from support.sandboxes import SMALL, outcome_of, skip_without_sandbox, soon_gone


@pytest.fixture(autouse=True)
def _sandbox() -> None:
    skip_without_sandbox()


def assert_the_next_is_right() -> None:
    assert outcome_of(RIGHT).passed


@pytest.mark.parametrize("name", EXHAUSTION)
def test_a_program_that_exhausts_something_is_ended_and_leaves_nothing(name: str) -> None:
    body, ending, said = EXHAUSTION[name]
    mark = str(SMALL.memory + 4096 * os.getpid())  # an argument of this test's processes alone
    limits = SMALL._replace(memory=int(mark), wall=1.5 if ending == "wall limit" else SMALL.wall)
    outcome = outcome_of(body, limits)
    assert outcome.ending == ending, outcome
    assert said in outcome.output
    assert outcome.seconds < limits.wall + 1
    assert len(outcome.output) <= SMALL.output
    assert soon_gone(mark)
    assert_the_next_is_right()


@pytest.mark.parametrize("name", FORGERIES)
def test_a_program_cannot_claim_a_success(name: str) -> None:
    assert not outcome_of(FORGERIES[name]).passed
    assert_the_next_is_right()


@pytest.mark.thinned(every=5)
@pytest.mark.parametrize(
    "path",
    [Path("/etc/passwd"), Path.home(), user_cache_path(), Path(__file__), Path("/proc/self/environ"), Path("/sys")],
    ids=["passwd", "home", "cache", "this file", "environment", "sys"],
)
@pytest.mark.parametrize("way", ["directly", "by a symbolic link", "by a detour"])
def test_files_of_the_machine_are_not_there(path: Path, way: str) -> None:
    named = str(path)
    if way == "by a detour":
        named = f"/tmp/../usr/lib/../../{named}"
    reading = (
        f"open({named!r}).read()" if path.is_file() else f"print([n for n in os.listdir({named!r}) if n != '.pyenv'])"
    )
    if way == "by a symbolic link":
        reading = f"os.symlink({named!r}, '/tmp/link')\n" + reading.replace(repr(named), "'/tmp/link'")
    outcome = outcome_of(f"import os\n{reading}\nreturn 2 * x")
    if Path(sys.base_prefix).is_relative_to(path):  # the way to the interpreter is there, and nothing beside it
        (only,) = Path(sys.base_prefix).relative_to(path).parts[:1]
        outcome = outcome_of(f"import os\nassert os.listdir({named!r}) != [{only!r}]\nreturn 2 * x")
    assert path.exists() or path == user_cache_path()
    assert outcome.ending == "failed", outcome
    assert_the_next_is_right()


@pytest.mark.parametrize(
    "change",
    [
        "open('/file', 'w')",
        "open(os.__file__, 'a')",
        "os.remove(os.__file__)",
        "os.symlink(os.__file__, '/tmp/link')\nopen('/tmp/link', 'a')",
        "os.link(os.__file__, '/tmp/link')",
        "os.rename('/tmp', '/tmp2')",
        "os.chmod('/usr', 0o777)",
        "os.mkdir('/dev/shm')",
        "os.mknod('/tmp/disk', 0o60600, os.makedev(8, 0))",
        "os.chroot('/tmp')",
        "os.setuid(0)",
    ],
)
def test_nothing_outside_of_its_tmp_can_be_changed(change: str) -> None:
    outcome = outcome_of(f"import os\n{change}\nreturn 2 * x")
    assert outcome.ending == "failed"
    assert "Error" in outcome.output.splitlines()[-1]
    assert Path(os.__file__).stat().st_nlink == 1
    assert_the_next_is_right()


def test_what_a_program_leaves_in_tmp_is_gone() -> None:
    assert outcome_of("open('/tmp/left', 'w').write('x')\nreturn 2 * x").passed
    assert outcome_of("import os\nassert os.listdir('/tmp') == []\nreturn 2 * x").passed
    assert not Path("/tmp/left").exists()


@pytest.mark.parametrize("family", ["AF_INET", "AF_INET6", "AF_UNIX", "AF_NETLINK"])
def test_there_is_no_network(family: str) -> None:
    assert outcome_of(f"import socket\nsocket.socket(socket.{family})").ending == "failed"


def test_a_server_of_this_machine_is_out_of_reach() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.1)
        address = server.getsockname()
        body = f"import socket\nsocket.create_connection({address!r}, timeout=1)\nreturn 2 * x"
        assert not outcome_of(body).passed
        with pytest.raises(TimeoutError):
            server.accept()
    assert_the_next_is_right()


@pytest.mark.thinned(every=10)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGSTOP])
def test_signals_reach_no_process_outside(number: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as victim:
        for pid in (victim.pid, os.getpid(), -1, -os.getpgrp()):
            outcome = outcome_of(f"import os\nos.kill({pid}, {int(number)})")
            assert outcome.ending == "failed", (pid, outcome)
        assert not outcome_of(f"import os\nos.kill(os.getppid(), {int(number)})").passed
        assert not outcome_of(f"import os\nos.kill(0, {int(number)})").passed
        assert victim.poll() is None
        victim.kill()
    assert_the_next_is_right()
