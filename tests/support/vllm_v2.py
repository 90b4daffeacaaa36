"""An engine of vLLM on a CPU with one of its model runners, V1 or V2: a program.

The Triton kernels of V2 are interpreted. vLLM refuses that runner where it finds no Triton for the device, so it is
told of one before it is imported. It runs engines in several ways, one after the other, and prints what each did as a
line of JSON: of each case of `CASES`, the `Served` of each prompt, and the `Trouble` of the engine.

    python vllm_v2.py RUNNER FOLDER WAY...

In the way `cases` there are all cases, in others one. Where a way is a score, the profile has it, with T = SCORED. With
`phase` T is START inside a phase and END outside. Others are of `ENGINES`; where that is tight, the cases of `AGAIN`
follow.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

PROMPTS, LENGTH, TOKENS, OVER = 6, 4, 24, 20
BLOCK = 32
START, END = 0.1, 0.02  # T of the first token, and after OVER tokens
SCORED = 0.6
MARKERS = ",", "."
GRAMMAR = "[0-9]{4,40}"
CASES: dict[str, dict[str, Any]] = {
    "off": {"extra_args": {"fsd": "off"}},
    "negative": {"extra_args": {"fsd_threshold": -1.0}},
    "calibrated": {},
    "strict": {"extra_args": {"fsd_threshold": 0.01}},
    "all": {"extra_args": {"fsd_threshold": 100.0}},
    "all, sampled": {"extra_args": {"fsd_threshold": 100.0}, "temperature": 0.7, "seed": 5},
    "calibrated, sampled": {"temperature": 0.7, "seed": 5},
    "grammar": {"extra_args": {"fsd_threshold": 100.0}, "grammar": GRAMMAR},
    "logprobs": {"logprobs": 1},
}
ENGINES: dict[str, dict[str, Any]] = {
    "asynchronous": {},
    # Prompts are read in chunks and cached, and requests are preempted, since too few blocks are there for all.
    "tight": {
        "max_num_batched_tokens": 64, "enable_prefix_caching": True, "block_size": BLOCK, "max_model_len": 4 * BLOCK,
        "num_gpu_blocks_override": 11,
    },
    "skipping": {},
}  # fmt: skip
"""Ways to run an engine; in the first a step ahead, and in the last each third step drafts nothing."""
AGAIN = ("again", "cached")
"""Cases of the last prompt alone, of which the second finds all but one of its tokens cached."""


@dataclass
class Served:
    """What an engine did with a prompt."""

    prompt: list[int]
    tokens: list[int]
    text: str
    logprobs: list[float]
    rounds: list[tuple[int, int, list[int], list[list[float]]]]  # where it begins in the text, accepted, emitted, facts
    # (3, n) of `Step`


@dataclass
class Trouble:
    """What befell an engine's requests."""

    preemptions: int
    placeholders: int  # steps of requests that verified tokens which nobody had drafted


def interpret_kernels() -> None:
    """Lets vLLM use Triton on this CPU, by Triton's own interpreter. Call it before anything of either is imported."""
    os.environ |= {"TRITON_INTERPRET": "1", "VLLM_USE_V2_MODEL_RUNNER": "1"}
    from triton.backends import backends
    from triton.runtime.interpreter import InterpreterBuilder

    backends["cpu"] = SimpleNamespace(driver=SimpleNamespace(is_active=lambda: False), compiler=None)
    for name, place in (("create_masked_store", 2), ("create_masked_load", 1)):
        setattr(InterpreterBuilder, name, _with_boolean_mask(getattr(InterpreterBuilder, name), place))


def _with_boolean_mask(call: Callable[..., Any], place: int) -> Callable[..., Any]:
    """The interpreter refuses masks that are the product of a vector and a scalar, which compiled kernels take."""

    def mended(builder: Any, *arguments: Any) -> Any:
        mask = arguments[place]
        mask.data = mask.data.astype(bool)
        return call(builder, *arguments)

    return mended


def _verify_in_chunks() -> None:
    """Lets V2 verify three requests at a time."""
    from vllm.v1.worker.gpu.spec_decode import rejection_sampler

    rejection_sampler.MAX_CHUNK_BYTES = 3 * (LENGTH + 1) * 4 * 979


def _know_log1p() -> None:
    """Gives the kernels that sample the one function of Triton's device libraries that they call."""
    from triton import language
    from vllm.v1.worker.gpu.spec_decode import rejection_sampler_utils

    rejection_sampler_utils.tldevice = SimpleNamespace(log1p=lambda x: language.log(1.0 + x))


@contextmanager
def _skipping_drafts() -> Iterator[None]:
    """Lets each third step draft nothing, as vLLM 0.33 does where it knows that no request could use the drafts."""
    from vllm.v1.core.sched.scheduler import Scheduler

    original, steps = Scheduler._update_after_schedule, count()

    def update(self: Any, scheduled: Any) -> None:
        if next(steps) % 3 == 2:
            scheduled.num_spec_tokens_to_schedule = 0
        original(self, scheduled)

    Scheduler._update_after_schedule = update
    try:
        yield
    finally:
        Scheduler._update_after_schedule = original


def _run(second: bool, folder: Path, way: str) -> dict[str, Any]:
    from vllm.sampling_params import SamplingParams, StructuredOutputsParams

    from fsd_decoding.adaptive import Phase, Schedule
    from fsd_decoding.profile.parts import PolicyInfo
    from support.vllm_async import async_engine
    from support.vllm_engine import Recorded, arithmetic, engine, metric, saved

    prompts = [problem.prompt for problem in arithmetic(PROMPTS + 3).problems[3:]]  # the last has BLOCK + 1 tokens
    changes: dict[str, Any] = {"draft_length": LENGTH}
    if way in ("cases", "phase", *ENGINES):
        moved = Phase(START, END, *MARKERS) if way == "phase" else Schedule(start=START, end=END, over=OVER)
        changes |= {"threshold": START, "policy": PolicyInfo.of(str(moved.identity)).model_dump()}
    else:
        changes |= {"score": way, "threshold": SCORED}
    started = async_engine if way == "asynchronous" else engine
    llm = started(
        saved(folder, changes),
        max_num_seqs=PROMPTS, disable_log_stats=False, **ENGINES.get(way, {}),
        speculative_config={"num_speculative_tokens": LENGTH, "draft_sample_method": "probabilistic"},
    )  # fmt: skip
    found: dict[str, Any] = {}
    placeholders = 0
    cases = CASES if way == "cases" else {name: {} for name in ("calibrated", *AGAIN * (way == "tight"))}
    for name, case in cases.items():
        if "temperature" in case and not second:
            continue  # V1 has uninitialised temperatures on a CPU
        options = dict(case)
        if grammar := options.pop("grammar", None):
            options["structured_outputs"] = StructuredOutputsParams(regex=grammar)
        wanted = SamplingParams(**{"temperature": 0.0, "max_tokens": TOKENS, "ignore_eos": not grammar, **options})
        seen = Recorded(llm)
        outputs = llm.generate(prompts[-1:] if name in AGAIN else prompts, wanted, use_tqdm=False)
        found[name] = [asdict(_served(output, seen)) for output in outputs]
        placeholders += sum(int(((step.drafted > 0) & (step.layout.counts == 0)).sum()) for step in seen.steps)
    return {"served": found, "trouble": asdict(Trouble(int(metric(llm, "vllm:num_preemptions")), placeholders))}


def _served(output: Any, seen: Any) -> Served:
    one = output.outputs[0]
    logprobs = [found[token].logprob for token, found in zip(one.token_ids, one.logprobs or [], strict=False)]
    judged = [each for each in seen.of(output.request_id) if each.facts.size]
    prompt = list(output.prompt_token_ids)
    rounds = [(each.begins - len(prompt), each.accepted, each.emitted, each.facts.tolist()) for each in judged]
    return Served(prompt, list(one.token_ids), one.text, logprobs, rounds)


def main(second: bool, folder: Path, ways: Sequence[str]) -> None:
    if second:
        interpret_kernels()
        _know_log1p()
        _verify_in_chunks()
    for way in ways:
        place = folder / way
        place.mkdir()
        with _skipping_drafts() if way == "skipping" else nullcontext():
            print(json.dumps(_run(second, place, way)))


if __name__ == "__main__":
    main(sys.argv[1] == "2", Path(sys.argv[2]), sys.argv[3:])
