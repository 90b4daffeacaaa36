"""What befalls a command's process: Ctrl-C while it starts, streams that are gone, odd paths, links that were planted
where it writes, and workers that are stopped or killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from fsd_calib.cli import entry
from fsd_common.user_folders import CACHE_VARIABLE, STATE_VARIABLE
from fsd_data import pair_paths
from lib.attacks.cases import Case, random_of
from lib.attacks.commands import TIMEOUT, Ended, run, started
from lib.attacks.jobs import Calibration, Collection, Job
from lib.attacks.kills import judge_end
from lib.attacks.material import Material
from lib.attacks.readers import PROFILE
from lib.attacks.stage import Stage
from lib.common.forked_programs import environment

ATTACK = "processes"
_PROMPT = "Ann has 3 boxes of 12 pens. How many?"
_START = "import sys; from fsd_calib.cli import entry; sys.argv[0] = 'fsd'; getattr(entry, sys.argv.pop(1))()"
_MOMENTS = 4  # of Ctrl-C, per command
_EARLY, _LATER = (0.05, 0.8), (0.8, 4.0)  # seconds after the start
Verdict = tuple[str, str]


class _Deed(NamedTuple):
    """One attack. quick: whether a quick run has it, too."""

    subject: str
    damage: str
    does: Callable[[Path], Verdict]  # in a folder of its own
    quick: bool = False


def attack(stage: Stage) -> Iterator[Case]:
    deeds = list(_deeds(stage))
    numbers = stage.chosen([number for number, deed in enumerate(deeds) if deed.quick or not stage.quick])
    yield from stage.at_once(partial(_case, stage), [(number, deeds[number]) for number in numbers])


def _case(stage: Stage, number: int, deed: _Deed) -> Iterator[Case]:
    folder, began = stage.folder(f"{ATTACK}-{number}"), time.monotonic()
    shutil.rmtree(folder)
    folder.mkdir()
    verdict = deed.does(folder)
    yield Case(ATTACK, number, deed.subject, deed.damage, *verdict, time.monotonic() - began)
    shutil.rmtree(folder, ignore_errors=True)


def _deeds(stage: Stage) -> Iterator[_Deed]:
    yield from _streams("tasks", lambda: ["list"], quick=True)
    for name in () if stage.quick else _COMMANDS:
        for number in range(_MOMENTS):
            after = random_of(stage.seed, f"{ATTACK}/{name}", number).uniform(*(_LATER if number % 2 else _EARLY))
            does = partial(_interrupt, name, partial(_arguments, stage.material, name), after)
            yield _Deed(f"fsd-{name}", f"Ctrl-C after {after:.2f} s", does)
    if not stage.quick:
        yield from _streams("profile", partial(_arguments, stage.material, "profile", Path()))
        yield from _streams("calibrate", lambda: ["--task", "arithmetic", "--min-acc", "nan"], code=2)
    yield from () if stage.quick else _odd_paths(stage.material)
    yield from () if stage.quick else _planted_links(stage.material)
    for number, name in ((signal.SIGSTOP, "stopped"), (signal.SIGKILL, "killed")) if not stage.quick else ():
        yield _Deed("fsd-collect --workers 2", f"a worker is {name}", partial(_strike_worker, stage.material, number))


# --- Ctrl-C and streams -----------------------------------------------------------------------------------

_COMMANDS = ("calibrate", "collect", "generate", "inspect", "profile", "report", "tasks", "traces", "train_eagle",
             "train_predictor")  # fmt: skip


def _arguments(material: Material, name: str, folder: Path) -> list[str | Path]:
    """Returns arguments that have a command work. folder: where it may write."""
    cpu: list[str | Path] = ["--device", "cpu"]
    match name:
        case "calibrate":
            return ["--task", "arithmetic", "--min-acc", "0.8", "--limit", "80", "--workers", "1", "--plan", *cpu]
        case "collect":
            return Collection(folder).arguments()
        case "generate":
            return ["--profile", material.calibration().profile, *cpu, _PROMPT]
        case "inspect":
            return [*cpu, _PROMPT]
        case "profile":
            return ["show", material.calibration().profile]
        case "report":
            return [material.calibration().profile, "--out", folder / "page.html"]
        case "tasks":
            return ["show", "arithmetic"]
        case "traces":
            return ["verify", material.collection().folder / "out"]
        case "train_eagle":
            return ["--task", "arithmetic", "--limit", "9", "--epochs", "1", "--out", folder / "head", *cpu]
    return replace(material.training(), folder=folder).arguments()


def fresh(name: str, arguments: Sequence[str | Path], folder: Path, *shell: str) -> subprocess.Popen[str]:
    """Starts a command in an interpreter of its own, as a shell does. shell: redirections."""
    command = [sys.executable, "-c", _START, name, *map(str, arguments)]
    variables = environment() | {CACHE_VARIABLE: str(folder / "cache"), STATE_VARIABLE: str(folder / "state")}
    return subprocess.Popen(
        ["bash", "-c", " ".join(['exec "$@"', *shell]), "bash", *command], env=variables, cwd=folder, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        errors="replace",
    )  # fmt: skip


def _ended(name: str, process: subprocess.Popen[str], began: float) -> Ended:
    try:
        out, err = process.communicate(timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        return Ended(name, process.returncode, out, err, time.monotonic() - began, hung=True)
    return Ended(name, process.returncode, out, err, time.monotonic() - began)


def _interrupt(name: str, arguments: Callable[[Path], Sequence[str | Path]], after: float, folder: Path) -> Verdict:
    given, began = arguments(folder), time.monotonic()
    process = fresh(name, given, folder)
    time.sleep(after)
    process.send_signal(signal.SIGINT)
    ended = _ended(name, process, began)
    executable = getattr(entry, name).args[1]
    if ended.code == -signal.SIGINT or ("Traceback" in ended.err and "entry.py" not in ended.err):
        return "ended", "before the command's own first line"
    if (complaint := ended.complaint()) is not None:
        return complaint
    if ended.code == 130 and ended.last_line.startswith(f"{executable}: interrupted"):
        return "ended", ended.last_line
    finished = ended.code in (0, 3)  # it had been quicker
    return ("ended", "it had finished") if finished else ("unclear", f"exit code {ended.code}: {ended.err[-300:]}")


_STREAMS = {  # what is done to the streams of a command, by a shell; and exit codes beside its own
    "stdout is closed": (">&-", ()), "stderr is closed": ("2>&-", ()), "both are closed": (">&- 2>&-", ()),
    "all are closed": ("<&- >&- 2>&-", ()), "stdout is full": (">/dev/full", (2,)),
    "stderr is full": ("2>/dev/full", ()),
    "nobody reads stdout": ("> >(exit 0)", (141,)), "nobody reads stderr": ("2> >(exit 0)", ()),
}  # fmt: skip


def _streams(
    name: str, arguments: Callable[[], Sequence[str | Path]], code: int = 0, quick: bool = False
) -> Iterator[_Deed]:
    for number, what in enumerate(_STREAMS):
        yield _Deed(f"fsd-{name}", what, partial(_cut_off, name, arguments, code, what), quick and number == 0)


def _cut_off(name: str, arguments: Callable[[], Sequence[str | Path]], code: int, what: str, folder: Path) -> Verdict:
    """Runs a command whose exit code is known without some of its streams."""
    redirections, codes = _STREAMS[what]
    given, began = arguments(), time.monotonic()
    ended = _ended(name, fresh(name, given, folder, redirections), began)
    if (complaint := ended.complaint()) is not None:
        return complaint
    if ended.code in (code, *codes):
        return "ended", f"exit code {ended.code}"
    return "unclear", f"exit code {ended.code}: {ended.last_line}"


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
    ("train", ["--traces", _HERE, "--out", "predictor"], _READ),
    ("train_eagle", ["--task", "arithmetic", "--limit", "8", "--target", _HERE, "--out", "head"], _READ),
]  # fmt: skip
_ODD = ("nothing", "a pipe", "a device", "a folder", "a long name", "half characters", "a file in a file")


def _odd_paths(material: Material) -> Iterator[_Deed]:
    for name, arguments, in_order in _OPTIONS:
        for odd in (each for each in _ODD if each not in in_order):
            option = " ".join(part for part in arguments if part.startswith("--") or part == _HERE).replace(_HERE, odd)
            yield _Deed(f"fsd-{name}", option, partial(_give, material, name, arguments, odd))


def _give(material: Material, name: str, arguments: list[str], odd: str, folder: Path) -> Verdict:
    shutil.copy(material.calibration().profile, folder / PROFILE)
    path = str(_odd(odd, folder)) if odd != "nothing" else ""
    if f"{_HERE}.yaml" in arguments and path and odd != "a long name":
        Path(f"{path}.yaml").symlink_to(path)
    places = {_HERE: path, PROFILE: str(folder / PROFILE), f"{_HERE}.yaml": f"{path}.yaml", _PAIR: str(pair_paths()[0])}
    ended = run(name, [places.get(part, part) for part in arguments], folder=folder)
    if (complaint := ended.complaint()) is not None:
        return complaint
    if ended.refused:
        return "refused", ended.last_line
    return "silent" if ended.code == 0 else "unclear", f"exit code {ended.code}: {ended.last_line}"


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


def _planted_links(material: Material) -> Iterator[_Deed]:
    for way in _WAYS:
        yield _Deed("fsd-collect", f"links at {way}", partial(_plant, material.collection, way))
        yield _Deed("fsd-train-predictor", f"links at {way}", partial(_plant, material.training, way))
        yield _Deed("fsd-calibrate", f"links at {way}", partial(_plant, material.calibration, way))


def _plant(reference: Callable[[], Job], way: str, folder: Path) -> Verdict:
    """Has a command write where links to a file of somebody else stand at the names of all that it writes."""
    done, victim = reference(), folder / "victim"
    job: Job = replace(done, folder=folder / "job")  # type: ignore[type-var]
    victim.write_text("precious")
    if isinstance(done, Calibration):
        for name in ("cache", "state"):
            shutil.copytree(done.folder / name, job.folder / name)
    for path in (done.folder / "out").rglob("*"):
        link = job.folder / path.relative_to(done.folder).with_name(_WAYS[way].format(path.name))
        if path.is_file() and not path.name.endswith(".lock"):
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(victim)
    ended = run(job.name, job.arguments())
    if victim.read_text() != "precious":
        return "lost", f"what a link leads to was written: {victim.read_text()[:80]!r}"
    if (complaint := ended.complaint()) is not None:
        return complaint
    return ("refused", ended.last_line) if ended.refused else ("ended", f"exit code {ended.code}")


# --- workers ----------------------------------------------------------------------------------------------


def _strike_worker(material: Material, number: int, folder: Path) -> Verdict:
    """Sends a signal to one of two workers once a portion is done; the collection is to end as without."""
    reference = material.collection()
    job = Collection(folder, reference.problems)
    arguments, began = [*job.arguments(), "--workers", "2"], time.monotonic()
    process = started(job.name, arguments)
    while not job.saved() and process.poll() is None:
        time.sleep(0.02)
    workers = [child for child in descendants(process.pid) if "popen_loky_posix" in command_line(child)]
    for worker in workers[:1]:
        os.kill(worker, number)
    try:
        out, err = process.communicate(timeout=TIMEOUT)  # it waits a minute for a worker that does not answer
    except TimeoutError:
        return "hang", f"it waits for a worker for more than {TIMEOUT:.0f} s"
    finally:
        for worker in workers[:1]:
            with suppress(ProcessLookupError):
                os.kill(worker, signal.SIGCONT)
    ended = Ended(job.name, process.wait(), out, err, time.monotonic() - began)
    verdict, evidence = judge_end(ended, job, reference)
    told = [line for line in err.splitlines() if "begins again in another" in line]
    return (verdict, evidence or (told[0] if told else "nothing had to begin again"))


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
