"""An engine of vLLM with its V2 model runner on a CPU, whose Triton kernels are interpreted: a program.

vLLM refuses that runner where it finds no Triton for the device, so it is told of one before it is imported. Prints
what the engine did as one line of JSON: of each case of `CASES`, the `Served` of each prompt. With a score and a T, the
profile has these, and the case is its own.

    python vllm_v2.py FOLDER [phase | SCORE T]

With `phase` T is START inside a phase and END outside, and there is one case.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

PROMPTS, LENGTH, TOKENS, OVER = 6, 4, 24, 20
START, END = 0.1, 0.02  # T of the first token, and after OVER tokens
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


@dataclass
class Served:
    """What an engine did with a prompt."""

    prompt: list[int]
    tokens: list[int]
    text: str
    logprobs: list[float]
    rounds: list[tuple[int, list[int], list[list[float]]]]  # accepted, emitted, facts (3, n) of `Step`


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


def _know_log1p() -> None:
    """Gives the kernels that sample the one function of Triton's device libraries that they call."""
    from triton import language
    from vllm.v1.worker.gpu.spec_decode import rejection_sampler_utils

    rejection_sampler_utils.tldevice = SimpleNamespace(log1p=lambda x: language.log(1.0 + x))


def _run(folder: Path, *by: str) -> dict[str, list[dict[str, Any]]]:
    from vllm.sampling_params import SamplingParams, StructuredOutputsParams
    from vllm.v1.worker.gpu.spec_decode import rejection_sampler

    from fsd_decoding.adaptive import Phase, Schedule
    from fsd_decoding.profile.parts import PolicyInfo
    from support.vllm_engine import Recorded, arithmetic, engine, saved

    _know_log1p()
    rejection_sampler.MAX_CHUNK_BYTES = 3 * (LENGTH + 1) * 4 * 979  # three requests a chunk
    prompts = [problem.prompt for problem in arithmetic(PROMPTS).problems]
    changes: dict[str, Any] = {"draft_length": LENGTH}
    if len(by) == 2:
        changes |= {"score": by[0], "threshold": float(by[1])}
    else:
        moved = Phase(START, END, *MARKERS) if by else Schedule(start=START, end=END, over=OVER)
        changes |= {"threshold": START, "policy": PolicyInfo.of(str(moved.identity)).model_dump()}
    llm = engine(
        saved(folder, changes),
        max_num_seqs=PROMPTS,
        speculative_config={"num_speculative_tokens": LENGTH, "draft_sample_method": "probabilistic"},
    )  # fmt: skip
    found = {}
    for name, case in {"calibrated": {}}.items() if by else CASES.items():
        options = dict(case)
        if grammar := options.pop("grammar", None):
            options["structured_outputs"] = StructuredOutputsParams(regex=grammar)
        wanted = SamplingParams(**{"temperature": 0.0, "max_tokens": TOKENS, "ignore_eos": not grammar, **options})
        seen = Recorded(llm)
        outputs = llm.generate(prompts, wanted, use_tqdm=False)
        found[name] = [asdict(_served(output, seen)) for output in outputs]
    return found


def _served(output: Any, seen: Any) -> Served:
    one = output.outputs[0]
    logprobs = [found[token].logprob for token, found in zip(one.token_ids, one.logprobs or [], strict=False)]
    judged = [each for each in seen.of(output.request_id) if each.facts.size]
    rounds = [(each.accepted, each.emitted, each.facts.tolist()) for each in judged]
    return Served(list(output.prompt_token_ids), list(one.token_ids), one.text, logprobs, rounds)


if __name__ == "__main__":
    interpret_kernels()
    print(json.dumps(_run(Path(sys.argv[1]), *sys.argv[2:])))
