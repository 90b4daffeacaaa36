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

from fsd_calib.tasks.sandbox.limits import Ending
from support.sandboxes import RIGHT, SMALL, outcome_of, skip_without_sandbox, soon_gone

EXHAUSTION: dict[str, tuple[str, Ending, str]] = {
    "fork bomb": ("import os\nwhile True: os.fork()", "failed", "not permitted"),
    "fork bomb that goes on": (
        "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass", "killed", "",
    ),
    "subprocess bomb": (
        "import subprocess, sys\nwhile True: subprocess.Popen([sys.executable])", "failed", "not permitted",
    ),
    "multiprocessing": (
        "import multiprocessing\nmultiprocessing.Process(target=print).start()", "failed", "not permitted",
    ),
    "thread bomb": (
        "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(60,)).start()",
        "failed", "can't start new thread",
    ),
    "thread bomb with small stacks": (
        "import threading, time\nthreading.stack_size(1 << 15)\n"
        "for _ in range(64): threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
        "failed", "can't start new thread",
    ),
    "empty files": ("n = 0\nwhile True:\n    n += 1\n    open(f'/tmp/{n}', 'w').close()", "failed", "No space left"),
    "empty folders": ("import os\nfor n in range(9999): os.mkdir(f'/tmp/{n}')", "failed", "No space left"),
    "links": (
        "import os\nopen('/tmp/x', 'w').close()\nn = 0\nwhile True:\n    n += 1\n    os.link('/tmp/x', f'/tmp/{n}')",
        "failed", "No space left",
    ),
    "attributes of files": (
        "import os\nn = 0\nwhile True:\n    n += 1\n    os.setxattr('/tmp', f'user.{n}', bytes(60000))",
        "failed", "not permitted",
    ),
    "mounting": (
        "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        "raise OSError(ctypes.get_errno() if libc.mount(b'x', b'/tmp', b'tmpfs', 0, b'') else 0, 'mount')",
        "failed", "PermissionError: [Errno 1] mount",
    ),
    "memory bomb": ("kept = []\nwhile True: kept.append(bytearray(1 << 20))", "failed", "MemoryError"),
    "one large object": ("x = bytes(1 << 40)", "failed", "MemoryError"),
    "memory that is no address space": (
        "import os\nfd = os.memfd_create('x')\nwhile True: os.write(fd, bytes(1 << 20))", "failed", "not permitted",
    ),
    "infinite output": ("while True: print('x' * 1000)", "output limit", ""),
    "infinite errors": ("import os\nwhile True: os.write(2, b'x' * 1000)", "output limit", ""),
    "infinite report": (
        "import os\nfds = []\nfor fd in range(3, 64):\n    try: os.fstat(fd)\n    except OSError: continue\n"
        "    fds.append(fd)\n"
        "while True:\n    for fd in fds: os.write(fd, b'x' * 1000)", "output limit", "",
    ),
    "infinite loop": ("while True: pass", "killed", ""),
    "infinite loop that ignores signals": (
        "import signal\nfor s in set(signal.valid_signals()) - {9, 19}: signal.signal(s, signal.SIG_IGN)\n"
        "while True: pass", "killed", "",
    ),
    "sleeping past the limit": ("import time\ntime.sleep(600)", "wall limit", ""),
    "stopping itself": ("import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)", "wall limit", ""),
    "closing all files and sleeping": (
        "import os, time\nos.closerange(0, 4096)\ntime.sleep(600)", "wall limit", "",
    ),
    "deep recursion": ("import sys\nsys.setrecursionlimit(10**9)\ndef f(): f()\nf()", "killed", ""),
    "deep recursion in C": (
        "import sys\nsys.setrecursionlimit(10**9)\nx = []\nfor _ in range(10**6): x = [x]\nrepr(x)", "killed", "",
    ),
    "a file of 2 GB": (
        "with open('/tmp/large', 'wb') as file:\n    for _ in range(2048): file.write(bytes(1 << 20))",
        "failed", "File too large",
    ),
    "a file of 2 GB with a hole": (
        "import os\nos.truncate(os.open('/tmp/x', os.O_CREAT | os.O_RDWR), 2 << 30)", "failed", "File too large",
    ),
    "many files": (
        "for n in range(2048):\n    with open(f'/tmp/{n}', 'wb') as file: file.write(bytes(1 << 20))",
        "failed", "No space left",
    ),
    "many open files": ("kept = []\nwhile True: kept.append(open('/dev/null'))", "failed", "Too many open files"),
    "raising its own limits": (
        "import resource\nresource.setrlimit(resource.RLIMIT_CPU, (600, 600))", "failed", "ValueError",
    ),
}  # fmt: skip

FORGERIES = {
    "os._exit": "import os\nos._exit(0)",
    "sys.exit": "import sys\nsys.exit(0)",
    "a printed success": "print('+', 'passed', 'OK')\nreturn 5",
    "an exit handler": "import atexit, os\natexit.register(os._exit, 0)\nreturn 5",
    "another program in its place": "import os, sys\nos.execv(sys.executable, [sys.executable, '-S', '-c', 'pass'])",
    "its own report": "import os\nfor fd in range(3, 64):\n    try: os.write(fd, b'+' + b'0' * 32)\n"
    "    except OSError: pass\nos._exit(0)",
    "stdin again": "import os\nfor fd in range(64):\n    try: s = os.pread(fd, 32, 0)\n    except OSError: continue\n"
    "    for out in range(3, 64):\n        try: os.write(out, s)\n        except OSError: pass\nos._exit(0)",
    "another os._exit": "import os, sys\nos._exit = sys.exit = sys.__excepthook__ = print\nraise ValueError",
    "a killed process": "import os\nos.kill(os.getpid(), 15)",
}


@pytest.fixture(autouse=True)
def _sandbox() -> None:
    skip_without_sandbox()


def assert_the_next_is_right() -> None:
    assert outcome_of(RIGHT).passed


@pytest.mark.parametrize("name", EXHAUSTION)
def test_a_program_that_exhausts_something_is_ended_and_leaves_nothing(name: str) -> None:
    body, ending, said = EXHAUSTION[name]
    mark = str(SMALL.memory + 4096 * os.getpid())  # an argument of this test's processes alone
    limits = SMALL._replace(memory=int(mark), wall=2.5 if ending == "wall limit" else SMALL.wall)
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
