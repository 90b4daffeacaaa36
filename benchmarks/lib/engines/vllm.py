"""vLLM, with or without the plugin that follows a profile, as an engine that decodes work."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lib.engines.work import Decoded, Engine, Work

LARGEST_BATCH = 32

SETTINGS: Mapping[str, Any] = {
    "dtype": "float32", "enforce_eager": True, "max_model_len": 400, "max_num_seqs": LARGEST_BATCH,
    # Our engine has no prefix cache, and repeated prompts would be found in one.
    "enable_prefix_caching": False,
    "kv_cache_memory_bytes": 256 << 20,
}  # fmt: skip
"""vLLM's settings that all of its contestants have in common."""


@dataclass(frozen=True)
class VllmSettings:
    """How vLLM is set up.

    Args:
        models: paths of the target and the draft.
        length: L; None: the target alone.
        profile: the profile that the plugin follows; None: there is no plugin in the engine.
    """

    models: tuple[str, str]
    length: int | None = None
    profile: Path | None = None

    def build(self) -> Engine:
        return VllmEngine(self)


class VllmEngine:
    """vLLM's engine in this process.

    Its ways are "", or these words: "off" tells the plugin to decode exactly; "at least" asks for one token, as such
    requests are not plain, so that on a CPU, too, the plugin computes D of every drafted token; "without" takes the
    plugin out, so that both are of one process: two with the same work differ by a percent or two.
    """

    def __init__(self, settings: VllmSettings) -> None:
        from vllm import LLM

        target, draft = settings.models
        own: dict[str, Any] = {}
        if settings.length is not None:
            own["speculative_config"] = {
                "model": draft, "num_speculative_tokens": settings.length, "method": "draft_model"
            }  # fmt: skip
        if settings.profile is not None:  # one at a T of the benchmark's own is an edited one
            own["additional_config"] = {"fsd": {"profile": str(settings.profile), "allow_edited": True}}
        self._engine = LLM(target, **SETTINGS, **own).llm_engine

    def decode(self, work: Work, way: str) -> Decoded:
        from vllm import SamplingParams

        sampling = SamplingParams(
            temperature=0, max_tokens=work.max_new_tokens, stop=list(work.stop),
            extra_args={"fsd": "off"} if way == "off" else None, min_tokens=int("at least" in way),
        )  # fmt: skip
        with self._without_plugin() if "without" in way else nullcontext():
            return self._decode(work, sampling)

    @contextmanager
    def _without_plugin(self) -> Iterator[None]:
        """Leaves the engine as vLLM builds it."""
        from vllm.v1.sample.rejection_sampler import RejectionSampler

        core: Any = self._engine.engine_core
        worker = core.engine_core.model_executor.driver_worker.worker
        runner = worker.model_runner
        replaced = [vars(owner) for owner in (runner, runner.drafter)]
        names = ("_sample", "_sample_draft_tokens")  # of the class, but for the plugin
        kept = [attributes.pop(name) for attributes, name in zip(replaced, names, strict=True)]
        serving, sampler = worker.serving, runner.rejection_sampler
        worker.serving = None
        runner.rejection_sampler = RejectionSampler(runner.sampler, runner.speculative_config, runner.device)
        try:
            yield
        finally:
            worker.serving, runner.rejection_sampler = serving, sampler
            for attributes, name, own in zip(replaced, names, kept, strict=True):
                attributes[name] = own

    def _decode(self, work: Work, sampling: Any) -> Decoded:
        engine, waiting = self._engine, deque(enumerate(work.prompts))
        finished: dict[str, Any] = {}
        steps, cpu, wall = 0, time.process_time(), time.perf_counter()
        while waiting or engine.has_unfinished_requests():
            while waiting and engine.get_num_unfinished_requests() < work.batch:
                index, prompt = waiting.popleft()
                engine.add_request(str(index), prompt, sampling)
            finished |= {output.request_id: output.outputs[0] for output in engine.step() if output.finished}
            steps += 1
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        outputs = [finished[str(index)] for index in range(len(work.prompts))]
        return Decoded(tuple(o.text for o in outputs), sum(len(o.token_ids) for o in outputs), steps, cpu, wall)
