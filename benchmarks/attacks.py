"""Attacks on all that commands read, write and run: `python benchmarks/attacks.py`; at most an hour on two cores.

files: every file that a command reads, damaged in every way of one table, and given to its reader or to the command.
inputs: tasks in YAML, templates, expressions, data and draft heads that are written to do harm. texts: hostile texts
and programs for every grader. processes: Ctrl-C while a command starts, streams that are gone, planted links, odd
paths, stopped workers. ports: what listens, and whom it serves. disks: full ones. kills: SIGKILLs, and what is resumed.

Commands are forked from a process that has imported what they import, so that a kill hits their work. Nothing may be
read silently as something else, end in a traceback, hang, be lost, or be refused in anything but one
line. The exit code is 1 if anything is. The JSON is written as the run goes on; one attack alone replaces its own part.

`--only kills --case 3 --scratch DIR` repeats one case, on the same files if DIR is that of the first run.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from lib.attacks import disks, files, inputs, kills, ports, processes, texts
from lib.attacks.cases import Case, as_table, report
from lib.attacks.stage import Stage
from lib.common.machine import machine_facts
from lib.common.results import write_json

_MODULES: tuple[Any, ...] = (inputs, texts, files, processes, ports, disks, kills)
ATTACKS = {module.ATTACK: module.attack for module in _MODULES}
_EVERY = 20.0  # seconds between writings of the JSON


def attack(name: str, stage: Stage, out: Path, verbose: bool = False) -> list[Case]:
    """Runs an attack; prints each fault (verbose: each case) when it is found, and writes the JSON as it goes on."""
    began, machine, cases = time.perf_counter(), machine_facts(), list[Case]()
    disk = "tmpfs" if disks.can_mount(stage.scratch) else "RLIMIT_FSIZE"

    def write() -> None:
        found = json.loads(out.read_text()) if out.exists() else {}
        run = {"machine": machine, "disk": disk, "seed": stage.seed, "quick": stage.quick}
        write_json(found | {name: {**run, "seconds": time.perf_counter() - began, **report(cases)}}, out)

    written = began
    for case in ATTACKS[name](stage):
        cases.append(case)
        if case.is_fault or verbose:
            print(case.line(), file=sys.stderr, flush=True)
        if time.perf_counter() > written + _EVERY:
            write()
            written = time.perf_counter()
    write()
    return cases


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a case or a few of each attack")
    parser.add_argument("--only", choices=ATTACKS, help="one attack")
    parser.add_argument("--case", type=int, help="one case of it, by its number")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="commands that run at the same time")
    parser.add_argument("--scratch", type=Path, help="folder for the attacked files, kept and used again")
    parser.add_argument("--verbose", action="store_true", help="print every case, not the faults alone")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "attacks.json")
    options = parser.parse_args()
    if options.case is not None and options.only is None:
        parser.error("--case needs --only: each attack numbers its own cases")
    with ExitStack() as stack:
        scratch = options.scratch or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stage = Stage(options.seed, scratch.absolute(), options.jobs, options.quick, options.case)
        only = [options.only] if options.only else ATTACKS
        cases = [case for name in only for case in attack(name, stage, options.out, options.verbose)]
    print(as_table(cases))
    return int(any(case.is_fault for case in cases))


if __name__ == "__main__":
    sys.exit(main())
