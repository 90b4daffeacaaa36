"""What else drafts for a real target, and drafts that end early: `python benchmarks/real_drafts.py --pair TARGET DRAFT`.

The draft model, n-grams and an EAGLE head under the same rule, decoded; and drafts that a predictor ends, which was
trained on other problems, beside the best fixed length, along the target's own texts.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from dataclasses import replace
from pathlib import Path

import torch

from fsd_calib import SpeculativeDecoder, load_task
from fsd_calib.engines.own import measure_costs
from fsd_calib.tasks.split import tuning_of
from lib.common.results import RESULTS, conclude, machine_facts, options_of
from lib.peers import RealPair
from lib.real.blocks import Blocks
from lib.real.drafters import beside
from lib.real.stopping import gains, stopper_of

_TRAINING, _QUICK = 192, 40  # problems for the predictor
_COSTED, _COSTED_TOKENS = 16, 128  # problems and tokens on which rounds are timed


def main() -> int:
    options, machine = _parser().parse_args(), machine_facts()
    pair = RealPair.of(options.pair, None)
    torch.set_num_threads(1)  # on which costs do not depend on what else the machine does
    decoder = SpeculativeDecoder.from_pretrained(*pair.models, dtype=pair.dtype)
    tested, training = (
        load_task(options.task, seed=0, data=data, tokenizer=decoder.tokenizer)
        for data in (options.data, options.training)
    )
