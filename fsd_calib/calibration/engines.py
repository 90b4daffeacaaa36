"""The engine of a calibration: our own, in this process and workers, or vLLM's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import product
from typing import Any

import torch
from torch.nn import Module

from fsd_calib.engines.base import Engine, KeyedPrompt, Limits, short_name
from fsd_calib.engines.own import OwnEngine, source_of
from fsd_calib.engines.workers import EngineWorkers
from fsd_calib.options.common import AUTO
from fsd_calib.options.run_config import MOST_AT_ONCE, RunConfig
from fsd_calib.options.search_space import SearchSpace
from fsd_calib.tasks.base import Task
from fsd_calib.vllm_plugin import RULES
from fsd_calib.vllm_plugin.settings import hidden_noise, other_law
from fsd_common.argument_checks import named
from fsd_common.errors import UsageError
from fsd_common.progress.base import Progress, reading
from fsd_common.settings import listed
from fsd_decoding.config import DecodingConfig
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.drafters.vllm_draft import VllmDraft
from fsd_decoding.loading import default_device, is_source, keywords_of, load_model
from fsd_decoding.model_options import USUAL_LOADING, ModelOptions
from fsd_decoding.models.weights_digest import known_weights_digest
from fsd_decoding.policies.stopping import stop_policy_named
from fsd_decoding.profile.drafts import kind_of
from fsd_decoding.profile.fields import COMPILE
from fsd_decoding.requests import requests_for
from fsd_decoding.workers.model_workers import Capacity, Sources, open_workers

_COLDEST = 0.01  # vLLM raises a lower temperature to this


@dataclass(frozen=True)
class EngineRequest:
    """What a calibration asks of its engine.

    Attributes:
        decoding: With the rule and the score that are searched first.
        task: With the problems that may be decoded.
        guards: The same of other tasks.
        fly_alone: Whether nothing but FLy with a constant T is searched, which vLLM may have itself.
        longest: Largest draft length.
        serve_batch: Streams that are timed at once.
        capacity: Of this machine for workers.
        stop_policy: Name of the policy that ends drafts early; None: there is none.
    """

    sources: Sources
    decoding: DecodingConfig
    config: RunConfig
    task: Task
    guards: Sequence[Task]
    tokenizer: Any
    fly_alone: bool
    longest: int
    serve_batch: int
    capacity: Capacity
    stop_policy: str | None = None


@dataclass(frozen=True)
class OpenEngines:
    """Engines that are ready to decode, one for each draft.

    Attributes:
        devices: That the models of all processes are on.
        on_cpu: Whether all of them are the CPU.
    """

    engines: Sequence[Engine]
    workers: EngineWorkers | None
    devices: int
    on_cpu: bool


def open_engines(request: EngineRequest) -> AbstractContextManager[OpenEngines]:
    """Loads the engines that the run's settings name.

    Raises:
        UsageError: The models cannot be loaded, or the engine cannot do what is asked of it.
    """
    return _vllm(request) if request.config.engine == "vllm" else _own(request)


@contextmanager
def _own(request: EngineRequest) -> Iterator[OpenEngines]:
    config, sources = request.config, request.sources
    with open_workers(config.workers, config.ray, sources, request.capacity, config.reporter.note) as workers:
        target, *drafts = _loaded(request)
        decoders = [_decoder(request, target, draft) for draft in drafts]
        for model in (target, *drafts):
            _read(model, config.reporter)
        over, policy = None, request.stop_policy
        if workers is not None:
            over = EngineWorkers(workers, source_of(decoders[0], request.task, workers.sources, stop_policy=policy))
        ending = None if policy is None else stop_policy_named(policy)
        devices = _devices(decoders)
        yield OpenEngines(
            [OwnEngine(decoder, request.task, ending=ending) for decoder in decoders], over,
            max(len(devices), workers.gpus if workers else 0), {device.type for device in devices} == {"cpu"},
        )  # fmt: skip


def _loaded(request: EngineRequest) -> list[Any]:
    """The target and the drafts, loaded where they are sources of models."""
    config, sources, loading = request.config, request.sources, request.config.loading
    place = config.device or default_device()
    sides: Sequence[tuple[Any, ModelOptions]] = (
        (sources.target, loading.target),
        *((draft, loading.draft) for draft in sources.drafts),
    )
    return [
        load_model(model, place, config.dtype, options, config.reporter) if is_source(model) else model
        for model, options in sides
    ]


def _read(model: Any, progress: Progress) -> None:
    """Reads a model's weights for its fingerprint, unless that is known of its files."""
    if not isinstance(model, Module):  # some other draft
        return
    size = sum(tensor.nbytes for tensor in model.state_dict().values())
    with reading(progress, f"fingerprint of {short_name(model)}", size) as add:
        known_weights_digest(model, add)


def _decoder(request: EngineRequest, target: Any, draft: Any) -> SpeculativeDecoder:
    config = request.config
    return SpeculativeDecoder.from_pretrained(
        target, draft, decoding=request.decoding, device=config.device, dtype=config.dtype,
        tokenizer=request.tokenizer, compile=False if config.compile == "auto" else COMPILE[config.compile],
        **keywords_of(config.loading, target, draft),
    )  # fmt: skip


def _devices(decoders: Sequence[SpeculativeDecoder]) -> set[torch.device]:
    """The devices that the weights of this process are on."""
    models = [model for decoder in decoders for model in (decoder.target, decoder.draft)]
    return {weight.device for model in models if isinstance(model, Module) for weight in model.parameters()}


def check_vllm(
    sources: Sources, decoding: SearchSpace, config: RunConfig, policies: Sequence[Any], serve_batch: int
) -> None:
    """Raises UsageError where vLLM cannot do what is asked of it; nothing was loaded."""
    for reason in _obstacles(sources, decoding, config, policies, serve_batch):
        raise UsageError(f"engine is 'vllm', {reason}")


def check_vllm_installed() -> None:
    """Raises UsageError where there is no vLLM."""
    if find_spec("vllm") is None:
        raise UsageError(
            "engine 'vllm' needs vLLM, which this environment lacks; run the command in an environment that has both, "
            "such as .venv-vllm, which 'sh install.sh vllm' makes in a checkout (.venv-vllm/bin/fsd-calibrate), or "
            f"leave {named('engine')} out"
        )


def _obstacles(
    sources: Sources, decoding: SearchSpace, config: RunConfig, policies: Sequence[Any], serve_batch: int
) -> Iterator[str]:
    if other := next((draft for draft in sources.drafts if kind_of(draft) not in ("model", "vllm")), None):
        yield (
            f"which loads drafters itself, and the draft is {other!r:.80}: give a model, or a head as "
            f"{named('speculative_config')}"
        )
    for role, model in (("target", sources.target), *(("draft", draft) for draft in sources.drafts)):
        if not (is_source(model) or kind_of(model) == "vllm"):
            yield f"which loads models itself, and the {role} is a loaded {type(model).__name__}: give its path or id"
    if len(sources.drafts) > 1:
        yield f"which is loaded with one draft, and {len(sources.drafts)} are given: give one of them"
    for rule in listed(decoding.rule):
        if rule not in RULES:
            yield f"which can follow {' and '.join(RULES)}, and the rule is {rule!r}: give one of these"
    scores = [name for name in listed(decoding.score) if name != AUTO]
    for name in scores:
        if hidden := hidden_noise(name, greedy=decoding.temperature == 0):
            yield f"which decodes greedily here, and {hidden}: give another score, or a {named('temperature')}"
    for rule, name in product(listed(decoding.rule), scores):
        if law := other_law(rule, name, greedy=decoding.temperature == 0):
            yield f"and {law}: give {named('rule')} fsd-sd"
    if any(decoding.trees):
        yield "which drafts no trees: leave them out"
    if decoding.predictor is not None:
        yield "which cannot end drafts by a predictor: leave it out"
    if decoding.stop_policy is not None:
        yield f"which cannot end drafts by a policy: leave {named('stop_policy')} out"
    if "per-prompt" in policies:
        yield "which cannot follow policy 'per-prompt': give constant, schedule, entropy or phase"
    if config.timing == "careful":
        yield f"whose speeds are timed in this process: leave {named('timing')} careful out"
    if config.compile not in ("auto", "off"):
        yield f"which compiles as {named('engine_args')} says: leave {named('compile')} out"
    if config.device is not None:
        yield f"which takes the device that it was built for: leave {named('device')} out"
    if 0 < decoding.temperature < _COLDEST:
        yield f"which samples at temperature {_COLDEST} or above, and {decoding.temperature} is given: give 0"
    if decoding.min_p is not None:
        yield "which refuses min_p in speculative decoding: leave it out"
    from fsd_calib.engines.vllm.loading import EngineArguments

    rows = max(config.batch_size or MOST_AT_ONCE, serve_batch)
    EngineArguments.of(config.engine_args or {}).check_room(rows)
    if config.loading != USUAL_LOADING:
        yield (
            f"which loads models as {named('engine_args')} says, such as "
            '{"quantization": …}: leave the options of loading out'
        )


@contextmanager
def _vllm(request: EngineRequest) -> Iterator[OpenEngines]:
    from fsd_calib.engines.vllm.engine import VllmEngineSource
    from fsd_calib.engines.vllm.loading import EngineArguments, Room, has_own_fly

    check_vllm_installed()
    config, arguments = request.config, EngineArguments.of(request.config.engine_args or {})
    (given,) = request.sources.drafts
    draft = given if isinstance(given, VllmDraft) else str(given)
    room = Room(max(config.batch_size or MOST_AT_ONCE, request.serve_batch), request.longest, _context(request))
    source = VllmEngineSource(
        str(request.sources.target), draft, config.dtype, request.decoding, Limits.of(request.task), arguments, room,
        request.task.name, by_fly=request.fly_alone and has_own_fly(),
    )  # fmt: skip
    capacity = replace(request.capacity, gpus_each=arguments.devices)
    with open_workers(config.workers, config.ray, request.sources, capacity, config.reporter.note) as workers:
        engine = source.noting(config.reporter.note)
        engine.check_intervals([KeyedPrompt(problem.id, problem.prompt) for problem in request.task.problems])
        over = None
        if workers is not None:
            over = EngineWorkers(workers, replace(source, intervals_hold=engine.intervals_hold))
        gpus = workers.gpus if workers else 0
        yield OpenEngines([engine], over, engine.devices + gpus, engine.device == "cpu")


def _context(request: EngineRequest) -> int:
    """The most tokens that a prompt, its text and a draft may have together."""
    longest = 0
    for task in (request.task, *request.guards):
        prompts = [problem.prompt for problem in task.problems]
        tokens = requests_for(request.tokenizer, None, len(request.tokenizer), prompts, None, -1.0, 1, 1)
        longest = max(longest, max(len(each.prompt) for each in tokens) + task.max_new_tokens)
    return longest + request.longest + 1
