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

import json
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from lib.attacks import disks, files, inputs, kills, ports, processes, texts
from lib.attacks.cases import Case, Stage, as_table, report
from lib.common.results import machine_facts, options_of, write_json

_MODULES: tuple[Any, ...] = (inputs, texts, files, processes, ports, disks, kills)
ATTACKS = {module.ATTACK: module.attack for module in _MODULES}
_EVERY = 20.0  # seconds between writings of the JSON


def attack(name: str, stage: Stage, out: Path) -> list[Case]:
    """Runs an attack; prints each fault when it is found, and writes the JSON as it goes on."""
    machine, cases = machine_facts(), list[Case]()
    disk = "tmpfs" if disks.can_mount(stage.scratch) else "RLIMIT_FSIZE"

    def write() -> float:
        now, found = time.time(), json.loads(out.read_text()) if out.exists() else {}
        run = {"machine": machine, "disk": disk, "seed": stage.seed, "quick": stage.quick}
        shown = json.loads(json.dumps(report(cases)).replace(str(stage.scratch), "SCRATCH"))
        write_json(found | {name: {**run, "seconds": now - machine["began"], **shown}}, out)
        return now

    written = machine["began"]
    for case in ATTACKS[name](stage):
        cases.append(case)
        if case.is_fault:
            print(case.line(), file=sys.stderr, flush=True)
        if time.time() > written + _EVERY:
            written = write()
    write()
    return cases


def main() -> int:
    parser = options_of(__doc__, "attacks.json")
    parser.add_argument("--only", choices=ATTACKS, help="one attack")
    parser.add_argument("--case", type=int, help="one case of it, by its number")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scratch", type=Path, help="folder for the attacked files, kept and used again")
    options = parser.parse_args()
    if options.case is not None and options.only is None:
        parser.error("--case needs --only: each attack numbers its own cases")
    with ExitStack() as stack:
        scratch = options.scratch or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stage = Stage(options.seed, scratch.absolute(), options.quick, options.case)
        only = [options.only] if options.only else ATTACKS
        cases = [case for name in only for case in attack(name, stage, options.out)]
    print(as_table(cases))
    return int(any(case.is_fault for case in cases))


if __name__ == "__main__":
    sys.exit(main())
