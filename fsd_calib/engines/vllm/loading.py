"""Starting vLLM for a calibration: versions, arguments, what is recorded of checkpoints, and the measuring plugin."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, NamedTuple, Self

from packaging.specifiers import SpecifierSet

from fsd_calib.engines.base import Pair, short_name
from fsd_calib.vllm_plugin import FLY_VERSIONS, KEY, METHOD, plugin
from fsd_calib.vllm_plugin.model_checks import too_large
from fsd_calib.vllm_plugin.own_rules import fly_options
from fsd_calib.vllm_plugin.settings import CALIBRATION, MeasuredSetting
from fsd_calib.vllm_plugin.speculation import speculation_of
from fsd_common.argument_checks import named
from fsd_common.errors import UsageError
from fsd_decoding.drafters.vllm_draft import VllmDraft
from fsd_decoding.loading import load_model, shared_tokenizer
from fsd_decoding.models.fingerprint import family_id, tokenizer_fingerprint
from fsd_decoding.models.runner import context_length
from fsd_decoding.profile.parts import ModelInfo
from fsd_decoding.scores import Fly, score_named

_OURS = {  # by name; the way out, in which names of settings stand in braces
    "model": "give it as {target}",
    "tokenizer": "it is the target's",
    "dtype": "give it as {dtype}",
    "speculative_config": "give a draft model as {draft}, another drafter as {speculative_config}",
    "additional_config": "the calibration gives its own to the plugin",
    "async_scheduling": "the calibration changes the draft length from step to step, which that would plan ahead",
    "enable_prefix_caching": "it would keep prompts that the draft has not read, where the target decodes alone",
    "data_parallel_size": "{workers} starts replicas, each with an engine of its own",
    **dict.fromkeys(
        ("revision", "code_revision", "tokenizer_revision"),
        "the fingerprint is of what {target} and {draft} name: download that revision and give its folder",
    ),
    "load_format": "the fingerprint is of the checkpoint's own weights",
    "hf_overrides": "the fingerprint is of the checkpoint's own configuration",
    "pipeline_parallel_size": "the plugin needs the drafts of every step at the next one: use tensor_parallel_size",
    "worker_cls": "the plugin chooses it",
    "distributed_executor_backend": "no calibration has been tested with another than vLLM chooses",
}
_NO_TEXTS = ("gpu_memory_utilization", "kv_cache_memory_bytes", "max_num_seqs", "max_model_len", "disable_log_stats")
# which texts do not depend on: room, and what is printed


@dataclass(frozen=True)
class EngineArguments:
    """Arguments of `vllm.LLM` that a user gives, by name, as canonical JSON.

    Raises:
        UsageError: One is the calibration's own, or is not JSON.
    """

    text: str = field(default="{}")

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """Returns the arguments that a user gave."""
        for name, way_out in _OURS.items():
            if name in given:
                others = ("target", "draft", "speculative_config", "dtype", "workers")
                settings = {each: named(each) for each in others}
                raise UsageError(
                    f"{named('engine_args')} sets {name!r}, which cannot be set: {way_out.format(**settings)}"
                )
        try:
            return cls(json.dumps(dict(given), sort_keys=True))
        except (TypeError, ValueError) as error:
            raise UsageError(f"{named('engine_args')} is {given!r:.80}; it must be a JSON object: {error}") from error

    @property
    def values(self) -> dict[str, Any]:
        values: dict[str, Any] = json.loads(self.text)
        return values

    @property
    def devices(self) -> int:
        """How many devices one engine is spread over."""
        size = self.values.get("tensor_parallel_size", 1)
        return size if isinstance(size, int) else 1  # vLLM refuses others

    def check_room(self, rows: int, context: int = 0) -> None:
        """Checks that the engine has room for what is decoded.

        Args:
            rows: Requests at once.
            context: Tokens of a prompt and its text together; 0: not known yet.

        Raises:
            UsageError: It has not: texts would be cut, or speeds be those of fewer requests.
        """
        for name, least, what, way_out in (
            ("max_model_len", context, "the longest prompt and its text take", "give at least that"),
            (
                "max_num_seqs",
                rows,
                "up to so many problems are decoded at once:",
                f"use a smaller {named('batch_size')}",
            ),
        ):
            given = self.values.get(name)
            if isinstance(given, int) and given < least:
                raise UsageError(f"{named('engine_args')} sets {name!r} to {given}, and {what} {least}; {way_out}")

    @property
    def decisive(self) -> dict[str, Any]:
        """Those that texts may depend on."""
        return {name: value for name, value in self.values.items() if name not in _NO_TEXTS}


@dataclass(frozen=True)
class Checkpoints:
    """Facts of a target and a draft, read from their checkpoints on the CPU before vLLM loads them.

    Attributes:
        family: See `Engine.family`.
        short_names: See `Engine.short_names`.
        vocabulary: Of the tokens that both models have.
        context: The most tokens of a prompt and its text together; None: no limit is known.
    """

    pair: Pair
    tokenizer: Any
    family: str
    short_names: tuple[str, str]
    vocabulary: int
    context: int | None


class _Read(NamedTuple):
    """Facts of one checkpoint; see `Checkpoints`."""

    info: ModelInfo
    name: str
    context: int | None


def read_checkpoints(target: str, draft: str | VllmDraft, dtype: str | None) -> Checkpoints:
    """Loads both models on the CPU, one after the other, for their fingerprints; of other drafters it reads the files.

    Args:
        dtype: That they are run in; None: the target checkpoint's own.

    Raises:
        UsageError: A model cannot be loaded, or does not fit into memory, or the tokenizers differ.
    """
    tokenizer = shared_tokenizer(target, draft, None)
    model = _load("target", target, dtype)
    of_target, family = _read(model), family_id(model)
    del model
    dtype = of_target.info.dtype  # the draft is run as the target is
    of_draft = (
        _read_drafter(draft, of_target.info) if isinstance(draft, VllmDraft) else _read(_load("draft", draft, dtype))
    )
    read = of_target, of_draft
    return Checkpoints(
        Pair(of_target.info, of_draft.info, tokenizer_fingerprint(tokenizer)), tokenizer, family,
        (of_target.name, of_draft.name), min(each.info.vocab_size for each in read),
        min((each.context for each in read if each.context is not None), default=None),
    )  # fmt: skip


def _read(model: Any) -> _Read:
    return _Read(ModelInfo.of(model), short_name(model), context_length(model.config))


def _read_drafter(draft: VllmDraft, target: ModelInfo) -> _Read:
    """Returns facts of a drafter that vLLM alone loads, which runs it in the target's dtype, over its vocabulary."""
    info = ModelInfo(
        id=repr(draft), revision=None, fingerprint=draft.fingerprint(target.fingerprint), vocab_size=target.vocab_size,
        dtype=target.dtype, quantization=None, attention=None, kind="vllm",
    )  # fmt: skip
    return _Read(info, draft.method, None)


def _load(role: str, source: str, dtype: str | None) -> Any:
    if (reason := too_large(source, dtype)) is not None:
        raise UsageError(
            f"the {role} {source!r} cannot be loaded for its fingerprint, which a certificate is bound to: {reason}; "
            "calibrate on a machine with more memory"
        )
    return load_model(source, "cpu", dtype)


_CPU_CACHE = 1 << 30  # bytes of KV cache on a CPU, where vLLM would take most of the memory
_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine's loop runs in this process, and ends with it
    "VLLM_USE_V2_MODEL_RUNNER": "0",  # settings that change between calls are followed in this one alone
}
_alive: list[Any] = []  # an engine that is deleted takes what all engines of a process share with it


@dataclass(frozen=True)
class Room:
    """What an engine has room for.

    Attributes:
        rows: Requests at once.
        longest: Drafted tokens of a round.
        context: Tokens of a prompt and its text together.
    """

    rows: int
    longest: int
    context: int


def load(
    pair: Pair, dtype: str, arguments: EngineArguments, first: MeasuredSetting, room: Room, by_fly: bool
) -> Any:  # fmt: skip
    """Returns a `vllm.LLM` that measures settings of a calibration.

    Args:
        first: The first setting, whose sampling all have.
        by_fly: Whether vLLM's own FLy decides, see `has_own_fly`.

    Raises:
        UsageError: vLLM cannot run these models so, or has no room for what is decoded.
    """
    os.environ.update(_ENVIRONMENT)
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    arguments.check_room(room.rows, room.context)
    try:
        from vllm.entrypoints.llm import LLM
        from vllm.platforms import current_platform
    except ImportError as error:
        raise UsageError(f"vLLM is installed, and cannot be imported here: {error}; install it anew") from error
    plugin.register()  # vLLM loads it by itself only where VLLM_PLUGINS allows it
    sampled = first.sampling.temperature > 0
    speculation = {**speculation_of(pair.draft), "num_speculative_tokens": room.longest}
    if by_fly:
        score = score_named(first.score)
        assert isinstance(score, Fly)
        speculation |= {METHOD: "fly", **fly_options(score, 0.0)}  # which the plugin changes between calls
    on_cpu = {"enforce_eager": True, "kv_cache_memory_bytes": _CPU_CACHE} if current_platform.is_cpu() else {}
    usual = {
        "dtype": dtype, "max_model_len": room.context, "max_num_seqs": room.rows, "generation_config": "vllm",
        "disable_log_stats": True, **on_cpu,
    }  # fmt: skip
    ours = {
        "speculative_config": speculation | ({"draft_sample_method": "probabilistic"} if sampled else {}),
        "additional_config": {KEY: {CALIBRATION: first.model_dump_json()}},
        "async_scheduling": False, "enable_prefix_caching": False,
    }  # fmt: skip
    try:
        llm = LLM(pair.target.id, **{**usual, **arguments.values, **ours})
    except UsageError:
        raise
    except Exception as error:  # vLLM and what it builds on raise whatever they raise
        raise UsageError(f"vLLM could not start with {pair.target.id!r}: {_last_line(error)}") from error
    _alive.append(llm)
    return llm


def has_own_fly() -> bool:
    """Whether this vLLM has FLy: from 0.33 on, by kernels that need a GPU."""
    from vllm.platforms import current_platform
    from vllm.version import __version__ as vllm_version

    return not current_platform.is_cpu() and SpecifierSet(FLY_VERSIONS).contains(vllm_version)


def versions() -> dict[str, str]:
    """Returns the versions that vLLM's texts depend on."""
    from vllm.version import __version__ as vllm_version

    return {"vllm": vllm_version, "torch": version("torch"), "transformers": version("transformers")}


def _last_line(error: BaseException) -> str:
    """The innermost cause in one line: vLLM wraps what its workers raise."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
