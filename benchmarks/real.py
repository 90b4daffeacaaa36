"""A study of lossy rules on a real pair: `nohup python benchmarks/real.py --pair TARGET DRAFT --data FOLDER &`.

Accuracy of target and draft alone; tokens a round, churn and retention of the lossless rules and of each score at the T
that keep equal shares of what the exact rule rejects; and the same by replay of the target's own texts. It takes
problems in blocks, those of all tasks before the next ones of any, for as many hours as are given, and goes on where it
was: run it again for more problems, on another machine too, or once for each of several tasks at the same time.
"""

from __future__ import annotations

import sys
import time
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from itertools import takewhile
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fsd_calib import CostModel, SpeculativeDecoder
from lib.common.results import RESULTS, conclude, machine_facts, options_of
from lib.peers import RealPair
from lib.real.blocks import Blocks, Pass
from lib.real.points import Measured
from lib.real.shown import table
from lib.real.tasks import BLOCK, FILES, costs_of, problems_of

_QUICK = 3  # problems of a block in a smoke run


class Cell(NamedTuple):
    """Texts of one task at a temperature and a draft length.

    Args:
        blocks: how many of them are wanted.
        passes: over each block; None: all. The first has the paper's score, and one that reads p alone.
    """

    task: str
    temperature: float
    draft_length: int
    blocks: int
    passes: int | None = None


_CELLS = (
    *(Cell(task, 0.0, 5, 16) for task in FILES),
    Cell("gsm8k", 0.6, 5, 16),
    *(Cell("gsm8k", 0.0, length, 8, 1) for length in (3, 8)),
    *(Cell(task, 0.6, 5, 8, 1) for task in FILES if task != "gsm8k"),
    *(Cell(task, 0.0, length, 8, 1) for task in FILES if task != "gsm8k" for length in (3, 8)),
)
"""In the order in which they are decoded: of each block the first pass of all, then the second."""
_SMOKE = Cell("arithmetic", 0.0, 3, 1), Cell("arithmetic", 0.6, 3, 2)


def main() -> int:
    options, machine = _parser().parse_args(), machine_facts()
    pair, size = RealPair.of(options.pair, None), _QUICK if options.quick else BLOCK
    torch.set_num_threads(1)  # on which costs do not depend on what else the machine does
    decoder = SpeculativeDecoder.from_pretrained(*pair.models, dtype=pair.dtype)
    wanted = _SMOKE if options.quick else [cell for cell in _CELLS if cell.task in options.tasks]
    tasks = {name: problems_of(name, options.data, decoder) for name in {cell.task for cell in wanted}}
    cells = {
        cell: Blocks(
            decoder.with_config(temperature=cell.temperature), tasks[cell.task], options.seen, options.traces, size
        )
        for cell in wanted
    }
    _decode(cells, time.time() + 3600 * options.hours)
    costs = costs_of(decoder, next(iter(tasks.values())))
    found = [
        _measured(blocks, done, of, costs)
        for cell, blocks in cells.items()
        for of in _passes(cell, blocks)
        if (done := _done(cell, blocks, of))
    ]
    measured = {"pair": pair.facts(), "costs": costs, "cells": found}
    return conclude(options, machine, measured, [], "\n\n".join(map(table, found)))


def _parser() -> ArgumentParser:
    parser = options_of(__doc__, "real.json")
    parser.add_argument("--pair", type=Path, nargs="+", required=True, metavar="MODEL", help="folders of both models")
    parser.add_argument("--data", type=Path, help="folder of the data sets, each in one of its own; default: the hub's")
    parser.add_argument(
        "--seen", type=Path, default=RESULTS / "real", help="folder of what texts showed, without texts"
    )
    parser.add_argument("--traces", type=Path, required=True, help="folder of traces, which are large")
    parser.add_argument("--hours", type=float, default=8.0, help="0: only what is stored is measured")
    parser.add_argument("--tasks", nargs="+", choices=FILES, default=list(FILES))
    return parser


def _passes(cell: Cell, blocks: Blocks) -> list[Pass]:
    return blocks.passes(cell.draft_length, cell.passes)


def _decode(cells: Mapping[Cell, Blocks], until: float) -> None:
    """Decodes block by block, until all is decoded or the time is over."""
    for block in range(max(cell.blocks for cell in cells)):
        of_block = [
            (number, cell, of)
            for cell, blocks in cells.items()
            if block < cell.blocks and blocks.problems(block)
            for number, of in enumerate(_passes(cell, blocks))
        ]
        for _, cell, of in sorted(of_block, key=itemgetter(0)):
            if time.time() >= until:
                return
            began = time.time()
            cells[cell].along(block)
            cells[cell].decode(block, of, until)
            print(f"{cell}, block {block}, {of.scores}: {time.time() - began:.0f} s", flush=True)


def _done(cell: Cell, blocks: Blocks, of: Pass) -> list[int]:
    """The first blocks that a pass is through."""
    numbers = takewhile(blocks.problems, range(cell.blocks))
    return list(takewhile(lambda block: blocks.is_whole(block, of), numbers))


def _measured(blocks: Blocks, done: Sequence[int], of: Pass, costs: CostModel) -> dict[str, Any]:
    measured = Measured(blocks, done, of, costs)
    return {**measured.facts, "lossless": measured.lossless(), "points": list(measured.points())}


if __name__ == "__main__":
    sys.exit(main())
