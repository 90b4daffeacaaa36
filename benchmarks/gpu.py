"""Everything that only a GPU can show, in one call of at most eight minutes: `python benchmarks/gpu.py`.

Needs torch, transformers and triton, pydantic and what they need; no network. `--dry-run` walks every path on a CPU at
toy sizes, kernels interpreted: its numbers say nothing. Writes JSON as it goes, so that a call that is cut off leaves
what it measured, and prints a table.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

_LLAMA = {"rope_parameters": {"rope_type": "default", "rope_theta": 500_000.0}, "max_position_embeddings": 131_072}
_8B = {
    "vocab_size": 128_256, "hidden_size": 4096, "intermediate_size": 14_336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "tie_word_embeddings": False, **_LLAMA,
}  # fmt: skip
_1B = {
    "vocab_size": 128_256, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
    "num_attention_heads": 32, "num_key_value_heads": 8, "tie_word_embeddings": True, **_LLAMA,
}  # fmt: skip
_TOY = {
    "vocab_size": 512, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "tie_word_embeddings": True, **_LLAMA,
}  # fmt: skip


_SHAPES: Mapping[str, Mapping[str, Any]] = {"8B": _8B, "1B": _1B, "toy": _TOY}


@dataclass(frozen=True)
class Plan:
    device: str
    target: str  # of `_SHAPES`
    draft: str
    vocabularies: tuple[int, ...]
    draft_lengths: tuple[int, ...]
    rows: tuple[int, ...]
    contexts: tuple[int, ...]
    new: int  # tokens a text
    problems: int  # of the bundled pair
    copied: int  # bytes
    repeats: int
    trains: bool


_WIDTHS = (979, 32_001, 128_256, 262_144)
_FULL = Plan("cuda", "8B", "1B", _WIDTHS, (4, 8), (1, 8, 32), (512, 4096), 128, 64, 1 << 31, 50, True)
_DRY = Plan("cpu", "toy", "toy", (979,), (2,), (1, 2), (8,), 16, 2, 1 << 20, 1, False)


def kernels(plan: Plan) -> Any:
    from lib.gpu.kernels import checked

    dtypes = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    return list(checked(plan.vocabularies, dtypes, max(plan.draft_lengths), plan.repeats, plan.device))


def attention(plan: Plan) -> Any:
    from lib.gpu.attention import attended

    shape = _SHAPES[plan.target]
    heads = shape["num_attention_heads"]
    groups, size = heads // shape["num_key_value_heads"], shape["hidden_size"] // heads
    return list(attended(heads, groups, size, plan.draft_lengths, plan.rows, max(plan.contexts), plan.device))


def equality(plan: Plan) -> Any:
    """Share of the bundled pair's texts that are the CPU's, token by token: rounds as they are, and as graphs."""
    from fsd_calib import SpeculativeDecoder

    found = []
    for dtype in ("float32", "float64"):
        on = partial(_bundled, plan, dtype)
        cpu, prompts = SpeculativeDecoder.from_pretrained(*_paths(), dtype=dtype, device="cpu"), _prompts(plan)
        eager, graphs = on(False), on("capture")
        for rule in ("sd", "fsd-coupled"):
            for temperature in (0.0, 0.6):
                how: dict[str, Any] = {"temperature": temperature, "rule": rule}
                expected = cpu.generate(prompts, plan.new, **how)
                for name, decoder in (("eager", eager), ("graphs", graphs), ("graphs again", graphs)):
                    made = decoder.generate(prompts, plan.new, **how)
                    same = sum(a.tokens == b.tokens for a, b in zip(made, expected, strict=True)) / len(prompts)
                    found.append({"dtype": dtype, "called": name, **how, "equal": same})
    return found


def waiting(plan: Plan) -> Any:
    """Waits of the host a round, by who looks at rounds."""
    from lib.gpu.waits import counted

    return counted(_bundled(plan, "float32", "capture"), _prompts(plan), plan.new, plan.device)


def _bundled(plan: Plan, dtype: str, compile: Any) -> Any:
    from fsd_calib import SpeculativeDecoder

    return SpeculativeDecoder.from_pretrained(*_paths(), dtype=dtype, device=plan.device, compile=compile)


def _paths() -> Any:
    from fsd_data import pair_paths

    return pair_paths()


def _prompts(plan: Plan) -> list[str]:
    from fsd_calib import load_task

    return [problem.prompt for problem in load_task("arithmetic", seed=3, limit=plan.problems).problems]


def rounds(plan: Plan) -> Iterator[Any]:
    """Milliseconds a round as graphs, and in one place as they are; beside assisted generation's."""
    from lib.gpu.rounds import asked, assisted, bandwidth

    found: dict[str, Any] = {"bytes_a_second": bandwidth(plan.copied, plan.device), "rounds": [], "assisted": []}
    for context in plan.contexts:
        pair = asked(_large(plan), context, max(plan.rows), plan.new)
        for length in plan.draft_lengths:
            for rows in plan.rows:
                found["rounds"] += _timed(plan, pair, length, rows, "capture", found["bytes_a_second"])
                yield found
            alone = assisted(pair, length)
            found["assisted"].append({"context": context, "draft_length": length, "milliseconds": alone})
            yield found
    pair = asked(_large(plan), plan.contexts[0], 1, plan.new)
    found["rounds"] += _timed(plan, pair, plan.draft_lengths[0], 1, False, found["bytes_a_second"])
    yield found


def compiled(plan: Plan) -> Any:
    """The same with compiled kernels, which takes a minute or more to begin."""
    from lib.gpu.rounds import asked, bandwidth

    pair = asked(_large(plan), plan.contexts[0], 1, plan.new)
    return _timed(plan, pair, plan.draft_lengths[0], 1, True, bandwidth(plan.copied, plan.device))


def _timed(plan: Plan, pair: Any, length: int, rows: int, compile: Any, bytes_a_second: float) -> list[Any]:
    """One text at a time also where less is accepted; but not compiled anew for it."""
    from lib.gpu.claims import CHANCES
    from lib.gpu.rounds import read, timed

    context = len(pair.prompts[0])
    floor = 1000 * read(pair, length, rows) / bytes_a_second
    where = {"context": context, "draft_length": length, "rows": rows, "compile": compile, "floor_milliseconds": floor}
    chances = CHANCES if rows == 1 and compile is not True else CHANCES[:1]
    return [where | {"chance": chance} | timed(pair, chance, length, rows, compile) for chance in chances]


@cache
def _large(plan: Plan) -> Any:
    from lib.gpu.rounds import large

    return large(_SHAPES[plan.target], _SHAPES[plan.draft], plan.device)


def stopping(plan: Plan) -> Any:
    """Milliseconds a round where a policy that looks at q ends drafts half way: asked on time, and one step ahead."""
    from lib.gpu.claims import CHANCES
    from lib.gpu.rounds import asked, timed
    from lib.gpu.waits import Ends

    pair, longest = asked(_large(plan), plan.contexts[0], 1, plan.new), max(plan.draft_lengths)
    ways = {"on time": Ends(longest // 2, looks=False), "ahead": Ends(longest // 2)}
    found = {
        name: timed(pair, CHANCES[0], longest, 1, "capture", policy=policy)["milliseconds"]
        for name, policy in ways.items()
    }
    return found | {"fixed": timed(pair, CHANCES[0], longest // 2, 1, "capture")["milliseconds"]}


def recording(plan: Plan) -> Any:
    """Milliseconds a round with every divergence recorded, and without."""
    from fsd_calib import Recorder
    from fsd_decoding.divergence import DIVERGENCES
    from lib.gpu.claims import CHANCES
    from lib.gpu.rounds import asked, timed

    pair = asked(_large(plan), plan.contexts[0], 1, plan.new)
    silent, told = (
        timed(pair, CHANCES[0], plan.draft_lengths[0], 1, "capture", observer)["milliseconds"]
        for observer in (None, Recorder(list(DIVERGENCES)))
    )
    return {"silent_milliseconds": silent, "recorded_milliseconds": told}


def training(plan: Plan) -> Any:
    """Seconds in which the bundled pair's two models are trained from nothing."""
    if not plan.trains:
        return None
    torch.cuda.empty_cache()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as out:
        subprocess.run([sys.executable, "-m", "fsd_data.train", "--out", out, "--device", plan.device], check=True)
    return {"seconds": time.perf_counter() - began}


_PARTS: Mapping[str, Callable[[Plan], Any]] = {
    part.__name__: part
    for part in (kernels, attention, equality, waiting, rounds, stopping, recording, training, compiled)
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry-run", action="store_true", help="toy sizes on a CPU")
    parser.add_argument("--parts", nargs="+", choices=_PARTS, default=list(_PARTS))
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "gpu.json")
    options = parser.parse_args()
    plan = _DRY if options.dry_run else _FULL
    if options.dry_run:
        os.environ["TRITON_INTERPRET"] = "1"  # before anything imports Triton
        from fsd_decoding.engine import kv_pool
        from fsd_decoding.kernels import dispatch
        from lib.gpu.tape import Tape

        dispatch.INTERPRETED = True
        kv_pool.CAPTURES["cpu"] = lambda device: Tape()
    elif not torch.cuda.is_available():
        parser.error("there is no GPU here; --dry-run walks every path on a CPU")
    run(plan, options.parts, options.out)


def run(plan: Plan, parts: list[str], out: Path) -> None:
    from lib.common.claims import table
    from lib.common.machine import facts
    from lib.gpu.claims import claims

    machine = facts() | {"gpu": torch.cuda.get_device_name() if plan.device == "cuda" else None}
    found: dict[str, Any] = {
        "machine": machine,
        "command": sys.argv,
        "plan": asdict(plan),
        "shapes": _SHAPES,
        "seconds": {},
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    for name in parts:
        began = time.perf_counter()
        made = _PARTS[name](plan)
        for found[name] in made if isinstance(made, Iterator) else [made]:
            found["seconds"][name] = time.perf_counter() - began
            _write(found, out)
        print(f"{name}: {found['seconds'][name]:.0f} s", flush=True)
    print(table(list(claims(found))))


def _write(found: dict[str, Any], out: Path) -> None:
    from lib.gpu.claims import claims

    out.write_text(json.dumps(found | {"claims": [asdict(claim) for claim in claims(found)]}, indent=1) + "\n")


if __name__ == "__main__":
    main()
