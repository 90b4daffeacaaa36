"""vLLM's V2 model runner that follows a profile: what of its steps is told. NOT MEASURED: no GPU has run it yet.

A subclass says how drafts are judged: by the logits that the runner keeps of them (`rejection_sampler_v2.py`), or by
the target's alone (`target_scores.py`).
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from torch import Tensor
from vllm.v1.worker.gpu.spec_decode.rejection_sampler import RejectionSampler

from fsd_calib.vllm_plugin import KEY, supported_vllm
from fsd_calib.vllm_plugin.judge import Judged, policy_of
from fsd_calib.vllm_plugin.logits_v2 import DraftedSteps, StepRows, padded
from fsd_calib.vllm_plugin.phases import phases_of
from fsd_calib.vllm_plugin.rejection_sampler import warn_of
from fsd_calib.vllm_plugin.running_requests import RunningRequests
from fsd_calib.vllm_plugin.settings import ServeSettings
from fsd_calib.vllm_plugin.telemetry.steps import Emitted
from fsd_calib.vllm_plugin.telemetry.telemetry import Telemetry
from fsd_common.errors import UsageError
from fsd_decoding.profile.threshold_profile import ThresholdProfile


class ServingV2(ABC):
    """Follows a profile in a model runner (V2) whose models are loaded. Not measured: see above.

    Args:
        runner: vLLM's V2 `GPUModelRunner`.
        profile: that the engine was configured with.
        drafted: is told how many draft steps each step made.
    """

    def __init__(self, runner: Any, profile: ThresholdProfile, drafted: DraftedSteps) -> None:
        supported_vllm.check_runner(runner, supported_vllm.OF_RUNNER_V2)
        config = runner.vllm_config
        self._runner, self._drafted = runner, drafted
        self._known: dict[str, Any] = {}
        self._policy = policy_of(profile)
        self._phases = phases_of(self._policy, config, runner.device)
        self._requests = RunningRequests(
            self._known, profile, self._warn, config.model_config.max_model_len, noise_is_seen=False
        )
        self._task, self._heard = profile.task, True
        self._telemetry = Telemetry(profile, ServeSettings(**config.additional_config[KEY]), config)
        runner.sample = functools.partial(self._sample, runner.sample)

    @contextmanager
    def step(self) -> Iterator[None]:
        """Notes which requests the step drafts for: in some it drafts for none (0.33's `skip_drafts`)."""
        state = self._runner.execute_model_state
        yield
        if state is not None:
            self._drafted.made(state.input_batch.req_ids, state.num_spec_tokens_to_schedule)

    @contextmanager
    def unheard(self) -> Iterator[None]:
        """Keeps the requests that vLLM makes up to warm up from being counted and warned of."""
        self._heard = False
        yield
        self._heard = True

    def admit(self, requests: Iterable[Any]) -> None:
        """Notes requests that the scheduler sends for the first time, again with other parameters, or to be resumed."""
        requests = list(requests)
        for request in requests:
            self._known[request.req_id] = request
        self._forget([request.req_id for request in requests])
        if self._phases is not None:
            self._phases.begin({request.req_id: request.prefill_token_ids for request in requests})

    def resume(self, texts: Mapping[str, Sequence[int]]) -> None:  # noqa: B027
        """Requests that are resumed are sent again to this runner, so there are none."""

    def forget(self, finished: Iterable[str]) -> None:
        """Forgets requests that have finished."""
        ended = list(finished)
        if ended:
            self._telemetry.log.finish(ended)
            self._forget(ended)
        if self._phases is not None:
            self._phases.forget(ended)
        for request in ended:
            self._known.pop(request, None)

    def close(self) -> None:
        """Brings what was seen of the last steps to where it belongs. Nothing follows."""
        self._telemetry.close()

    @abstractmethod
    def _begin(self) -> None:
        """Forgets what the step before found of its drafts."""

    @abstractmethod
    def _found(self, batch: Any) -> Judged | None:
        """Returns what a step that was sampled found of its drafts; None: nothing was judged."""

    def _forget(self, requests: Sequence[str]) -> None:
        self._requests.forget(requests)
        self._drafted.forget(requests)

    def _warn(self, departures: tuple[str, ...]) -> None:
        if self._heard:
            warn_of(self._task, departures)

    @property
    def _listens(self) -> bool:
        return self._heard and self._telemetry.listens

    def _sample(self, original: Callable[..., Any], hidden_states: Tensor, batch: Any, grammar_output: Any) -> Any:
        """vLLM's `sample`, whose step is logged: every one, so that the tokens of all texts are known."""
        self._begin()
        result = original(hidden_states, batch, grammar_output)
        if not self._listens and self._phases is None:
            return result
        ids, emits = list(batch.req_ids), np.ones(len(batch.req_ids), bool)
        sampled = padded(result[0].sampled_token_ids, result[0].num_sampled)
        if self._phases is not None:
            self._phases.advance(ids, sampled, emits)
        if self._listens:
            lengths, counts = batch.seq_lens[: len(ids)], StepRows(batch.cu_num_logits_np).counts
            emitted = Emitted(sampled, lengths, counts, emits)
            self._telemetry.log.add(ids, self._requests.of(ids), self._found(batch), emitted)
        return result


def check_sampler(runner: Any) -> None:
    """Raises UsageError where a model samples in a way of its own."""
    if type(runner.rejection_sampler) is not RejectionSampler:
        raise UsageError(
            f"the model's rejection sampler is {type(runner.rejection_sampler).__name__}, which fsd does not know; "
            "serve another model"
        )
