"""What befalls a command's process: Ctrl-C while it starts, streams that are gone, odd paths, links that were planted
where it writes, and workers that are stopped or killed."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import NamedTuple

from fsd_calib.cli import entry
from fsd_data import pair_paths
from lib.attacks.cases import Case, Stage, Verdict, at_once
from lib.attacks.commands import ended, fresh, run, started
from lib.attacks.jobs import UNDISTURBED, Calibration, Collection, calibration, collection, judge_end, training
from lib.attacks.subjects import PROFILE

ATTACK = "processes"
_PROMPT = "Ann has 3 boxes of 12 pens. How many?"
_MOMENTS = 4  # of Ctrl-C, per command
_EARLY, _LATER = (0.05, 0.8), (0.8, 4.0)  # seconds after the start
_COMMANDS = ("calibrate", "collect", "generate", "inspect", "profile", "report", "tasks", "traces", "train_eagle",
             "train_predictor")  # fmt: skip
Arguments = Sequence[str | Path]


class Deed(NamedTuple):
    """One attack."""

    subject: str
    damage: str
    does: Callable[[Path], Verdict]  # in a folder of its own


def attack(stage: Stage) -> Iterator[Case]:
    each = deeds(stage)

    def does(number: int) -> Iterator[Case]:
        deed, folder, began = each[number], stage.folder(f"{ATTACK}-{number}"), time.monotonic()
        shutil.rmtree(folder)
        folder.mkdir()
        verdict = deed.does(folder)
        yield Case(ATTACK, number, deed.subject, deed.damage, *verdict, time.monotonic() - began)
        shutil.rmtree(folder, ignore_errors=True)

    yield from at_once(does, stage.chosen(range(len(each)), [0]))


def deeds(stage: Stage) -> list[Deed]:
    found = [Deed("fsd-tasks", what, partial(_cut_off, "tasks", ["list"], 0, what)) for what in _STREAMS]
    if stage.quick:  # the others need what commands make
        return found
    for make in UNDISTURBED.values():
        make(stage)
    for name in _COMMANDS:
        for number in range(_MOMENTS):
            after = stage.random(f"{ATTACK}/{name}", number).uniform(*(_LATER if number % 2 else _EARLY))
            found.append(Deed(f"fsd-{name}", f"Ctrl-C after {after:.2f} s", partial(_interrupt, stage, name, after)))
    known: dict[str, tuple[Arguments, int]] = {  # commands with their exit codes
        "profile": (["show", calibration(stage).profile], 0),
        "calibrate": (["--task", "arithmetic", "--min-acc", "nan"], 2),
    }
    for name, (arguments, code) in known.items():
        found += [Deed(f"fsd-{name}", what, partial(_cut_off, name, arguments, code, what)) for what in _STREAMS]
    for name, options, in_order in _OPTIONS:
        for odd in (each for each in _ODD if each not in in_order):
            option = " ".join(part for part in options if part.startswith("--") or part == _HERE).replace(_HERE, odd)
            found.append(Deed(f"fsd-{name}", option, partial(_give, stage, name, options, odd)))
    for way, command in product(_WAYS, UNDISTURBED):
        found.append(Deed(f"fsd-{command}", f"links at {way}", partial(_plant, stage, command, way)))
    for number, what in ((signal.SIGSTOP, "stopped"), (signal.SIGKILL, "killed")):
        strikes = partial(_strike_worker, stage, number)
        found.append(Deed("fsd-collect --workers 2", f"a worker is {what}", strikes))
    return found


# --- Ctrl-C and streams -----------------------------------------------------------------------------------


def _arguments(stage: Stage, name: str, folder: Path) -> Arguments:
    """Returns arguments that have a command work. folder: where it may write."""
    cpu: list[str | Path] = ["--device", "cpu"]
    match name:
        case "calibrate":
            return ["--task", "arithmetic", "--min-acc", "0.8", "--limit", "80", "--workers", "1", "--plan", *cpu]
        case "collect":
            return Collection(folder).arguments()
        case "generate":
            return ["--profile", calibration(stage).profile, *cpu, _PROMPT]
        case "inspect":
            return [*cpu, _PROMPT]
        case "profile":
            return ["show", calibration(stage).profile]
        case "report":
            return [calibration(stage).profile, "--out", folder / "page.html"]
        case "tasks":
            return ["show", "arithmetic"]
        case "traces":
            return ["verify", collection(stage).folder / "out"]
        case "train_eagle":
            return ["--task", "arithmetic", "--limit", "9", "--epochs", "1", "--out", folder / "head", *cpu]
    return replace(training(stage), folder=folder).arguments()


def _interrupt(stage: Stage, name: str, after: float, folder: Path) -> Verdict:
    given, began = _arguments(stage, name, folder), time.monotonic()
    process = fresh(name, given, folder)
    time.sleep(after)
    process.send_signal(signal.SIGINT)
    found = ended(name, process, began)
    executable = getattr(entry, name).args[1]
    if found.code == -signal.SIGINT or ("Traceback" in found.err and "entry.py" not in found.err):
        return "ended", "before the command's own first line"
    if (complaint := found.complaint()) is not None:
        return complaint
    if found.code == 130 and found.last_line.startswith(f"{executable}: interrupted"):
        return "ended", found.last_line
    finished = found.code in (0, 3)  # it had been quicker
    return ("ended", "it had finished") if finished else ("unclear", f"exit code {found.code}: {found.err[-300:]}")


_STREAMS = {  # what is done to the streams of a command, by a shell; and exit codes beside its own
    "stdout is closed": (">&-", ()), "stderr is closed": ("2>&-", ()), "both are closed": (">&- 2>&-", ()),
    "all are closed": ("<&- >&- 2>&-", ()), "stdout is full": (">/dev/full", (2,)),
    "stderr is full": ("2>/dev/full", ()),
    "nobody reads stdout": ("> >(exit 0)", (141,)), "nobody reads stderr": ("2> >(exit 0)", ()),
}  # fmt: skip


def _cut_off(name: str, arguments: Arguments, code: int, what: str, folder: Path) -> Verdict:
    """Runs a command whose exit code is known without some of its streams."""
    redirections, codes = _STREAMS[what]
    began = time.monotonic()
    found = ended(name, fresh(name, arguments, folder, redirections), began)
    if (complaint := found.complaint()) is not None:
        return complaint
    if found.code in (code, *codes):
        return "ended", f"exit code {found.code}"
    return "unclear", f"exit code {found.code}: {found.last_line}"


# --- odd paths --------------------------------------------------------------------------------------------

_HERE, _PAIR = "PATH", "PAIR"  # in arguments: the odd path, and a model that is there
_PLAN = ["--task", "arithmetic", "--min-acc", "0.8", "--limit", "80", "--plan"]
_FOLDER, _FILE, _READ = ("a folder", "half characters"), ("half characters",), tuple[str, ...]()
_OPTIONS: list[tuple[str, list[str], tuple[str, ...]]] = [  # command, arguments, and odd paths that are in order there
    ("calibrate", ["--config", _HERE], _READ),
    *(("calibrate", [*_PLAN, option, _HERE], _FOLDER) for option in ("--out", "--state", "--cache")),
    ("calibrate", [*_PLAN, "--storage", _HERE], _FILE),
    *(("calibrate", [*_PLAN, option, _HERE], _READ) for option in ("--target", "--draft", "--head", "--predictor")),
    ("calibrate", ["--task", "gsm8k", "--min-acc", "0.9", "--target", _PAIR, "--draft", _PAIR, "--data", _HERE], _READ),
    ("calibrate", ["--certify", _HERE, "--task", "arithmetic", "--plan"], _READ),
    ("collect", ["--task", "arithmetic", "--limit", "8", "--out", _HERE], _FOLDER),
    ("generate", ["--profile", _HERE, _PROMPT], _READ),
    ("generate", ["--profile", PROFILE, "--file", _HERE], _READ),
    ("generate", ["--profile", PROFILE, "--head", _HERE, _PROMPT], _READ),
    ("inspect", ["--html", _HERE, _PROMPT], _FILE),
    ("profile", ["show", _HERE], _READ),
    ("profile", ["retime", _HERE], _READ),
    ("profile", ["vllm", _HERE], _READ),
    ("report", [_HERE], _READ),
    ("report", [PROFILE, "--out", _HERE], _FILE),
    ("tasks", ["check", "gsm8k", "--data", _HERE], _READ),
    ("tasks", ["show", f"{_HERE}.yaml"], _READ),
    ("traces", ["verify", _HERE], _READ),
    ("train_predictor", ["--traces", _HERE, "--out", "predictor"], _READ),
    ("train_eagle", ["--task", "arithmetic", "--limit", "8", "--target", _HERE, "--out", "head"], _READ),
]  # fmt: skip
_ODD = ("nothing", "a pipe", "a device", "a folder", "a long name", "half characters", "a file in a file")


def _give(stage: Stage, name: str, options: list[str], odd: str, folder: Path) -> Verdict:
    shutil.copy(calibration(stage).profile, folder / PROFILE)
    path = str(_odd(odd, folder)) if odd != "nothing" else ""
    if f"{_HERE}.yaml" in options and path and odd not in ("a long name", "a file in a file"):
        Path(f"{path}.yaml").symlink_to(path)
    places = {_HERE: path, PROFILE: str(folder / PROFILE), f"{_HERE}.yaml": f"{path}.yaml", _PAIR: str(pair_paths()[0])}
    found = run(name, [places.get(part, part) for part in options], folder=folder)
    if (complaint := found.complaint()) is not None:
        return complaint
    if found.refused:
        return "refused", found.last_line
    return "silent" if found.code == 0 else "unclear", f"exit code {found.code}: {found.last_line}"


def _odd(kind: str, folder: Path) -> Path:
    path = folder / "odd"
    match kind:
        case "a pipe":
            os.mkfifo(path)
        case "a device":
            path.symlink_to("/dev/zero")
        case "a folder":
            path.mkdir()
        case "a long name":
            return folder / ("x" * 5000)
        case "half characters":
            return folder / "odd\udcff"
        case "a file in a file":
            path.write_text("")
            return path / "inner"
    return path


# --- planted links ----------------------------------------------------------------------------------------

_WAYS = {
    "its name": "{}",
    "its temporary name": "{}.tmp",
    "a hidden temporary name": ".{}.tmp",
    "its lock's": "{}.lock",
}


def _plant(stage: Stage, command: str, way: str, folder: Path) -> Verdict:
    """Has a command write where links to a file of somebody else stand at the names of all that it writes."""
    done, victim = UNDISTURBED[command](stage), folder / "victim"
    job = replace(done, folder=folder / "job")
    victim.write_text("precious")
    if isinstance(done, Calibration):
        for name in ("cache", "state"):
            shutil.copytree(done.folder / name, job.folder / name)
    for path in (done.folder / "out").rglob("*"):
        link = job.folder / path.relative_to(done.folder).with_name(_WAYS[way].format(path.name))
        if path.is_file() and not path.name.endswith(".lock"):
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(victim)
    found = run(job.name, job.arguments())
    if victim.read_text() != "precious":
        return "lost", f"what a link leads to was written: {victim.read_text()[:80]!r}"
    if (complaint := found.complaint()) is not None:
        return complaint
    return ("refused", found.last_line) if found.refused else ("ended", f"exit code {found.code}")


# --- workers ----------------------------------------------------------------------------------------------


def _strike_worker(stage: Stage, number: int, folder: Path) -> Verdict:
    """Sends a signal to one of two workers once a portion is done; the collection is to end as without."""
    reference = collection(stage)
    job, began = replace(reference, folder=folder), time.monotonic()
    process = started(job.name, [*job.arguments(), "--workers", "2"])
    while not job.saved() and process.poll() is None:
        time.sleep(0.02)
    workers = [child for child in descendants(process.pid) if "popen_loky_posix" in command_line(child)][:1]
    for worker in workers:
        os.kill(worker, number)
    found = ended(job.name, process, began)  # it waits a minute for a worker that does not answer
    for worker in workers:
        with suppress(ProcessLookupError):
            os.kill(worker, signal.SIGCONT)
    verdict, evidence = judge_end(found, job, reference)
    told = [line for line in found.err.splitlines() if "begins again in another" in line]
    return verdict, evidence or (told[0] if told else "nothing had to begin again")


def descendants(process: int) -> list[int]:
    """Returns the ids of the processes that a process and its children have started."""
    found = []
    for listing in Path("/proc").glob(f"{process}/task/*/children"):
        with suppress(OSError):  # it has ended
            for child in map(int, listing.read_text().split()):
                found += [child, *descendants(child)]
    return found


def command_line(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_text().replace("\0", " ")
    except OSError:  # it has ended
        return ""
