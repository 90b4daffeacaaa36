"""Kills, flipped bits, damaged files and full disks: `python benchmarks/attacks.py`; at most some 15 minutes.

40 SIGKILLs of calibrations, collections and trainings, 400 flipped bits of a profile, 200 damaged files of traces,
caches, studies, ledgers and predictors, and disks of five sizes, under the commands themselves, on the bundled pair.
Commands are forked from a process that has imported what they import, so that a kill hits their work.
Nothing may be read silently as something else, end in a traceback, or be lost. The exit code is 1 if anything is.

`--only kills --case 3 --scratch DIR` repeats one case, on the same files if DIR is that of the first run.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lib.attacks import corruptions, disks, flips, kills
from lib.attacks.cases import Case, as_table, faults, summary
from lib.attacks.material import Material
from lib.common.machine import machine_facts
from lib.common.results import write_and_print

ATTACKS = (flips.ATTACK, corruptions.ATTACK, disks.ATTACK, kills.ATTACK)
_COMMANDS = 10_000  # cases from this number on are given to commands rather than to readers


@dataclass(frozen=True)
class Plan:
    """How many cases each attack has."""

    flips: int
    flipped_commands: int
    corruptions: int
    corrupted_commands: int
    disks: Sequence[int]
    chains: Sequence[kills.Chain]


FULL = Plan(390, 10, 180, 20, range(len(disks.cases())), kills.CHAINS)
QUICK = Plan(20, 0, 27, 0, (7,), kills.QUICK)


@dataclass(frozen=True)
class Attacker:
    """Runs the attacks of a plan. case: the only one to run; None: all."""

    plan: Plan
    seed: int
    scratch: Path
    jobs: int
    case: int | None = None

    @property
    def material(self) -> Material:
        return Material(self.scratch / "material")

    def flips(self) -> Iterator[Case]:
        profile, folder = self.material.calibration().profile, self._folder(flips.ATTACK)
        yield from flips.attack_reader(profile, self._numbers(0, self.plan.flips), self.seed, folder)
        numbers = self._numbers(_COMMANDS, self.plan.flipped_commands)
        yield from flips.attack_commands(profile, numbers, self.seed, folder)

    def corruptions(self) -> Iterator[Case]:
        untouched, asked = self.material.subjects()
        folder, numbers = self._folder(corruptions.ATTACK), self._numbers(0, self.plan.corruptions)
        with corruptions.ReaderProcess(asked) as reader:
            yield from corruptions.attack_readers(untouched, numbers, self.seed, folder, reader.read)
        numbers = self._numbers(_COMMANDS, self.plan.corrupted_commands)
        yield from corruptions.attack_command(self.material.calibration(), numbers, self.seed, folder)

    def disks(self) -> Iterator[Case]:
        mounted, numbers = disks.can_mount(self.scratch), [n for n in self.plan.disks if self.case in (None, n)]
        for command in disks.COMMANDS:
            kills.undisturbed(command, self.material)
        yield from self._at_once([(disks.attack, n, self.material, self.scratch, mounted) for n in numbers])

    def kills(self) -> Iterator[Case]:
        chains = [(n, chain) for n, chain in enumerate(self.plan.chains) if self.case in (None, n)]
        for _, chain in chains:
            kills.undisturbed(chain.command, self.material)
        work = [(kills.attack, chain, n, self.seed, self.material, self.scratch) for n, chain in chains]
        yield from self._at_once(work)

    def _at_once(self, work: Sequence[tuple[Any, ...]]) -> Iterator[Case]:
        """Runs several attacks of processes at the same time."""
        with ThreadPoolExecutor(self.jobs) as pool:
            for cases in pool.map(lambda call: list(call[0](*call[1:])), work):
                yield from cases

    def _numbers(self, first: int, count: int) -> list[int]:
        return [n for n in range(first, first + count) if self.case in (None, n)]

    def _folder(self, name: str) -> Path:
        folder = self.scratch / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder


def attack(attacker: Attacker, only: Sequence[str], out: Path, verbose: bool = False) -> list[Case]:
    """Runs the attacks; prints each fault (verbose: each case) when it is found, then a table, and writes the JSON."""
    began, machine, cases = time.perf_counter(), machine_facts(), list[Case]()
    for name in only:
        for case in getattr(attacker, name)():
            cases.append(case)
            if case.is_fault or verbose:
                print(case.line(), file=sys.stderr, flush=True)
    results = {
        "machine": machine, "seed": attacker.seed, "quick": attacker.plan is QUICK, "counts": summary(cases),
        "disks": "tmpfs" if disks.can_mount(attacker.scratch) else "RLIMIT_FSIZE", "faults": faults(cases),
        "examples": _examples(cases), "seconds": time.perf_counter() - began,
    }  # fmt: skip
    write_and_print(results, out, as_table(cases))
    return cases


def _examples(cases: Sequence[Case]) -> list[str]:
    """Returns one case of each verdict on each subject, as a line."""
    return list({(case.attack, case.subject, case.verdict): case.line() for case in cases}.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few cases of each attack")
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
        plan = QUICK if options.quick else FULL
        attacker = Attacker(plan, options.seed, scratch.absolute(), options.jobs, options.case)
        cases = attack(attacker, [options.only] if options.only else ATTACKS, options.out, options.verbose)
    return int(any(case.is_fault for case in cases))


if __name__ == "__main__":
    sys.exit(main())
