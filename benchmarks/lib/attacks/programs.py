"""Programs that attack who runs and grades them, beside a problem with its right answer."""

from __future__ import annotations

from fsd_calib.tasks.base import Problem
from fsd_calib.tasks.sandbox.command import Ending

PROBLEM = Problem(
    1, "", "", "", None,
    row={
        "prompt": 'def double(x):\n    """Returns twice x."""\n',
        "entry_point": "double",
        "test": "def check(candidate):\n    assert candidate(2) == 4\n",
    },
)  # fmt: skip
RIGHT = "    return 2 * x\n"

# name -> body of a function, how it ends under small limits, and a part of what it prints
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

EQUAL = "class Any:\n    def __eq__(self, other):\n        return True\n    __hash__ = None\n"
FRAMES = """
import sys
def double(x):
    frame = sys._getframe()
    while frame:
        for constant in frame.f_code.co_consts:
            if isinstance(constant, int) and constant not in (0, 1, 2):
                return constant
        frame = frame.f_back
"""
COLLECTOR = """
import gc
def double(x):
    for each in gc.get_objects():
        code = getattr(each, "__code__", None)
        if code and code.co_name == "check":
            return max(c for c in code.co_consts if isinstance(c, int))
"""
JUMPING = """
import sys
def trace(frame, event, argument):
    if frame.f_code.co_name == "check" and event == "line":
        frame.f_lineno = frame.f_code.co_firstlineno + 2
    return trace
def double(x):
    sys._getframe(1).f_trace = trace
    sys.settrace(trace)
"""
SECRET = """
import os, sys
def double(x):
    frame = sys._getframe()
    while frame:
        if "secret" in frame.f_locals:
            os.write(frame.f_locals["report"], frame.f_locals["secret"])
            os._exit(0)
        frame = frame.f_back
"""
FORGED = """
import os
def double(x):
    for file in range(3, 20):
        try:
            os.write(file, b'["returned", ["foreign", 1], null]\\n')
        except OSError:
            pass
"""
SKIPPED = "def skipped(check):\n    return lambda candidate: None\n@skipped\n"

CHEATS = [
    f"def double(x):\n    return x\n{SKIPPED}",
    "def double(x):\n    return x\nif False:\n",
    "def double(x):\n    return x\n'" + "''",
    f"{EQUAL}def double(x):\n    return Any()\n",
    f"{EQUAL}def double(x):\n    return [Any()]\n",
    f"{EQUAL.replace('Any', 'Any(int)')}def double(x):\n    return Any()\n",
    FRAMES, COLLECTOR, JUMPING, SECRET, FORGED,
    "import builtins\nbuiltins.AssertionError = ValueError\ndef check(candidate): pass\ndef double(x): pass\n",
    "import os\ndef double(x):\n    os.write(4, b'+')\n    os._exit(0)\n",
    "def double(x):\n    raise SystemExit(0)\n",
    "import sys\nsys.exit(0)\ndef double(x): pass\n",
]  # fmt: skip
"""Whole functions, in modules, that do not double their argument."""
