"""The numerical floor of the bundled pair: texts that only rounding changes: `python benchmarks/floor.py`.

In exact arithmetic, lossless rules decode the target's own text. In fp32 a verification of L + 1 positions and a single
step round differently, so where two tokens are nearly tied another one may win.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

import torch

from fsd_calib import SpeculativeDecoder, load_task
from fsd_calib.tasks.base import Task
from fsd_calib.tasks.grading.numbers import final_number
from fsd_data import pair_paths
from lib.common.machine import machine_facts
from lib.common.results import write_json

_SEED, _TEMPERATURE, _DRAFT_LENGTHS = 424_242, 0.6, (1, 3, 8)
_RULES = [("sd", 0.0), *product(("coupled", "fsd", "fsd-coupled"), (0.0, _TEMPERATURE))]
_LOSSLESS = -1e-9  # T


@dataclass(frozen=True)
class Row:
    rule: str
    temperature: float
    draft_length: int
    equal_texts: float  # share of the problems
    equal_answers: float


def texts(decoder: SpeculativeDecoder, task: Task, rule: str, temperature: float, draft_length: int) -> list[str]:
    results = decoder.generate(
        [p.prompt for p in task.problems], task.max_new_tokens, temperature, rule=rule, threshold=_LOSSLESS,
        draft_length=draft_length, batch_size=64, ids=[p.id for p in task.problems], stop=task.stop,
    )  # fmt: skip
    return [result.text for result in results]


def floor(decoder: SpeculativeDecoder, task: Task) -> list[Row]:
    """Returns for every lossless rule the share of texts, and of answers, that equal the target's own."""
    alone = {t: texts(decoder, task, "target", t, 1) for t in (0.0, _TEMPERATURE)}
    rows = []
    for (rule, temperature), draft_length in product(_RULES, _DRAFT_LENGTHS):
        pairs = list(zip(alone[temperature], texts(decoder, task, rule, temperature, draft_length), strict=True))
        same = sum(a == b for a, b in pairs)
        agreed = sum(final_number(a) == final_number(b) for a, b in pairs)
        rows.append(Row(rule, temperature, draft_length, same / len(pairs), agreed / len(pairs)))
    return rows


def table(rows: Sequence[Row]) -> str:
    head = ["| rule | temperature | L | equal texts | equal answers |", "| --- | --- | --- | --- | --- |"]
    return "\n".join(
        head
        + [
            f"| `{r.rule}` | {r.temperature} | {r.draft_length} | {r.equal_texts:.1%} | {r.equal_answers:.1%} |"
            for r in rows
        ]
    )


def report(decoder: SpeculativeDecoder, rows: Sequence[Row], problems: int) -> dict[str, object]:
    return {
        "machine": machine_facts() | {"device": str(decoder.device)},
        "dtype": str(decoder.dtype).removeprefix("torch."),
        "seed": _SEED,
        "problems": problems,
        "rows": [asdict(row) for row in rows],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=200)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "floor.json")
    options = parser.parse_args()
    decoder = SpeculativeDecoder.from_pretrained(*pair_paths(), device="cpu", dtype=torch.float32)
    task = load_task("arithmetic", seed=_SEED, limit=options.problems)
    rows = floor(decoder, task)
    write_json(report(decoder, rows, options.problems), options.out, indent=2)
    print(table(rows))


if __name__ == "__main__":
    main()
