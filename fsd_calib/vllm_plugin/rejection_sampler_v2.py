"""Drafts judged by their own logits in vLLM's V2 model runner: NOT MEASURED. Only a CPU, with interpreted kernels, has
run it yet.

It keeps the drafts' logits by itself, wherever it draws drafts from them ("draft_sample_method": "probabilistic"), so
that nothing is done while it drafts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor
from vllm.v1.worker.gpu.spec_decode.rejection_sampler import RejectionSampler

from fsd_calib.vllm_plugin.judge import Judge, Judged, JudgedTokens, Pending, Verification
from fsd_calib.vllm_plugin.logits_v2 import ChunkedDecisions, StateDraftLogits, StepRows
from fsd_calib.vllm_plugin.serving_v2 import ServingV2, check_sampler
from fsd_common.errors import UsageError
from fsd_decoding.profile.threshold_profile import ThresholdProfile
from fsd_decoding.tensors import to_device


class JudgingServing(ServingV2):
    """Judges drafts by their logits and the target's. Not measured: see above.

    Args:
        runner: vLLM's V2 `GPUModelRunner`.
    """

    def __init__(self, runner: Any, profile: ThresholdProfile) -> None:
        check_sampler(runner)
        drafts = StateDraftLogits(_draft_logits(runner), runner.req_states.req_id_to_index)
        super().__init__(runner, profile, drafts)
        self._judge = Judge(drafts, profile.score, self._policy)
        self._raw: JudgedTokens | Pending | None = None
        self._verified: Judged | None = None
        self._before_grammar(runner.structured_outputs_worker)
        self._sampler = runner.rejection_sampler = FuzzyRejectionSamplerV2(runner.rejection_sampler, self)

    def judged(self, logits: Tensor, batch: Any) -> JudgedTokens | Pending | None:
        """Returns the judged drafts of a step, by logits (rows, V) that a grammar has not yet masked."""
        judged, self._raw = self._raw, None
        return self._judged(logits, batch) if judged is None else judged

    def observe(self, judged: Judged) -> None:
        """Notes what the step that is being sampled found of its drafts."""
        self._verified = judged

    def _begin(self) -> None:
        self._verified = None

    def _found(self, batch: Any) -> Judged | None:
        return self._verified

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

    def __init__(self, original: Any, serving: JudgingServing) -> None:
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
    return kept
