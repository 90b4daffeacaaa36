"""Lossy rules beside each other: `nohup python benchmarks/rules.py &`; takes three hours on one core.

On the same problems, noise and draft length, and at every T at once: the most tokens/s of every score where it keeps a
retention, over the lossless rule of its temperature, and what the values of engines' knobs keep. Every text is really
decoded (`lib/rules`). Texts are stored as they are finished, so that a run that was cut off goes on where it was.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from fsd_calib import SpeculativeDecoder, load_task, load_traces
from fsd_calib.tasks.base import Task
from fsd_common.pages.pictures import png
from fsd_common.pages.themes import THEMES
from fsd_common.user_folders import default_cache
from fsd_data import pair_paths
from lib.common.results import conclude, machine_facts, options_of
from lib.pool import pool_task
from lib.rules.compared import Compared
from lib.rules.costs import costs_of_rounds
from lib.rules.curves import draws
from lib.rules.judges import Panel
from lib.rules.replayed import from_traces, table
from lib.rules.shown import chart, tables
from lib.rules.stored import SEED, Stored, folder_of
from lib.rules.texts import write

TEMPERATURES = (0.0, 0.6, 1.0)
_PROBLEMS, _QUICK, _ROWS = 3_000, 12, 128
_TIMED, _REPEATS = 6, 24  # problems that rounds are timed on


def main() -> int:
    options, machine = _parser().parse_args(), machine_facts()
    if options.traces is not None:
        replayed = from_traces(load_traces(options.traces), options.draft_length)
        return conclude(options, machine, {"traces": replayed}, [], table(replayed))
    problems = _QUICK if options.quick else options.problems
    torch.set_num_threads(1)  # on which costs do not depend on what else the machine does
    decoder = SpeculativeDecoder.from_pretrained(*options.pair, draft_length=options.draft_length)
    if options.task == "arithmetic":  # the pool's problems, whose texts another program has decoded
        task = pool_task(SEED, problems, decoder.tokenizer)
    else:
        task = load_task(options.task, seed=SEED, limit=problems, tokenizer=decoder.tokenizer)
    found = [
        compare(decoder.with_config(temperature=temperature), task, options.texts, options.quick)
        for temperature in TEMPERATURES
    ]
    if options.chart is not None:
        for name, theme in THEMES.items():
            (options.chart / f"rules-{name}.png").write_bytes(png(chart(found), theme))
    about = {"task": options.task, "seed": SEED, "draft_length": options.draft_length, "temperatures": found}
    return conclude(options, machine, about, [], tables(found))


def _parser() -> ArgumentParser:
    parser = options_of(__doc__, "rules.json")
    parser.add_argument("--pair", nargs=2, metavar=("TARGET", "DRAFT"), default=pair_paths(), help="the bundled one")
    parser.add_argument("--task", default="arithmetic")
    parser.add_argument("--problems", type=int, default=_PROBLEMS)
    parser.add_argument("--draft-length", type=int, default=8)
    parser.add_argument("--texts", type=Path, default=default_cache() / "rules", help="folder of finished texts")
    parser.add_argument("--chart", type=Path, help="folder for rules-light.png and rules-dark.png")
    parser.add_argument(
        "--traces", type=Path, help="traces along the target; replay these instead, which decodes nothing"
    )
    return parser


def compare(decoder: SpeculativeDecoder, task: Task, folder: Path, quick: bool) -> Mapping[str, Any]:
    """Compares all rules at the decoder's temperature on a task's problems.

    Args:
        folder: where texts are stored.
        quick: whether costs may be rough.
    """
    temperature, panel = decoder.sampling.temperature, Panel.at(decoder.sampling.temperature)
    stored = Stored(folder_of(folder, decoder, task.name, panel), panel)
    numbered = list(enumerate(task.problems))
    if missing := [each for each in numbered if each[0] not in stored.numbers]:
        stored.add_all(write(decoder, task, missing, panel, _ROWS))
    timed = task.problems[: 1 if quick else _TIMED]
    costs, slower = costs_of_rounds(decoder, task, timed, panel, 1 if quick else _REPEATS)
    ratios = {judge: ratio.median for judge, ratio in slower.items()}
    compared = Compared(panel, stored.columns(len(numbered)), draws(len(numbered)), costs, ratios)
    return {
        "temperature": temperature, "problems": len(numbered), "accuracy": compared.accuracy, "costs": costs,
        "slower": {str(judge): ratio for judge, ratio in slower.items()},
        "lossless": compared.of_lossless(), "fastest_lossless": str(compared.lossless),
        "levels": compared.levels(), "defaults": compared.of_defaults(decoder.draft_length),
        "points": list(compared.points()),
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
