"""What listens on ports while commands work, `--ray local` above all, and whether it serves who has no token."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from lib.attacks.cases import Case, Stage, Verdict
from lib.attacks.commands import Ended, started
from lib.attacks.jobs import Collection
from lib.attacks.processes import command_line, descendants
from lib.common.forked_programs import environment

ATTACK = "ports"
WAYS = {"": [], " --workers 2": ["--workers", "2"], " --ray local": ["--ray", "local", "--workers", "2"]}
_PROBLEMS = 96
_LISTENS = "0A"  # in the system's tables of sockets
_ANSWER = 3.0  # seconds
_STRANGER = "import ray; ray.init(address={!r}); print(ray.get(ray.remote(lambda: 'served').remote()))"
_WORK = b"served"  # what the stranger's work prints


class _Port(NamedTuple):
    """A port that a process listens on. open: to other machines."""

    number: int
    open: bool
    process: str


def attack(stage: Stage) -> Iterator[Case]:
    for number in stage.chosen(range(len(WAYS)), [0]):
        what, more = list(WAYS.items())[number]
        name = f"fsd-collect{what}"
        if "--ray" in more and find_spec("ray") is None:
            yield Case(ATTACK, number, name, "", "skipped", "Ray is not installed")
            continue
        yield from _watch(stage, number, name, more)


def _watch(stage: Stage, number: int, name: str, more: list[str]) -> Iterator[Case]:
    """Runs a collection, and looks at its ports and knocks at them while it works."""
    folder = stage.folder(f"{ATTACK}-{number}")
    job = Collection(folder / f"at-{time.time_ns()}", _PROBLEMS)
    process, began = started(job.name, [*job.arguments(), *more]), time.monotonic()
    seen: dict[int, _Port] = {}
    knocked: dict[str, Verdict] = {}
    while process.poll() is None:
        new = {port.number: port for port in _listening([process.pid, *descendants(process.pid)])}
        for port in new.keys() - seen.keys():
            knocked[f"port {port} of {new[port].process}"] = _knock(new[port])
        seen |= new
        if (place := _cluster(process.pid)) and "a stranger" not in knocked and job.saved():
            os.kill(process.pid, signal.SIGSTOP)  # it waits for the stranger, who takes seconds to import Ray
            knocked["a stranger"] = _as_stranger(place, {})
            another = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}
            knocked["a stranger with another token"] = _as_stranger(place, another)
            os.kill(process.pid, signal.SIGCONT)
        time.sleep(0.5)
    _, err = process.communicate()
    ended = Ended(job.name, process.wait(), "", err, time.monotonic() - began)
    end = ("refused" if ended.refused else "lost" if ended.code else "ended"), ended.last_line
    yield Case(ATTACK, number, name, "its end", *(ended.complaint() or end), ended.seconds)
    if "--ray" in more and "a stranger" not in knocked and not ended.refused:
        yield Case(ATTACK, number, name, "a stranger", "lost", "the cluster was not found")
    if not seen:
        yield Case(ATTACK, number, name, "ports", "ended", "none")
    for what, verdict in knocked.items():
        yield Case(ATTACK, number, name, what, *verdict)


def _listening(processes: list[int]) -> Iterator[_Port]:
    """Yields the ports that processes listen on."""
    sockets = {}
    for process in processes:
        with suppress(OSError):  # it has ended
            for file in Path(f"/proc/{process}/fd").iterdir():
                with suppress(OSError):
                    if found := re.fullmatch(r"socket:\[(\d+)\]", os.readlink(file)):
                        sockets[found[1]] = process
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTENS and fields[9] in sockets:
                address, _, port = fields[1].partition(":")
                local = address == "0100007F" or address.endswith("0100007F") or address == "0" * 24 + "01000000"
                yield _Port(int(port, 16), not local, _name(sockets[fields[9]]))


def _name(process: int) -> str:
    words = command_line(process).split()
    return next((Path(word).name for word in words if "ray" in word and not word.startswith("-")), "python")


def _cluster(process: int) -> str | None:
    """Returns the address of the Ray cluster that a process has started."""
    for child in descendants(process):
        if found := re.search(r"--gcs-address=([\d.]+:[1-9]\d*)", command_line(child)):
            return found[1]
    return None


def _as_stranger(address: str, token: dict[str, str]) -> Verdict:
    """Returns what comes of work that somebody without the cluster's token sends it."""
    variables = {name: value for name, value in environment().items() if not name.startswith("RAY_")} | token
    command = [sys.executable, "-c", _STRANGER.format(address)]
    try:
        done = subprocess.run(command, env=variables, capture_output=True, timeout=90, check=False)
    except subprocess.TimeoutExpired:
        return "refused", "it got no answer within 90 s"
    if _WORK in done.stdout:
        return "silent", f"the cluster at {address} did its work"
    return "refused", done.stderr.decode(errors="replace").strip().splitlines()[-1][:200]


def _knock(port: _Port) -> Verdict:
    """Returns what a port says to somebody without a token who asks for its jobs, and then for its metrics."""
    where, said = "on all addresses" if port.open else "on this machine alone", ""
    for path, secret in (("/api/jobs/", "["), ("/metrics", "#")):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port.number}{path}", timeout=_ANSWER) as answer:
                if answer.read(1).decode() == secret:
                    return ("silent" if secret == "[" else "read"), f"{where}; {path} is there for anybody"
        except Exception as error:  # it speaks something else than HTTP, or refuses
            said = f"{path}: {error!r:.80}"
    return "refused", f"{where}; {said}"
