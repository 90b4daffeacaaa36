"""What else drafts for a real target: `python benchmarks/real_drafts.py --pair TARGET DRAFT --data FOLDER`.

The draft model, n-grams and an EAGLE head under the same rule, decoded on the first block of the study; and drafts that
a predictor ends, which was trained on other problems, beside the best fixed length, along the target's own texts.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fsd_calib import SpeculativeDecoder, load_task
from fsd_calib.tasks.split import tuning_of
from lib.common.results import RESULTS, conclude, machine_facts, options_of
from lib.peers import RealPair
from lib.real.blocks import Blocks
from lib.real.drafters import beside
from lib.real.stopping import gains, stopper_of
from lib.real.tasks import BLOCK, FILES, costs_of, problems_of

_LENGTH, _TRAINING, _QUICK = 5, 192, 4  # of drafts; problems for the predictor; of a block in a smoke run


def main() -> int:
    options, machine = _parser().parse_args(), machine_facts()
    pair = RealPair.of(options.pair, None)
    torch.set_num_threads(1)  # on which costs do not depend on what else the machine does
    decoder = SpeculativeDecoder.from_pretrained(*pair.models, dtype=pair.dtype)
    task = problems_of("arithmetic" if options.quick else options.task, options.data, decoder)
    blocks = Blocks(decoder, task, options.seen, options.traces, _QUICK if options.quick else BLOCK)
    costs, measured = costs_of(decoder, task), {"pair": pair.facts(), "task": task.name, "draft_length": _LENGTH}
    found: dict[str, Any] = {"drafters": list(beside(blocks, options.head, _LENGTH))}
    if options.training is not None:
        others = load_task(task.name, seed=0, data=options.training, tokenizer=decoder.tokenizer)
        training = replace(others, problems=tuple(tuning_of(others)[:_TRAINING]))
        found["early_stop"] = gains(blocks, [0], stopper_of(blocks, training, costs, options.traces), costs)
    return conclude(options, machine, {**measured, "costs": costs, **found}, [])


def _parser() -> ArgumentParser:
    parser = options_of(__doc__, "real_drafts.json")
    parser.add_argument("--pair", type=Path, nargs="+", required=True, metavar="MODEL", help="folders of both models")
    parser.add_argument("--task", choices=FILES, default="gsm8k")
    parser.add_argument("--data", type=Path, help="folder of the data sets, each in one of its own; default: the hub's")
    parser.add_argument("--training", type=Path, help="problems for a predictor that ends drafts")
    parser.add_argument("--head", help="folder of an EAGLE head of the target")
    parser.add_argument("--seen", type=Path, default=RESULTS / "real", help="as of real.py")
    parser.add_argument("--traces", type=Path, required=True, help="as of real.py")
    return parser


if __name__ == "__main__":
    sys.exit(main())
