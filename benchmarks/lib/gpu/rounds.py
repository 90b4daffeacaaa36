"""What rounds take on a GPU: of large models with random weights, beside the time that reading their memory takes, and
of the bundled pair, whose texts are compared with the CPU's.

Random models agree on nothing, so the acceptance rate is imposed: a round does the work of `fsd-coupled`, whose
decisions are then replaced.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import product
from typing import Any

import torch

from fsd_calib import Recorder, SpeculativeDecoder, load_task
from fsd_data import pair_paths
from fsd_decoding import acceptance, noise
from fsd_decoding.acceptance import Proposal, Rule, Verdict
from fsd_decoding.divergence import DIVERGENCES
from fsd_decoding.policies.stopping import Answer, DraftState, StopPolicy
from lib.engines import assisted
from lib.gpu.claims import CHANCES
from lib.gpu.kernels import milliseconds
from lib.gpu.plan import SHAPES, Plan
from lib.pairs import Pair, large_pair

# --- the bundled pair -------------------------------------------------------------------------------------


def equality(plan: Plan) -> list[dict[str, Any]]:
    """Measures the share of the bundled pair's texts that equal the CPU's, for eager rounds and for graphs."""
    rows, prompts = [], _prompts(plan)
    for dtype in ("float32", "float64"):
        cpu = SpeculativeDecoder.from_pretrained(*pair_paths(), dtype=dtype, device="cpu")
        eager, graphs = _bundled(plan, dtype, False), _bundled(plan, dtype, "capture")
        for rule, temperature in product(("sd", "fsd-coupled"), (0.0, 0.6)):
            settings: dict[str, Any] = {"temperature": temperature, "rule": rule}
            expected = cpu.generate(prompts, plan.compared, **settings)
            for name, decoder in (("eager", eager), ("graphs", graphs), ("graphs again", graphs)):
                results = decoder.generate(prompts, plan.compared, **settings)
                same = sum(a.tokens == b.tokens for a, b in zip(results, expected, strict=True)) / len(prompts)
                rows.append({"dtype": dtype, "called": name, **settings, "equal": same})
    return rows


def waiting(plan: Plan) -> dict[str, float]:
    """Counts how often the host waits for the GPU in a round of one text, by what reads the rounds; 0 on a CPU."""
    decoder, prompts = _bundled(plan, "float32", "capture"), _prompts(plan)[:1]
    readers: dict[str, dict[str, Any]] = {
        "nobody": {}, "a recorder": {"observer": Recorder(["js"])}, "a stop policy": {"stop_policy": EndsAfter(2)},
    }  # fmt: skip
    return {name: _waits(decoder, prompts, plan.new, plan.device, reader) for name, reader in readers.items()}


def training(plan: Plan) -> dict[str, float] | None:
    """Measures the seconds in which the bundled pair's two models are trained from scratch."""
    if not plan.trains:
        return None
    torch.cuda.empty_cache()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as out:
        subprocess.run([sys.executable, "-m", "fsd_data.train", "--out", out, "--device", plan.device], check=True)
    return {"seconds": time.perf_counter() - began}


def _bundled(plan: Plan, dtype: str, compile: Any) -> SpeculativeDecoder:
    return SpeculativeDecoder.from_pretrained(*pair_paths(), dtype=dtype, device=plan.device, compile=compile)


def _prompts(plan: Plan) -> list[str]:
    return [problem.prompt for problem in load_task("arithmetic", seed=3, limit=plan.problems).problems]


class EndsAfter(StopPolicy):
    """Ends every draft after a number of tokens, but reads q for its answer, as most policies do.

    Args:
        after: tokens.
        looks: whether the policy says that it reads q.
    """

    def __init__(self, after: int, looks: bool = True) -> None:
        self._after, self.looks = after, looks

    def goes_on(self, state: DraftState) -> Answer:
        drafted = len(state.logits)
        if not drafted:
            return [True] * len(state.rows)
        return (state.logits[-1][:, 0].amax(-1).isnan() | (drafted < self._after)).tolist()


def _waits(decoder: SpeculativeDecoder, prompts: Sequence[str], new: int, device: str, reader: dict[str, Any]) -> float:
    """Counts those of a long text less those of its beginning, which excludes prefill."""

    def run(tokens: int) -> tuple[int, int]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            _warn_of_waits(device, "warn")
            try:
                (result,) = decoder.generate(prompts, tokens, **reader)
            finally:
                _warn_of_waits(device, "default")
        return sum("called a synchronizing" in str(warning.message) for warning in caught), result.rounds

    for _ in range(2):
        decoder.generate(prompts, new, **reader)
    short, long = run(new // 4), run(new)
    return (long[0] - short[0]) / (long[1] - short[1])


def _warn_of_waits(device: str, mode: str) -> None:
    if device == "cuda":
        torch.cuda.set_sync_debug_mode(mode)


# --- large models -----------------------------------------------------------------------------------------


@cache
def _large(plan: Plan) -> Pair:
    return large_pair(SHAPES[plan.target], SHAPES[plan.draft], plan.device)


def _single(plan: Plan) -> Pair:
    """One stream, after the shortest of the contexts."""
    return _large(plan).with_prompts(plan.contexts[0], 1, plan.new)


def rounds(plan: Plan) -> Iterator[dict[str, Any]]:
    """Measures milliseconds per round as graphs, once also eager, and those of assisted generation.

    Yields the same results again whenever more of them have been measured.
    """
    results: dict[str, Any] = {"bytes_a_second": _bandwidth(plan), "rounds": [], "assisted": []}
    for context, length in product(plan.contexts, plan.draft_lengths):
        pair = _large(plan).with_prompts(context, max(plan.rows), plan.new)
        for rows in plan.rows:
            results["rounds"] += _time_rounds(plan, pair, length, rows, "capture", results["bytes_a_second"])
            yield results
        took = assisted_milliseconds(pair, length)
        results["assisted"].append({"context": context, "draft_length": length, "milliseconds": took})
        yield results
    results["rounds"] += _time_rounds(plan, _single(plan), plan.draft_lengths[0], 1, False, results["bytes_a_second"])
    yield results


def compiled(plan: Plan) -> list[dict[str, Any]]:
    """Measures milliseconds per round with compiled models; compiling takes a minute or more."""
    return _time_rounds(plan, _single(plan), plan.draft_lengths[0], 1, True, _bandwidth(plan))


def _time_rounds(
    plan: Plan, pair: Pair, length: int, rows: int, compile: Any, bytes_a_second: float
) -> list[dict[str, Any]]:
    """Times rounds at the first acceptance rate, and single streams at the others too unless that needs compiling."""
    context = len(pair.prompts[0])
    read = _bytes(pair.target, rows, context) + length * _bytes(pair.draft, rows, context)
    where = {"context": context, "draft_length": length, "rows": rows, "compile": compile,
             "floor_milliseconds": 1000 * read / bytes_a_second}  # fmt: skip
    chances = CHANCES if rows == 1 and compile is not True else CHANCES[:1]
    return [where | {"chance": chance} | time_rounds(pair, chance, length, rows, compile) for chance in chances]


def stopping(plan: Plan) -> dict[str, float]:
    """Measures milliseconds per round where a policy ends drafts half way.

    "on time": the policy does not read q. "ahead": it reads q, so its answer is used one step later. "fixed": drafts
    have half the length and there is no policy.
    """
    pair, longest = _single(plan), max(plan.draft_lengths)
    half = longest // 2
    ways: dict[str, tuple[int, StopPolicy | None]] = {
        "on time": (longest, EndsAfter(half, looks=False)), "ahead": (longest, EndsAfter(half)), "fixed": (half, None),
    }  # fmt: skip
    return {
        name: time_rounds(pair, CHANCES[0], length, 1, "capture", policy=policy)["milliseconds"]
        for name, (length, policy) in ways.items()
    }


def recording(plan: Plan) -> dict[str, float]:
    """Measures milliseconds per round with every divergence recorded, and without."""
    readers = {"silent_milliseconds": None, "recorded_milliseconds": Recorder(list(DIVERGENCES))}
    pair, length = _single(plan), plan.draft_lengths[0]
    return {
        name: time_rounds(pair, CHANCES[0], length, 1, "capture", observer)["milliseconds"]
        for name, observer in readers.items()
    }


class Imposed(Rule):
    """A rule that computes what `fsd-coupled` does, and then accepts every drafted token with the same probability."""

    name = "imposed"
    lossless = "coupled"
    bounds_divergence = True

    def __init__(self, chance: float) -> None:
        self._chance = chance

    def judge(self, round_: Proposal) -> Verdict:
        honest = acceptance.RULES["fsd-coupled"].judge(round_)
        drawn = noise.uniform(round_.keys, round_.positions[:, :-1], noise.Stream.ACCEPT, torch.float32)
        return Verdict(drawn < self._chance, honest.fallback, honest.score, torch.zeros_like(honest.accepted))


@contextmanager
def imposing(chance: float) -> Iterator[None]:
    """Registers the rule `imposed` within a `with` block."""
    known = acceptance.RULES
    acceptance.RULES = {**known, Imposed.name: Imposed(chance)}
    try:
        yield
    finally:
        acceptance.RULES = known


def time_rounds(
    pair: Pair, chance: float, draft_length: int, rows: int, compile: Any, observer: Any = None, policy: Any = None
) -> dict[str, float]:
    """Returns milliseconds per round, and tokens per second and per round.

    They are differences between long and short texts of the same prompts, which exclude prefill and all other work
    that a call does once.
    """
    decoder = SpeculativeDecoder(pair.target, pair.draft, pair.tokenizer, draft_length=draft_length, compile=compile)

    def run(new: int) -> tuple[float, int, int]:
        began = time.perf_counter()
        results = decoder.generate(
            pair.prompts[:rows], new, rule=Imposed.name, batch_size=rows, observer=observer, stop_policy=policy
        )
        return time.perf_counter() - began, max(r.rounds for r in results), sum(r.emitted for r in results)

    with imposing(chance):
        for _ in range(2):  # warms up: steps are captured at their second call
            run(pair.max_new_tokens)
        short, long = run(pair.max_new_tokens // 4), run(pair.max_new_tokens)
    seconds, rounds, tokens = (b - a for a, b in zip(short, long, strict=True))
    return {
        "milliseconds": 1000 * seconds / rounds,
        "tokens_a_second": tokens / seconds,
        "tokens_a_round": tokens / rounds,
    }


def assisted_milliseconds(pair: Pair, draft_length: int) -> float:
    """Returns milliseconds per round of transformers' assisted generation of one text.

    Its acceptance rate cannot be imposed, and is close to 0.
    """

    def run(new: int) -> tuple[float, int]:
        rounds = 0

        def count(*_: Any) -> None:
            nonlocal rounds
            rounds += 1

        hook = pair.target.register_forward_pre_hook(count)
        try:
            began = time.perf_counter()
            assisted(pair.target, pair.draft, draft_length, pair.prompts[0], new)
            return time.perf_counter() - began, rounds
        finally:
            hook.remove()

    run(pair.max_new_tokens // 8)  # warms up
    short, long = run(pair.max_new_tokens // 8), run(pair.max_new_tokens // 2)  # few are accepted: many rounds
    return 1000 * (long[0] - short[0]) / (long[1] - short[1])


def _bandwidth(plan: Plan) -> float:
    """Returns the bytes per second that the memory reads and writes while it copies some."""
    source = torch.zeros(plan.copied, dtype=torch.uint8, device=plan.device)
    out = torch.empty_like(source)
    return 2 * plan.copied / (milliseconds(lambda: out.copy_(source), 10, plan.device) / 1000)


def _bytes(model: Any, rows: int, context: int) -> int:
    """Returns the bytes of weights and KV caches that a forward pass reads.

    The embedding counts only where it is the head too: a step reads just a few of its rows.
    """
    config, size = model.config, model.dtype.itemsize
    weights = sum(p.numel() for p in model.parameters())
    if not config.tie_word_embeddings:
        weights -= model.get_input_embeddings().weight.numel()
    heads = config.num_key_value_heads * (config.hidden_size // config.num_attention_heads)
    total: int = size * (weights + 2 * rows * context * config.num_hidden_layers * heads)
    return total
