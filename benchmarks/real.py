"""A study of lossy rules on a real pair: `nohup python benchmarks/real.py --pair TARGET DRAFT --data FOLDER &`.

Accuracy of target and draft alone; tokens a round, churn and retention of the lossless rules and of each score at the T
that keep equal shares of what the exact rule rejects; and the same by replay of the target's own texts. It takes
problems in blocks, those of all tasks before the next ones of any, for as many hours as are given, and goes on where it
was: run it again for more problems, or once for each of several tasks at the same time.
"""

from __future__ import annotations

import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fsd_calib import CostModel, SpeculativeDecoder, load_task
from fsd_calib.engines.own import measure_costs
from fsd_calib.tasks.base import Task
from fsd_calib.tasks.split import tuning_of
from lib.common.results import conclude, machine_facts, options_of
from lib.peers import RealPair
from lib.real.blocks import Blocks, Pass
from lib.real.drafters import beside
from lib.real.points import Measured
from lib.real.shown import table
from lib.real.stopping import gains, stopper_of

_FILES = {
    "gsm8k": "gsm8k/test.jsonl", "humaneval": "humaneval/HumanEval.jsonl.gz",
    "mmlu": "mmlu/test", "csqa": "commonsenseqa/dev_rand_split.jsonl",
}  # fmt: skip
_PROBLEMS, _BLOCK, _QUICK = 512, 64, 3  # of a task at most; of a block
_COSTED, _COSTED_TOKENS = 16, 128  # problems and tokens on which rounds are timed
_TRAINING = 256  # problems for the predictor


class Cell(NamedTuple):
    """Texts of one task at a temperature and a draft length.

    Args:
        blocks: how many of them are wanted.
        scores: those that are decoded; None: all.
    """

    task: str
    temperature: float
    draft_length: int
    blocks: int
    scores: tuple[str, ...] | None = None


_FEW = "js", "margin"  # the paper's, and one that reads p alone
_CELLS = (
    *(Cell(task, 0.0, 5, 4) for task in _FILES),
    *(Cell("gsm8k", 0.0, length, 2, _FEW) for length in (3, 8)),
    Cell("gsm8k", 0.6, 5, 4),
    *(Cell(task, 0.6, 5, 2, _FEW) for task in _FILES if task != "gsm8k"),
    *(Cell(task, 0.0, length, 1, _FEW) for task in _FILES if task != "gsm8k" for length in (3, 8)),
)
"""In the order in which they are decoded, block by block."""
_SMOKE = Cell("arithmetic", 0.0, 3, 1), Cell("arithmetic", 0.6, 3, 2)


def main() -> int:
    options, machine = _parser().parse_args(), machine_facts()
    pair, size = RealPair.of(options.pair, None), _QUICK if options.quick else _BLOCK
    torch.set_num_threads(1)  # on which costs do not depend on what else the machine does
    decoder = SpeculativeDecoder.from_pretrained(*pair.models, dtype=pair.dtype)
    wanted = _SMOKE if options.quick else [cell for cell in _CELLS if cell.task in options.tasks]
    tasks = {name: _task(name, options.data, decoder) for name in {cell.task for cell in wanted}}
    cells = {
        cell: Blocks(decoder.with_config(temperature=cell.temperature), tasks[cell.task], options.texts, size)
        for cell in wanted
    }
    _decode(cells, time.time() + 3600 * options.hours)
    asked = next(iter(tasks.values())).problems[:_COSTED]
    costs = measure_costs(decoder, [p.prompt for p in asked], [p.id for p in asked], _COSTED_TOKENS, batch_size=1).model
    found = [_measured(cell, blocks, costs) for cell, blocks in cells.items() if _done(cell, blocks)]
    measured = {"pair": pair.facts(), "costs": costs, "cells": found} | _drafts(cells, costs, options)
    return conclude(options, machine, measured, [], "\n\n".join(map(table, found)))


def _drafts(cells: Mapping[Cell, Blocks], costs: CostModel, options: Namespace) -> dict[str, Any]:
    """What else drafts, and drafts that end early, on the first cell's problems."""
    cell, blocks = next(iter(cells.items()))
    found: dict[str, Any] = {"drafters": list(beside(blocks, options.head, cell.draft_length))}
    if options.training is None:
        return found
    task = load_task(cell.task, seed=0, data=options.training, tokenizer=blocks.decoder.tokenizer)
    training = replace(task, problems=tuple(tuning_of(task)[:_TRAINING]))
    stopper = stopper_of(blocks, training, costs, options.texts / "stopping")
    return found | {"early_stop": gains(blocks, _done(cell, blocks), stopper, costs)}


def _parser() -> ArgumentParser:
    parser = options_of(__doc__, "real.json")
    parser.add_argument("--pair", type=Path, nargs="+", required=True, metavar="MODEL", help="folders of both models")
    parser.add_argument("--data", type=Path, help="folder of the data sets, each in one of its own; default: the hub's")
    parser.add_argument("--texts", type=Path, required=True, help="folder of what is decoded")
    parser.add_argument("--training", type=Path, help="problems of the first task for a predictor that ends drafts")
    parser.add_argument("--head", help="folder of an EAGLE head of the target")
    parser.add_argument("--hours", type=float, default=8.0, help="0: only what is stored is measured")
    parser.add_argument("--tasks", nargs="+", choices=_FILES, default=list(_FILES))
    return parser


def _task(name: str, data: Path | None, decoder: SpeculativeDecoder) -> Task:
    """Returns a task whose problems are in the order of a hash, so that its first blocks are like the others."""
    file = None if data is None else data / _FILES[name]
    task = load_task(name, seed=0, limit=_PROBLEMS, data=file, tokenizer=decoder.tokenizer)
    return replace(task, problems=tuple(sorted(task.problems, key=lambda problem: problem.id)))


def _passes(cell: Cell, blocks: Blocks) -> list[Pass]:
    return [Pass(cell.draft_length, score) for score in (None, *(cell.scores or blocks.scores))]


def _decode(cells: Mapping[Cell, Blocks], until: float) -> None:
    """Decodes block by block, until all is decoded or the time is over."""
    for block in range(max(cell.blocks for cell in cells)):
        for cell, blocks in cells.items():
            if block >= cell.blocks or not blocks.problems(block):
                continue
            for of in _passes(cell, blocks):
                if time.time() >= until:
                    return
                began = time.time()
                blocks.traces(block), blocks.traces(block, drafts_alone=True)
                blocks.decode(block, of)
                print(f"{cell}, block {block}, {of.score}: {time.time() - began:.0f} s", flush=True)


def _done(cell: Cell, blocks: Blocks) -> list[int]:
    """The first blocks that all passes are through."""
    numbers = takewhile(blocks.problems, range(cell.blocks))
    return list(takewhile(lambda block: all(blocks.stored(block, of).numbers for of in _passes(cell, blocks)), numbers))


def _measured(cell: Cell, blocks: Blocks, costs: CostModel) -> dict[str, Any]:
    measured = Measured(blocks, _done(cell, blocks), cell.draft_length, costs)
    points = [point for score in cell.scores or blocks.scores for point in measured.points(score)]
    return {**measured.facts, "lossless": measured.lossless(), "points": points}


if __name__ == "__main__":
    sys.exit(main())
