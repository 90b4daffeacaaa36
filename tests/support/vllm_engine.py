"""Engines of vLLM over the bundled pair, in this process, that follow profiles of it.

Only tests in tests/vllm import this file: it needs vLLM.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from vllm.entrypoints.llm import LLM
from vllm.sampling_params import SamplingParams

from fsd_calib import ThresholdProfile
from fsd_calib.engines.base import Limits
from fsd_calib.engines.vllm.engine import VllmEngineSource
from fsd_calib.engines.vllm.loading import EngineArguments, Room
from fsd_calib.tasks import load_task
from fsd_calib.tasks.base import Task
from fsd_calib.vllm_plugin.telemetry.steps import Step
from fsd_data import pair_paths
from fsd_decoding.config import DecodingConfig
from fsd_decoding.loading import load_model, load_tokenizer
from fsd_decoding.models.fingerprint import tokenizer_fingerprint
from fsd_decoding.profile.parts import ModelInfo
from fsd_decoding.sampling import Sampling
from support.calibration.profiles import profile

TARGET, DRAFT = map(str, pair_paths())
LENGTH, THRESHOLD = 5, 0.075

_alive: list[LLM] = []  # an engine that is deleted takes what all engines of a process share with it


@cache
def model(role: str, dtype: torch.dtype) -> Any:
    """The bundled target or draft by transformers."""
    return load_model(TARGET if role == "target" else DRAFT, "cpu", dtype)


@cache
def tokenizer() -> Any:
    return load_tokenizer(TARGET)


def bundled_profile(changes: dict[str, Any] | None = None) -> ThresholdProfile:
    """A profile of the bundled pair: js <= .075 at L = 5, greedy. Its numbers are invented."""
    info = {role: ModelInfo.of(model(role, torch.float32)).model_dump() for role in ("target", "draft")}
    own = {"threshold": THRESHOLD, "draft_length": LENGTH, "tokenizer": tokenizer_fingerprint(tokenizer()), **info}
    return profile({**own, **(changes or {})})


def saved(folder: Path, changes: dict[str, Any] | None = None) -> str:
    """The file of a bundled profile."""
    path = folder / "profile.json"
    bundled_profile(changes).save(path)
    return str(path)


def engine(followed: str | None = None, settings: dict[str, Any] | None = None, **keywords: Any) -> LLM:
    """An engine of the bundled pair.

    Args:
        followed: the file of the profile that it follows; None: vLLM's own engine.
        settings: further ones of the plugin.
        keywords: of `LLM`; `speculative_config` adds to the bundled draft at L = 5.
    """
    speculative = {
        "model": DRAFT, "method": "draft_model", "num_speculative_tokens": LENGTH,
        **keywords.pop("speculative_config", {}),
    }  # fmt: skip
    own = {} if followed is None else {"additional_config": {"fsd": {"profile": followed, **(settings or {})}}}
    usual = {
        "dtype": "float32", "max_model_len": 400, "enforce_eager": True, "max_num_seqs": 32,
        "kv_cache_memory_bytes": 128 << 20,
    }  # fmt: skip
    _alive.append(LLM(TARGET, **{**usual, **own, "speculative_config": speculative, **keywords}))
    return _alive[-1]


def engine_source(task: Task, sampling: Sampling | None = None) -> VllmEngineSource:
    """What a calibration makes its engine of, with drafts of up to 8 tokens."""
    decoding = DecodingConfig(rule="fsd-coupled", score="js", sampling=sampling or Sampling())
    return VllmEngineSource(
        TARGET, DRAFT, "float32", decoding, Limits.of(task), EngineArguments(), Room(32, 8, 400), task.name
    )


def arithmetic(count: int, seed: int = 11) -> Task:
    return load_task("arithmetic", seed=seed, limit=count)


def sampling(options: dict[str, Any] | None = None, **keywords: Any) -> SamplingParams:
    """Greedy parameters for problems of `arithmetic`; `options` are `vllm_xargs`."""
    task = arithmetic(1)
    usual = {"temperature": 0.0, "max_tokens": task.max_new_tokens, "stop": list(task.stop)}
    return SamplingParams(**{**usual, "extra_args": options, **keywords})


def served(llm: LLM, task: Task, parameters: SamplingParams | Sequence[SamplingParams]) -> list[list[int]]:
    """The tokens of each problem's completion."""
    outputs = llm.generate([p.prompt for p in task.problems], parameters, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


@cache
def own_engine() -> LLM:
    """vLLM without a profile."""
    return engine()


@cache
def own_texts(count: int) -> list[list[int]]:
    """What that makes of problems of `arithmetic`, greedily."""
    return served(own_engine(), arithmetic(count), sampling())


def metric(llm: LLM, name: str) -> float:
    """The value of one of vLLM's metrics, summed over its labels; `disable_log_stats` must be false."""
    return float(sum(each.value for each in llm.get_metrics() if each.name == name))


def worker(llm: LLM) -> Any:
    """The engine's worker, which is in this process."""
    core: Any = llm.llm_engine.engine_core
    return core.engine_core.model_executor.driver_worker.worker


@dataclass(frozen=True)
class Round:
    """What a step emitted for a request, and what was judged for that."""

    begins: int  # where its tokens begin, counted from the prompt's first token
    accepted: int  # drafted tokens
    emitted: list[int]
    facts: Any  # (3, n) of `Step.facts`; n is 0 where nothing was drafted, or nothing judged


class Recorded:
    """A listener that keeps all steps of an engine from now on."""

    def __init__(self, llm: LLM) -> None:
        self._steps: list[Step] = []
        self._rounds: dict[str, list[Round]] = {}
        self._log = worker(llm).serving._telemetry.log
        self._log.flush()  # earlier steps are not of now
        self._log._listeners.append(self)

    def add(self, step: Step) -> None:
        self._steps.append(step)
        for row, name in enumerate(step.ids):
            if step.emits[row]:
                emitted = [token for token in step.sampled[row].tolist() if token >= 0]
                facts = step.facts[:, step.layout.owner == row]
                of_request = self._rounds.setdefault(name.partition("-")[0], [])
                of_request.append(Round(int(step.begins[row]), int(step.accepted[row]), emitted, facts))

    def finish(self, ids: Iterable[str]) -> None:
        """Keeps what it has."""

    def of(self, request: str) -> list[Round]:
        """The rounds of a request, by its id without the random part that vLLM adds."""
        self._log.flush()
        return self._rounds[request]

    @property
    def steps(self) -> list[Step]:
        """All of them, in order."""
        self._log.flush()
        return self._steps

    @property
    def judged(self) -> int:
        """Number of drafted tokens whose logits were compared."""
        return sum(step.layout.count for step in self.steps)


def logits(role: str, tokens: Sequence[int]) -> torch.Tensor:
    """fp64 logits (n, V) of one uncached forward pass over n tokens."""
    with torch.inference_mode():
        found: torch.Tensor = model(role, torch.float64)(torch.tensor([list(tokens)])).logits[0]
    return found
