"""Decodes problems at every threshold: `nohup nice python benchmarks/pool.py &`; takes an hour or more.

The bundled pair decodes greedily by rule `fsd-coupled`. For each problem of an arm (divergence, L), the pool holds the
partition of [0, T_max) into intervals of T, and the counts of the text of each: a problem is decoded losslessly first,
and then again just above the end of the interval that its last text holds for.

Finished chunks are kept under `--parts`, where an interrupted run goes on. After every chunk the tables in `--out` are
written anew, so they always hold all that is done.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from fsd_calib import CostModel, SpeculativeDecoder
from fsd_calib.tasks.base import Problem, Task
from fsd_data import pair_paths
from lib.calibration.pool import pool_task
from lib.common.machine import machine_facts
from lib.common.results import write_json
from lib.decoding.rounds import RoundClock

SEED, PROBLEMS, RULE = 81_000, 10_000, "fsd-coupled"
_LOSSLESS = -1.0
_ABOVE = 1e-6  # how far above the end of an interval the next text is decoded
_MOST = {"js": 0.4, "doubt": 2.5}  # T_max: the retention of `js` is below .9 there, and `doubt` accepts nearly all
_BATCH, _COST_LENGTHS, _COST_PROBLEMS = 64, (3, 5, 8, 11, 14), 12


@dataclass(frozen=True)
class Arm:
    """One divergence and L, which are decoded on the problems from `start` to `stop`."""

    divergence: str
    draft_length: int
    start: int
    stop: int


# In the order of their use. `js` at L = 5 is the default; it has more problems, to count false certificates on.
ARMS = (
    *(Arm(divergence, length, 0, 3_000) for length in (5, 12, 8, 3) for divergence in _MOST),
    Arm("js", 5, 3_000, 10_000),
)


class Text(NamedTuple):
    """One text of one problem. It holds for T below `hi`, from the `hi` of the text before on."""

    problem: int
    hi: float
    correct: bool
    tokens: int  # emitted
    rounds: int
    drafted: int
    accepted: int


_TEXT = pa.schema(
    [
        ("problem", pa.int16()), ("hi", pa.float32()), ("correct", pa.bool_()), ("tokens", pa.uint8()),
        ("rounds", pa.uint8()), ("drafted", pa.uint16()), ("accepted", pa.uint8()),
    ]
)  # fmt: skip
_ALONE = pa.schema([("problem", pa.int16()), ("correct", pa.bool_()), ("tokens", pa.uint8())])


class Pair:
    """The bundled pair with the pool's problems."""

    def __init__(self, problems: int) -> None:
        torch.set_num_threads(1)
        self._models = SpeculativeDecoder.from_pretrained(*pair_paths(), device="cpu", dtype=torch.float32)
        self.task: Task = pool_task(SEED, problems, self._models.tokenizer)

    def decode(self, numbers: Sequence[int], **how: Any) -> list[tuple[Problem, Any]]:
        """Decodes problems, by their numbers; returns them with their results."""
        pair, problems = self._models, [self.task.problems[number] for number in numbers]
        decoder = SpeculativeDecoder(pair.target, pair.draft, pair.tokenizer, divergence=how.pop("divergence", "js"))
        results = decoder.generate(
            [p.prompt for p in problems], self.task.max_new_tokens, ids=[p.id for p in problems], stop=self.task.stop,
            **{"batch_size": _BATCH, **how},
        )  # fmt: skip
        return list(zip(problems, results, strict=True))

    def texts(self, arm: Arm) -> list[Text]:
        """Returns all texts of the arm's problems below T_max, sorted by problem and T."""
        at = dict.fromkeys(range(arm.start, arm.stop), _LOSSLESS)
        texts: list[Text] = []
        while at:
            decoded = self.decode(
                list(at), rule=RULE, threshold=list(at.values()), divergence=arm.divergence,
                draft_length=arm.draft_length,
            )  # fmt: skip
            for number, (problem, r) in zip(list(at), decoded, strict=True):
                right = self.task.grade(problem, r.text)
                texts.append(Text(number, r.interval[1], right, r.emitted, r.rounds, r.drafted, r.accepted))
                at[number] = r.interval[1] + _ABOVE
            at = {number: t for number, t in at.items() if t <= _MOST[arm.divergence]}
        return sorted(texts)

    def alone(self, start: int, stop: int) -> list[tuple[int, bool, int]]:
        """Decodes by the target only; returns (number, correct, tokens)."""
        decoded = self.decode(range(start, stop), rule="target", draft_length=1)
        return [(start + i, self.task.grade(p, r.text), r.emitted) for i, (p, r) in enumerate(decoded)]

    def costs(self) -> CostModel:
        """Measures costs of one stream: medians over rounds; v and its slope by least squares over lengths."""
        clocks = {length: self._clock(length) for length in _COST_LENGTHS}
        step = median(median(clock.drafting) / length for length, clock in clocks.items())
        rest = [median(clock.seconds) - median(clock.drafting) for clock in clocks.values()]
        position, verify = np.polyfit([length + 1 for length in clocks], rest, deg=1)
        return CostModel(step, float(verify), float(position))

    def _clock(self, length: int) -> RoundClock:
        clock = RoundClock()
        for number in range(_COST_PROBLEMS):
            self.decode([number], rule="coupled", draft_length=length, batch_size=1, observer=clock)
        return clock


def chunks(arm: Arm, size: int, problems: int) -> Iterator[Arm]:
    stop = min(arm.stop, problems)
    for start in range(arm.start, stop, size):
        yield Arm(arm.divergence, arm.draft_length, start, min(start + size, stop))


def part_of(folder: Path, name: str, start: int, stop: int) -> Path:
    return folder / f"{name}-{start}-{stop}.parquet"


def keep(path: Path, rows: Sequence[tuple[Any, ...]], schema: pa.Schema) -> None:
    """Writes a table atomically."""
    columns = list(zip(*rows, strict=True))
    unfinished = path.with_suffix(".unfinished")
    pq.write_table(pa.table([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema), unfinished)
    unfinished.rename(path)


def join(parts: Path, out: Path, about: dict[str, Any]) -> None:
    """Writes one table per arm, one of target-only decoding, and a description of them."""
    out.mkdir(parents=True, exist_ok=True)
    done: dict[str, list[Path]] = {}
    for path in sorted(parts.glob("*.parquet"), key=lambda path: int(path.stem.split("-")[-2])):
        done.setdefault(path.stem.rsplit("-", 2)[0], []).append(path)
    for name, paths in done.items():
        table = pa.concat_tables([pq.read_table(path) for path in paths])
        # A chunk is sorted by problem and T, so neighbouring rows differ little and compress well.
        pq.write_table(
            table, out / f"{name}.parquet", compression="zstd", compression_level=19, use_dictionary=False,
            column_encoding={"hi": "BYTE_STREAM_SPLIT"} if "hi" in table.column_names else None,
        )  # fmt: skip
    rows = {name: sum(pq.read_metadata(path).num_rows for path in paths) for name, paths in done.items()}
    write_json(about | {"rows": rows}, out / "pool.json", indent=2)


def describe(pair: Pair) -> dict[str, Any]:
    """Returns facts of the machine and costs; called before the long work begins."""
    machine, costs = machine_facts(), pair.costs()
    return {
        "machine": machine, "seed": SEED, "rule": RULE, "max_new_tokens": pair.task.max_new_tokens,
        "dtype": "float32", "batch_size": _BATCH, "thresholds_below": _MOST, "just_above": _ABOVE,
        "costs": {field.name: getattr(costs, field.name) for field in fields(costs)},
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=PROBLEMS)
    parser.add_argument("--chunk", type=int, default=500, help="problems per chunk")
    parser.add_argument("--parts", type=Path, default=Path("runs", "pool"), help="folder of finished chunks")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "pool")
    options = parser.parse_args()
    options.parts.mkdir(parents=True, exist_ok=True)
    pair = Pair(options.problems)
    about_file = options.parts / "pool.json"
    if not about_file.exists():
        about_file.write_text(json.dumps(describe(pair)))
    about = json.loads(about_file.read_text())
    for chunk in (c for arm in ARMS for c in chunks(arm, options.chunk, options.problems)):
        run_chunk(pair, chunk, options.parts)
        join(options.parts, options.out, about)


def run_chunk(pair: Pair, arm: Arm, parts: Path) -> None:
    """Decodes what is not in `parts` yet; the target's texts are decoded with the first arm that has the problems."""
    alone = part_of(parts, "target", arm.start, arm.stop)
    if not alone.exists():
        keep(alone, pair.alone(arm.start, arm.stop), _ALONE)
    path = part_of(parts, f"{arm.divergence}-{arm.draft_length}", arm.start, arm.stop)
    if not path.exists():
        began = time.monotonic()
        texts = pair.texts(arm)
        keep(path, texts, _TEXT)
        print(asdict(arm), f"{len(texts)} texts, {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
