"""All measurements that need a GPU, in one call of at most eight minutes: `python benchmarks/gpu.py`.

It needs torch, transformers, triton and pydantic with their dependencies, and no network. `--dry-run` runs every part
but training on a CPU, at toy sizes with interpreted kernels; its numbers mean nothing. Results are written as JSON
after every part, so that an interrupted call leaves what it has measured.

Nothing that this script imports may import optuna, lightgbm, pandas or datasets, which need not be installed.
"""

from __future__ import annotations

import argparse
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

from lib.common.results import write_json

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
    """How much is measured."""

    device: str
    target: str  # a key of `_SHAPES`
    draft: str
    vocabularies: tuple[int, ...]
    draft_lengths: tuple[int, ...]
    rows: tuple[int, ...]
    contexts: tuple[int, ...]
    new: int  # tokens per text
    problems: int  # decoded by the bundled pair
    compared: int  # tokens of its texts that are compared with the CPU's
    copied: int  # bytes, to measure the memory's bandwidth
    repeats: int
    trains: bool  # whether the bundled pair is trained


_WIDTHS = (979, 32_001, 128_256, 262_144)
_FULL = Plan("cuda", "8B", "1B", _WIDTHS, (4, 8), (1, 8, 32), (512, 4096), 128, 64, 128, 1 << 31, 50, True)
_DRY = Plan("cpu", "toy", "toy", (979,), (2,), (1, 2), (8,), 16, 2, 6, 1 << 20, 1, False)


def kernels(plan: Plan) -> Any:
    """Measures errors and milliseconds of the fused kernels."""
    from lib.gpu.kernels import measure_kernels

    dtypes = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    return list(measure_kernels(plan.vocabularies, dtypes, max(plan.draft_lengths), plan.repeats, plan.device))


def attention(plan: Plan) -> Any:
    """Measures errors and milliseconds of grouped attention."""
    from lib.gpu.attention import measure_attention

    shape = _SHAPES[plan.target]
    heads = shape["num_attention_heads"]
    groups, size = heads // shape["num_key_value_heads"], shape["hidden_size"] // heads
    return list(measure_attention(heads, groups, size, plan.draft_lengths, plan.rows, max(plan.contexts), plan.device))


def equality(plan: Plan) -> Any:
    """Measures the share of the bundled pair's texts that equal the CPU's, for eager rounds and for graphs."""
    from fsd_calib import SpeculativeDecoder

    rows = []
    for dtype in ("float32", "float64"):
        bundled = partial(_bundled, plan, dtype)
        cpu, prompts = SpeculativeDecoder.from_pretrained(*_paths(), dtype=dtype, device="cpu"), _prompts(plan)
        eager, graphs = bundled(False), bundled("capture")
        for rule in ("sd", "fsd-coupled"):
            for temperature in (0.0, 0.6):
                settings: dict[str, Any] = {"temperature": temperature, "rule": rule}
                expected = cpu.generate(prompts, plan.compared, **settings)
                for name, decoder in (("eager", eager), ("graphs", graphs), ("graphs again", graphs)):
                    results = decoder.generate(prompts, plan.compared, **settings)
                    same = sum(a.tokens == b.tokens for a, b in zip(results, expected, strict=True)) / len(prompts)
                    rows.append({"dtype": dtype, "called": name, **settings, "equal": same})
    return rows


def waiting(plan: Plan) -> Any:
    """Counts how often the host waits for the GPU in a round, by what reads the rounds."""
    from lib.gpu.waits import waits_per_round

    return waits_per_round(_bundled(plan, "float32", "capture"), _prompts(plan), plan.new, plan.device)


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
    """Measures milliseconds per round as graphs, once also eager, and those of assisted generation.

    Yields the same results again whenever more of them have been measured.
    """
    from lib.gpu.rounds import assisted_milliseconds, bandwidth, with_prompts

    results: dict[str, Any] = {"bytes_a_second": bandwidth(plan.copied, plan.device), "rounds": [], "assisted": []}
    for context in plan.contexts:
        pair = with_prompts(_large(plan), context, max(plan.rows), plan.new)
        for length in plan.draft_lengths:
            for rows in plan.rows:
                results["rounds"] += _time_rounds(plan, pair, length, rows, "capture", results["bytes_a_second"])
                yield results
            assisted = assisted_milliseconds(pair, length)
            results["assisted"].append({"context": context, "draft_length": length, "milliseconds": assisted})
            yield results
    pair = with_prompts(_large(plan), plan.contexts[0], 1, plan.new)
    results["rounds"] += _time_rounds(plan, pair, plan.draft_lengths[0], 1, False, results["bytes_a_second"])
    yield results


def compiled(plan: Plan) -> Any:
    """Measures milliseconds per round with compiled models; compiling takes a minute or more."""
    from lib.gpu.rounds import bandwidth, with_prompts

    pair = with_prompts(_large(plan), plan.contexts[0], 1, plan.new)
    return _time_rounds(plan, pair, plan.draft_lengths[0], 1, True, bandwidth(plan.copied, plan.device))


def _time_rounds(plan: Plan, pair: Any, length: int, rows: int, compile: Any, bytes_a_second: float) -> list[Any]:
    """Times rounds at the first acceptance rate, and single streams at the others too unless that needs compiling."""
    from lib.gpu.claims import CHANCES
    from lib.gpu.rounds import bytes_read, time_rounds

    context = len(pair.prompts[0])
    floor = 1000 * bytes_read(pair, length, rows) / bytes_a_second
    where = {"context": context, "draft_length": length, "rows": rows, "compile": compile, "floor_milliseconds": floor}
    chances = CHANCES if rows == 1 and compile is not True else CHANCES[:1]
    return [where | {"chance": chance} | time_rounds(pair, chance, length, rows, compile) for chance in chances]


@cache
def _large(plan: Plan) -> Any:
    from lib.gpu.rounds import large_pair

    return large_pair(_SHAPES[plan.target], _SHAPES[plan.draft], plan.device)


def stopping(plan: Plan) -> Any:
    """Measures milliseconds per round where a policy ends drafts half way.

    "on time": the policy does not read q. "ahead": it reads q, so its answer is used one step later. "fixed": drafts
    have half the length and there is no policy.
    """
    from lib.gpu.claims import CHANCES
    from lib.gpu.rounds import time_rounds, with_prompts
    from lib.gpu.waits import EndsAfter

    pair, longest = with_prompts(_large(plan), plan.contexts[0], 1, plan.new), max(plan.draft_lengths)
    policies = {"on time": EndsAfter(longest // 2, looks=False), "ahead": EndsAfter(longest // 2)}
    milliseconds = {
        name: time_rounds(pair, CHANCES[0], longest, 1, "capture", policy=policy)["milliseconds"]
        for name, policy in policies.items()
    }
    return milliseconds | {"fixed": time_rounds(pair, CHANCES[0], longest // 2, 1, "capture")["milliseconds"]}


def recording(plan: Plan) -> Any:
    """Measures milliseconds per round with every divergence recorded, and without."""
    from fsd_calib import Recorder
    from fsd_decoding.divergence import DIVERGENCES
    from lib.gpu.claims import CHANCES
    from lib.gpu.rounds import time_rounds, with_prompts

    pair = with_prompts(_large(plan), plan.contexts[0], 1, plan.new)
    silent, recorded = (
        time_rounds(pair, CHANCES[0], plan.draft_lengths[0], 1, "capture", observer)["milliseconds"]
        for observer in (None, Recorder(list(DIVERGENCES)))
    )
    return {"silent_milliseconds": silent, "recorded_milliseconds": recorded}


def training(plan: Plan) -> Any:
    """Measures the seconds in which the bundled pair's two models are trained from scratch."""
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
    parser.add_argument("--dry-run", action="store_true", help="toy sizes on a CPU; its numbers mean nothing")
    parser.add_argument("--parts", nargs="+", choices=_PARTS, default=list(_PARTS))
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "gpu.json")
    options = parser.parse_args()
    plan = _DRY if options.dry_run else _FULL
    if options.dry_run:
        os.environ["TRITON_INTERPRET"] = "1"  # Triton reads it when it is first imported
        from fsd_decoding import tensors
        from fsd_decoding.engine import kv_pool
        from lib.gpu.tape import Tape

        tensors.INTERPRETED = True
        kv_pool.CAPTURES["cpu"] = lambda device: Tape()
    elif not torch.cuda.is_available():
        parser.error("torch finds no GPU on this machine; use --dry-run to try every part on a CPU")
    run(plan, options.parts, options.out)


def run(plan: Plan, parts: list[str], out: Path) -> None:
    from lib.common.claims import claims_table
    from lib.common.machine import machine_facts
    from lib.gpu.claims import gpu_claims

    machine = machine_facts() | {"gpu": torch.cuda.get_device_name() if plan.device == "cuda" else None}
    results: dict[str, Any] = {
        "machine": machine,
        "command": sys.argv,
        "plan": asdict(plan),
        "shapes": _SHAPES,
        "seconds": {},
    }
    for name in parts:
        began = time.perf_counter()
        measured = _PARTS[name](plan)
        for results[name] in measured if isinstance(measured, Iterator) else [measured]:
            results["seconds"][name] = time.perf_counter() - began
            write_json(results | {"claims": list(gpu_claims(results))}, out)
        print(f"{name}: {results['seconds'][name]:.0f} s", flush=True)
    print(claims_table(gpu_claims(results)))


if __name__ == "__main__":
    main()
