"""vLLM's V2 model runner that follows a profile: NOT MEASURED. Only a CPU, with interpreted kernels, has run it yet.

It keeps the drafts' logits by itself, wherever it draws drafts from them ("draft_sample_method": "probabilistic"), so
that nothing is done while it drafts.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from torch import Tensor
from vllm.v1.worker.gpu.spec_decode.rejection_sampler import RejectionSampler

from fsd_calib.vllm_plugin import KEY, supported_vllm
from fsd_calib.vllm_plugin.judge import Judge, Judged, JudgedTokens, Pending, Verification, policy_of
from fsd_calib.vllm_plugin.logits_v2 import ChunkedDecisions, StateDraftLogits, StepRows, padded
from fsd_calib.vllm_plugin.phases import phases_of
from fsd_calib.vllm_plugin.rejection_sampler import warn_of
from fsd_calib.vllm_plugin.running_requests import RunningRequests
from fsd_calib.vllm_plugin.settings import ServeSettings
from fsd_calib.vllm_plugin.telemetry.steps import Emitted
from fsd_calib.vllm_plugin.telemetry.telemetry import Telemetry
from fsd_common.errors import UsageError
from fsd_decoding.profile.threshold_profile import ThresholdProfile
from fsd_decoding.tensors import to_device


class ServingV2:
    """Follows a profile in a model runner (V2) whose models are loaded. Not measured: see above.

    Args:
        runner: vLLM's V2 `GPUModelRunner`.
    """

    def __init__(self, runner: Any) -> None:
        supported_vllm.check_runner(runner, supported_vllm.OF_RUNNER_V2)
        config = runner.vllm_config
        settings = ServeSettings(**config.additional_config[KEY])
        profile = ThresholdProfile.from_content(settings.content)
        self._drafts = StateDraftLogits(_draft_logits(runner), runner.req_states.req_id_to_index)
        self._runner = runner
        self._known: dict[str, Any] = {}
        policy = policy_of(profile)
        self._judge = Judge(self._drafts, profile.score, policy)
        self._phases = phases_of(policy, config, runner.device)
        self._requests = RunningRequests(
            self._known, profile, self._warn, config.model_config.max_model_len, noise_is_seen=False
        )
        self._task, self._heard = profile.task, True
        self._telemetry = Telemetry(profile, settings, config)
        self._raw: JudgedTokens | Pending | None = None
        self._verified: Judged | None = None
        runner.sample = functools.partial(self._sample, runner.sample)
        self._before_grammar(runner.structured_outputs_worker)
        self._sampler = runner.rejection_sampler = FuzzyRejectionSamplerV2(runner.rejection_sampler, self)

    @contextmanager
    def step(self) -> Iterator[None]:
        """Notes which requests the step drafts for: in some it drafts for none (0.33's `skip_drafts`)."""
        state = self._runner.execute_model_state
        yield
        if state is not None:
            self._drafts.drafted(state.input_batch.req_ids, state.num_spec_tokens_to_schedule)

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

    def resume(self, texts: Mapping[str, Sequence[int]]) -> None:
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

    def _forget(self, requests: Sequence[str]) -> None:
        self._requests.forget(requests)
        self._drafts.forget(requests)

    def _warn(self, departures: tuple[str, ...]) -> None:
        if self._heard:
            warn_of(self._task, departures)

    @property
    def _listens(self) -> bool:
        return self._heard and self._telemetry.listens

    def judged(self, logits: Tensor, batch: Any) -> JudgedTokens | Pending | None:
        """Returns the judged drafts of a step, by logits (rows, V) that a grammar has not yet masked."""
        judged, self._raw = self._raw, None
        return self._judged(logits, batch) if judged is None else judged

    def observe(self, judged: Judged) -> None:
        """Notes what the step that is being sampled found of its drafts."""
        self._verified = judged

    def close(self) -> None:
        """Brings what was seen of the last steps to where it belongs. Nothing follows."""
        self._telemetry.close()

    def _sample(self, original: Callable[..., Any], hidden_states: Tensor, batch: Any, grammar_output: Any) -> Any:
        """vLLM's `sample`, whose step is logged: every one, so that the tokens of all texts are known."""
        self._verified = None
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
            self._telemetry.log.add(ids, self._requests.of(ids), self._verified, emitted)
        return result

    def _judged(self, logits: Tensor, batch: Any) -> JudgedTokens | Pending | None:
        rows = StepRows(batch.cu_num_logits_np)
        ids = list(batch.req_ids)
        places = self._places(rows, batch) if self._judge.needs_places else None
        of_tokens = rows.on(logits.device)
        drafted = batch.input_ids[batch.logits_indices][of_tokens + 1]
        phases = None if self._phases is None else self._phases.before(ids, rows.counts, drafted)
        requests = self._requests.of(ids)
        greedy, thresholds = zip(*((request.greedy, request.threshold) for request in requests), strict=True)
        step = Verification(ids, rows.counts, logits, of_tokens, drafted, greedy, places, phases)
        return self._judge(step, thresholds, self._telemetry.measures)

    def _places(self, rows: StepRows, batch: Any) -> Tensor:
        """Positions of the drafted tokens in their completions (N,)."""
        before = batch.positions[batch.logits_indices][rows.on(batch.positions.device)]
        prompts = self._runner.req_states.prompt_len.np[batch.idx_mapping_np]
        return before + 1 - to_device(np.repeat(prompts, rows.counts).tolist(), before.device)

    def _before_grammar(self, worker: Any) -> None:
        """Judges the drafts of steps with a grammar before vLLM masks the logits by it, in place."""
        mask: Callable[..., None] = worker.apply_grammar_bitmask

        def judge_and_mask(logits: Tensor, batch: Any, *arguments: Any) -> None:
            if batch.num_draft_tokens > 0:
                self._raw = self._judged(logits, batch)
            mask(logits, batch, *arguments)

        worker.apply_grammar_bitmask = judge_and_mask


class FuzzyRejectionSamplerV2(RejectionSampler):
    """vLLM's own rejection sampler (V2), run on logits in which the fuzzily accepted tokens are certain.

    Not measured: see above. The same trick as `FuzzyRejectionSampler`'s, in a sampler that verifies in chunks.

    Args:
        original: the runner's sampler, whose settings it takes over.
        serving: judges steps, and is told of their ends.
    """

    sampler: Any

    def __init__(self, original: Any, serving: ServingV2) -> None:
        self.__dict__.update(vars(original))
        self._serving = serving
        self._decisions: ChunkedDecisions | None = None  # of the step

    def __call__(self, logits: Tensor, input_batch: Any, *arguments: Any, **keywords: Any) -> Any:
        judged = self._serving.judged(logits, input_batch)
        if judged is None:
            return super().__call__(logits, input_batch, *arguments, **keywords)
        decisions = ChunkedDecisions(judged, StepRows(input_batch.cu_num_logits_np), logits.device)
        self._decisions = decisions
        try:
            output = super().__call__(logits, input_batch, *arguments, **keywords)
        finally:
            self._decisions = None
        self._serving.observe(decisions.judged())
        return output

    def _verify(self, logits: Tensor, *arguments: Any) -> Any:
        if self._decisions is None:
            return super()._verify(logits, *arguments)
        own, verified = self.sampler, arguments[-1]  # ids (rows,), of which vLLM rejects negative ones
        self.sampler = _Certain(own, self._decisions, verified)
        try:
            return super()._verify(logits, *arguments)
        finally:
            self.sampler = own


class _Certain:
    """A sampler of vLLM whose processed logits make the fuzzily accepted tokens certain."""

    def __init__(self, sampler: Any, decisions: ChunkedDecisions, verified: Tensor) -> None:
        self._sampler, self._decisions, self._verified = sampler, decisions, verified

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sampler, name)

    def apply_sampling_params(self, logits: Tensor, *arguments: Any) -> Tensor:
        processed = self._sampler.apply_sampling_params(logits, *arguments)
        return self._decisions.next(processed, self._verified, own=processed is not logits)


def _draft_logits(runner: Any) -> Tensor:
    """Returns the draft logits that the runner keeps: (requests, L, V). Raises UsageError: it does not keep them so."""
    kept: Tensor | None = getattr(runner.speculator, "draft_logits", None)
    if kept is None:
        raise UsageError(
            'vLLM\'s V2 model runner keeps no draft logits; set "draft_sample_method": "probabilistic" in '
            "--speculative-config"
        )
    if kept.shape[-1] != runner.vocab_size:
        raise UsageError(
            f"the draft has {kept.shape[-1]} logits, the target {runner.vocab_size}; fsd compares distributions over "
            "one vocabulary"
        )
    if type(runner.rejection_sampler) is not RejectionSampler:
        raise UsageError(
            f"the model's rejection sampler is {type(runner.rejection_sampler).__name__}, which fsd does not know; "
            "serve another model"
        )
    return kept
