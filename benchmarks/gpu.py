"""Everything that only a GPU can show, in one call of at most eight minutes: `python benchmarks/gpu.py`.

Needs torch, transformers and triton, pydantic and what they need; no network. `--dry-run` walks every path on a CPU at
toy sizes, kernels interpreted: its numbers say nothing. Prints a table and writes JSON after every part, so that a call
that is cut off leaves what it measured.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
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


@dataclass(frozen=True)
class Plan:
    device: str
    target: Mapping[str, Any]
    draft: Mapping[str, Any]
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
_FULL = Plan("cuda", _8B, _1B, _WIDTHS, (4, 8), (1, 8, 32), (512, 4096), 128, 64, 1 << 31, 50, True)
_DRY = Plan("cpu", _TOY, _TOY, (979,), (2,), (1, 2), (8,), 16, 2, 1 << 20, 1, False)


def kernels(plan: Plan) -> Any:
    from gpu_kernels import checked

    dtypes = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    return list(checked(plan.vocabularies, dtypes, max(plan.draft_lengths), plan.repeats, plan.device))


def equality(plan: Plan) -> Any:
    """Share of the bundled pair's texts that are the CPU's, token by token."""
    from fsd_calib import SpeculativeDecoder, load_task
    from fsd_data import pair_paths

    found = []
    for dtype in ("float32", "float64"):
        on = partial(SpeculativeDecoder.from_pretrained, *pair_paths(), dtype=dtype)
        ours, theirs = on(device=plan.device), on(device="cpu")
        task = load_task("arithmetic", seed=3, limit=plan.problems, tokenizer=ours.tokenizer)
        prompts = [problem.prompt for problem in task.problems]
        for rule in ("sd", "fsd-coupled"):
            for temperature in (0.0, 0.6):
                made = [d.generate(prompts, 64, temperature=temperature, rule=rule) for d in (ours, theirs)]
                same = sum(a.tokens == b.tokens for a, b in zip(*made, strict=True)) / len(prompts)
                found.append({"dtype": dtype, "rule": rule, "temperature": temperature, "equal": same})
    return found


def rounds(plan: Plan) -> Any:
    from gpu_claims import CHANCES
    from gpu_rounds import assisted, bandwidth, large, read, timed

    speed = bandwidth(plan.copied, plan.device)
    found: dict[str, Any] = {"bytes_a_second": speed, "rounds": [], "assisted": []}
    for context in plan.contexts:
        pair = large(dict(plan.target), dict(plan.draft), context, max(plan.rows), plan.new, plan.device)
        for length in plan.draft_lengths:
            for rows in plan.rows:
                for compile in _ways(rows):
                    where = {"context": context, "draft_length": length, "rows": rows, "compile": compile}
                    for chance in CHANCES if rows == 1 else CHANCES[:1]:
                        made = timed(pair, chance, length, rows, compile)
                        floor = 1000 * read(pair, length, rows) / speed
                        found["rounds"].append(where | {"chance": chance, "floor_milliseconds": floor} | made)
            alone = assisted(pair, length)
            found["assisted"].append({"context": context, "draft_length": length, "milliseconds": alone})
        del pair
    return found


def _ways(rows: int) -> tuple[Any, ...]:
    return (False, "capture") if rows == 1 else (False,)


def recording(plan: Plan) -> Any:
    """Milliseconds a round with every divergence recorded, and without."""
    from fsd_calib import Recorder
    from fsd_decoding.divergence import DIVERGENCES
    from gpu_claims import CHANCES
    from gpu_rounds import large, timed

    pair = large(dict(plan.target), dict(plan.draft), plan.contexts[0], 1, plan.new, plan.device)
    silent, told = (
        timed(pair, CHANCES[0], plan.draft_lengths[0], 1, False, observer)["milliseconds"]
        for observer in (lambda record: None, Recorder(list(DIVERGENCES)))
    )
    return {"silent_milliseconds": silent, "recorded_milliseconds": told}


def training(plan: Plan) -> Any:
    """Seconds in which the bundled pair's two models are trained from nothing."""
    if not plan.trains:
        return None
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as out:
        subprocess.run([sys.executable, "-m", "fsd_data.train", "--out", out, "--device", plan.device], check=True)
    return {"seconds": time.perf_counter() - began}


_PARTS: Mapping[str, Callable[[Plan], Any]] = {
    part.__name__: part for part in (kernels, equality, rounds, recording, training)
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
        from fsd_decoding.kernels import serving

        serving.INTERPRETED = True
    elif not torch.cuda.is_available():
        parser.error("there is no GPU here; --dry-run walks every path on a CPU")
    run(plan, options.parts, options.out)


def run(plan: Plan, parts: list[str], out: Path) -> None:
    from claims import table
    from gpu_claims import claims
    from machine import facts

    machine = facts() | {"gpu": torch.cuda.get_device_name() if plan.device == "cuda" else None}
    found: dict[str, Any] = {"machine": machine, "command": sys.argv, "plan": asdict(plan), "seconds": {}}
    out.parent.mkdir(parents=True, exist_ok=True)
    for name in parts:
        began = time.perf_counter()
        found[name] = _PARTS[name](plan)
        found["seconds"][name] = time.perf_counter() - began
        made = list(claims(found))
        out.write_text(json.dumps(found | {"claims": [asdict(claim) for claim in made]}, indent=1) + "\n")
        print(f"{name}: {found['seconds'][name]:.0f} s", flush=True)
    print(table(made))


if __name__ == "__main__":
    main()
