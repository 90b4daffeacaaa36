"""Scores of the target alone in vLLM's own extension point: a logits processor of the V2 runner. NOT MEASURED on a GPU.

A processor sees a step's target logits and the tokens that they verify, which is all that such a score reads. So
nothing of vLLM is replaced to decide by it, and drafts need no distribution. In V1 processors do not run where drafts
are verified. A grammar, penalties and a bias have changed the logits by then, so that a request with these is judged by
what they leave; elsewhere the plugin judges scores of raw logits before.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from vllm.v1.worker.gpu.sample.logits_processor.interface import LogitsProcessor

from fsd_calib.vllm_plugin import KEY
from fsd_calib.vllm_plugin.certain import accept_certainly
from fsd_calib.vllm_plugin.draft_logits import Layout
from fsd_calib.vllm_plugin.judge import Judged, JudgedTokens, StepTokens, policy_of, scales_of
from fsd_calib.vllm_plugin.logits_v2 import DraftedSteps, StepRows
from fsd_calib.vllm_plugin.processed import Bounds, Sight
from fsd_calib.vllm_plugin.running_requests import describe, sampling_of
from fsd_calib.vllm_plugin.serving_v2 import ServingV2, check_sampler
from fsd_calib.vllm_plugin.settings import EXACT, ServeSettings, requested_threshold
from fsd_decoding.divergence import entropy
from fsd_decoding.policies.shapes import EntropyScaled
from fsd_decoding.profile.threshold_profile import ThresholdProfile
from fsd_decoding.sampling import Sampling
from fsd_decoding.scores import score_named
from fsd_decoding.tensors import to_device

NAME = f"{__name__}:TargetScores"
"""As vLLM's `logits_processors` names it."""


class TargetScores(LogitsProcessor):
    """Makes drafted tokens certain that a profile's score of the target alone keeps.

    Args:
        vllm_config: whose plugin settings hold the profile.
        req_states: vLLM's states of requests, each in a slot.
    """

    def __init__(self, vllm_config: Any, req_states: Any) -> None:
        settings = ServeSettings(**vllm_config.additional_config[KEY])
        self._profile = ThresholdProfile.from_content(settings.content)
        self._score, self._policy = score_named(self._profile.score), policy_of(self._profile)
        self._prompts = req_states.prompt_len
        self._limits = torch.full((req_states.max_num_reqs,), EXACT, dtype=torch.float64)
        self._on_device = self._limits.to(req_states.device)
        self._staged = False
        self._sampled: dict[int, Sampling] = {}  # by slot, of requests that sample
        self._found: list[tuple[Tensor, Tensor, Tensor]] = []  # of the step, by chunk of its rows

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        """Raises UsageError, which is a ValueError: an option of the request is none that it may have."""
        requested_threshold(sampling_params.extra_args, 0.0)

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        """Notes the T and the sampling of a request in a slot; returns True, so that all rows of a step are seen.

        vLLM forces tokens behind this, where a thinking budget is spent, which certain tokens would outdo.
        """
        budget = sampling_params.thinking_token_budget
        threshold = EXACT if budget is not None else describe(sampling_params, self._profile).threshold
        self._limits[req_idx], self._staged = threshold, True
        self._sampled.pop(req_idx, None)
        if sampling_params.temperature > 0:
            self._sampled[req_idx] = Sampling(**sampling_of(sampling_params) | {"repetition_penalty": 1.0})
        return True

    def apply_staged_writes(self) -> None:
        if self._staged:
            self._on_device.copy_(self._limits)
            self._staged = False

    def apply(self, logits: Tensor, ctx: Any) -> Tensor:
        """Makes the accepted tokens of a step, or of some of its requests, certain, in place; see the base class."""
        slots, places = ctx.expanded_idx_mapping.long(), ctx.expanded_local_pos
        follows = torch.cat([places[1:] > 0, places.new_zeros(1, dtype=torch.bool)])  # row i + 1 is of the same request
        verified = torch.cat([ctx.input_ids[1:], ctx.input_ids.new_full((1,), -1)]).masked_fill(~follows, -1)
        limits = self._on_device[slots].masked_fill(verified < 0, EXACT)
        scales = torch.ones_like(limits)
        if self._policy is not None:
            spread = entropy(logits) if isinstance(self._policy, EntropyScaled) else None
            prompts = self._prompts.gpu[slots].long()
            scales = scales_of(self._policy, StepTokens(ctx.pos.long() + 1 - prompts, spread, None))
        unread = torch.zeros_like(verified)  # by scores that read no later tokens
        bounds = Bounds(limits, scales.to(limits.dtype), unread, unread)
        scores, _, fuzzy = Sight(self._processed(logits, ctx), verified).judge(self._score, bounds)
        self._found.append((scores, fuzzy, accept_certainly(logits, verified, fuzzy)))
        return logits

    def begin(self) -> None:
        """Forgets what the step before was judged to be."""
        self._found.clear()

    def judged(self, rows: StepRows, made: list[bool]) -> Judged | None:
        """Returns the judged drafts of the step; None: there are none, or no request's could be accepted by its score.

        Args:
            made: whether the tokens of each request were drafted.
        """
        kept = np.flatnonzero(np.repeat(made, rows.counts))
        if not (self._found and len(kept)):
            return None
        scores, fuzzy, most_likely = (torch.cat(each) for each in zip(*self._found, strict=True))
        of_tokens = rows.on(scores.device)[to_device(kept.tolist(), scores.device, torch.int64)]
        counts = [count if there else 0 for count, there in zip(rows.counts, made, strict=True)]
        judged = JudgedTokens(Layout(counts, [0] * len(counts)), scores[of_tokens], fuzzy[of_tokens])
        judged.accepted(most_likely[of_tokens])
        return judged

    def _processed(self, logits: Tensor, ctx: Any) -> Tensor:
        """The logits as sampling processes them, if the score is of these; vLLM does that after this."""
        sampled = {slot: self._sampled[slot] for slot in ctx.idx_mapping_np.tolist() if slot in self._sampled}
        if self._score.on != "processed" or not sampled:
            return logits
        processed = logits.clone()
        for slot, sampling in sampled.items():
            of_slot = (ctx.expanded_idx_mapping == slot).nonzero().squeeze(1)
            rows = logits[of_slot].unsqueeze(0)
            nothing = torch.zeros((1, 1), dtype=torch.int64, device=logits.device)  # no penalty reads the text
            processed[of_slot] = sampling.warp(rows, nothing, nothing)[0].to(logits.dtype)
        return processed


class ExtendedServing(ServingV2):
    """Tells of steps that `TargetScores` has judged. Not measured on a GPU.

    Args:
        runner: vLLM's V2 `GPUModelRunner`.
    """

    def __init__(self, runner: Any, profile: ThresholdProfile) -> None:
        check_sampler(runner)
        super().__init__(runner, profile, DraftedSteps())
        processors = runner.sampler.logits_processors
        self._processor = next(each for each in processors if isinstance(each, TargetScores))

    def _begin(self) -> None:
        self._processor.begin()

    def _found(self, batch: Any) -> Judged | None:
        rows = StepRows(batch.cu_num_logits_np)
        return self._processor.judged(rows, self._drafted.were_made(batch.req_ids, rows.counts))
