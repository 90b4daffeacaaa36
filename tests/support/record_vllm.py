"""Records what vLLM 0.33's own rejection samplers accept, by FLy and by block verification, on a CPU: a program.

Its kernels are taken from the unpacked wheel and run by Triton's interpreter, without the rest of vLLM, whose CPU build
has no 0.33. Prints `vllm_rounds.json`, which tests compare our rules with:

    python tests/support/vllm_sources.py
    python tests/support/record_vllm.py .vllm-wheels/0.33 > tests/support/vllm_rounds.json
"""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from itertools import product
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor

os.environ["TRITON_INTERPRET"] = "1"  # which Triton looks at when it is imported
import triton
from triton import language as tl

ROUNDS, LENGTH, VOCABULARY = 80, 4, 5
FLY = list(product((1, 2), (2, 3), (0.3, 0.7, 0.9)))  # window, k, threshold
_PACKAGES = (
    "vllm", "vllm.v1", "vllm.v1.spec_decode", "vllm.v1.watermarking", "vllm.v1.watermarking.prfs", "vllm.v1.worker",
    "vllm.v1.worker.gpu", "vllm.v1.worker.gpu.sample", "vllm.v1.worker.gpu.spec_decode",
)  # fmt: skip


def unpacked(folder: Path) -> tuple[Any, Any, Any]:
    """Imports vLLM's modules of FLy (V1), of rejection sampling (V2) and of its noise from a folder, and no other."""
    for name in _PACKAGES:
        sys.modules[name] = package = ModuleType(name)
        package.__path__ = [str(folder.joinpath(*name.split(".")))]
    device_functions = SimpleNamespace(log1p=lambda x: tl.log(1.0 + x))
    stub: Any = ModuleType("vllm.triton_utils")
    stub.tl, stub.triton, stub.tldevice, stub.HAS_TRITON = tl, triton, device_functions, True
    sys.modules[stub.__name__] = stub
    names = ("spec_decode.fly", "worker.gpu.spec_decode.rejection_sampler_utils", "worker.gpu.sample.gumbel")
    fly, rejection, gumbel = (import_module(f"vllm.v1.{name}") for name in names)
    return fly, rejection, gumbel


class Rounds:
    """Rounds of up to L tokens, as vLLM lays them out: a row for each drafted token, and one for the bonus token."""

    def __init__(self) -> None:
        random = torch.Generator().manual_seed(46)
        self.counts = torch.randint(1, LENGTH + 1, (ROUNDS,), generator=random)
        rows = int((self.counts + 1).sum())
        self.begins = torch.cat([torch.zeros(1, dtype=torch.int64), (self.counts + 1).cumsum(0)])
        self.target = (1.5 * torch.randn(rows, VOCABULARY, generator=random)).round(decimals=2)
        self.draft = torch.zeros(ROUNDS, LENGTH, VOCABULARY)
        self.inputs = torch.zeros(rows, dtype=torch.int64)  # row i verifies the input of row i + 1
        for round_, (begin, count) in enumerate(zip(self.begins.tolist(), self.counts.tolist(), strict=False)):
            noise = torch.randn(count, VOCABULARY, generator=random)
            self.draft[round_, :count] = (self.target[begin : begin + count] + noise).round(decimals=2)
            drawn = torch.multinomial(self.draft[round_, :count].softmax(-1), 1, generator=random)
            self.inputs[begin + 1 : begin + 1 + count] = drawn.flatten()
        self.seeds = torch.randint(2**31, (ROUNDS,), generator=random)
        self.owner = torch.arange(ROUNDS).repeat_interleave(self.counts + 1)
        self.place = torch.arange(rows) - self.begins[self.owner]

    def drafted(self, round_: int) -> list[int]:
        begin, end = self.begins[round_ : round_ + 2].tolist()
        tokens: list[int] = self.inputs[begin + 1 : end].tolist()
        return tokens

    def second(self, rejection: Any, greedy: bool, **how: Any) -> list[int]:
        """How many drafted tokens of each round vLLM's second model runner accepts."""
        temperatures = torch.full((ROUNDS,), 0.0 if greedy else 1.0)
        _, emitted = rejection.rejection_sample(
            self.target, self.draft, self.inputs, self.begins, self.place, torch.arange(ROUNDS), self.owner, self.place,
            temperatures, self.seeds, LENGTH, **how,
        )  # fmt: skip
        counts: list[int] = (emitted - 1).tolist()
        return counts

    def first(self, fly: Any, greedy: bool, uniform: Tensor, window: int, k: int, threshold: float) -> list[int]:
        """How many its first one accepts: FLy changes argmaxes or u, and the exact rule decides by these."""
        verifies = self.place < self.counts[self.owner]
        target, drafted = self.target[verifies].contiguous(), self.inputs[verifies.nonzero().flatten() + 1].int()
        p, q = target.softmax(-1), self.draft[self.owner[verifies], self.place[verifies]].softmax(-1).contiguous()
        chosen, u = target.argmax(-1), uniform[verifies].double()
        entropy, ends = fly.compute_fly_entropy(p, k), self.counts.cumsum(0).int()
        if greedy:
            fly.apply_fly_greedy_acceptance_kernel[(ROUNDS,)](
                ends, drafted, chosen, target, entropy, None, VOCABULARY, threshold, FLY_WINDOW_SIZE=window
            )
            accepted = drafted == chosen
        else:
            fly.apply_fly_random_acceptance_kernel[(ROUNDS,)](
                ends, drafted, q, p, u, entropy, torch.zeros(ROUNDS, dtype=torch.bool), VOCABULARY, threshold,
                NO_DRAFT_PROBS=False, FLY_WINDOW_SIZE=window,
            )  # fmt: skip
            x = drafted.long().unsqueeze(1)
            accepted = (p.gather(1, x) / q.gather(1, x)).squeeze(1) >= u
        return [int(each.long().cumprod(0).sum()) for each in accepted.split(self.counts.tolist())]


@triton.jit  # type: ignore[untyped-decorator]
def _fill(out, seeds, places, BY_STEP: tl.constexpr, draw: tl.constexpr, mix: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    row = tl.program_id(0)
    seed, place = tl.load(seeds + row), tl.load(places + row)
    if BY_STEP:
        seed = mix(seed, place)
    tl.store(out + row, draw(seed, place, includes_zero=False))


def uniforms(gumbel: Any, rounds: Rounds, by_step: bool) -> Tensor:
    """The u of vLLM's second model runner at every row: (rows,)."""
    found = torch.zeros(len(rounds.place))
    functions = gumbel.tl_rand32, gumbel.spec_step_seed
    _fill[(len(found),)](found, rounds.seeds[rounds.owner], rounds.place, by_step, *functions)
    return found


def main(folder: Path) -> None:
    fly, rejection, gumbel = unpacked(folder)
    rounds = Rounds()
    plain, by_step = (uniforms(gumbel, rounds, by_step) for by_step in (False, True))
    recorded = []
    for round_, count in enumerate(rounds.counts.tolist()):
        begin = int(rounds.begins[round_])
        rows = slice(begin, begin + count)
        recorded.append({
            "target": _rounded(rounds.target[begin : begin + count + 1]),
            "draft": _rounded(rounds.draft[round_, :count]), "drafted": rounds.drafted(round_),
            "uniform": _rounded(plain[rows], 8), "uniform_by_step": _rounded(by_step[rows], 8),
        })  # fmt: skip
    found = []
    for greedy, (window, k, threshold) in product((True, False), FLY):
        given = {"fly_window_size": window, "fly_entropy_threshold": threshold, "fly_entropy_top_k": k}
        accepted = rounds.second(rejection, greedy, **given)
        assert accepted == rounds.first(fly, greedy, plain, window, k, threshold)
        found.append({"greedy": greedy, "window": window, "k": k, "threshold": threshold, "accepted": accepted})
    block = rounds.second(rejection, False, use_block_verification=True)
    lines: dict[str, list[Any]] = {"rounds": recorded, "fly": found, "block": [block]}
    texts = (f'"{name}": [\n{_by_line(each)}\n]' for name, each in lines.items())
    print("{{\n{}\n}}".format(",\n".join(texts)))


def _rounded(values: Tensor, decimals: int = 2) -> Any:
    return torch.round(values.double(), decimals=decimals).tolist()


def _by_line(values: list[Any]) -> str:
    return ",\n".join(map(json.dumps, values))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
