"""A model runner of vLLM that follows a profile: where the plugin acts within a step."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from vllm.logger import init_logger
from vllm.v1.outputs import SamplerOutput
from vllm.v1.sample.rejection_sampler import (
    RejectionSampler,
    apply_sampling_constraints,
    generate_uniform_probs,
)
from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer

from fsd_calib.vllm_plugin import KEY, supported_vllm
from fsd_calib.vllm_plugin.draft_logits import BufferedDraftLogits, DraftLogits, HostDraftLogits
from fsd_calib.vllm_plugin.judge import Judge, Judged, Looking, Pending, Verification, policy_of
from fsd_calib.vllm_plugin.on_host import emit
from fsd_calib.vllm_plugin.phases import phases_of
from fsd_calib.vllm_plugin.processed import Sight
from fsd_calib.vllm_plugin.running_requests import Running, RunningRequests
from fsd_calib.vllm_plugin.settings import Followed, ServeSettings
from fsd_calib.vllm_plugin.telemetry.steps import Emitted, StepTelemetry
from fsd_calib.vllm_plugin.telemetry.telemetry import Telemetry
from fsd_common.errors import UsageError
from fsd_decoding.profile.threshold_profile import ThresholdProfile
from fsd_decoding.scores import Score
from fsd_decoding.tensors import argmax, to_device

logger = init_logger("vllm.fsd")


class FuzzyRejectionSampler(RejectionSampler):
    """vLLM's own rejection sampler, run on logits in which the fuzzily accepted tokens are certain.

    Where the score is at most T the target's distribution is replaced by certainty of the drafted token, so vLLM's rule
    accepts it: the argmax is x, and u <= p(x)/q(x) holds for every u. All other positions, the noise and its order stay
    vLLM's. Tokens that the request forbids (a grammar, bad words, allowed tokens) are left to vLLM's rule, which
    rejects them. Where requests are greedy and nothing changes their logits, a CPU knows what vLLM would return, and
    computes that alone.

    Attributes:
        judged: the step's tokens; None: vLLM's rule alone decides.
    """

    judged: Judged | Pending | Looking | None = None
    _draft_probs: Tensor | None = None  # q of the step, as vLLM's exact test takes it

    def forward(self, metadata: Any, draft_probs: Tensor | None, logits: Tensor, sampling_metadata: Any) -> Any:
        self._draft_probs = draft_probs
        if isinstance(self.judged, Looking) and self.judged.plain and not _tells_logprobs(sampling_metadata):
            tokens = self._emitted(self.judged, metadata, logits)
            return SamplerOutput(sampled_token_ids=tokens, logprobs_tensors=None)
        return super().forward(metadata, draft_probs, logits, sampling_metadata)

    def _emitted(self, looking: Looking, metadata: Any, logits: Tensor) -> Tensor:
        """Returns the tokens of a step in which nothing changes the logits (rows, V): (B, L + 1), padded with -1."""
        counts, rows = metadata.num_draft_tokens, metadata.target_logits_indices.tolist()
        chosen, drafted = argmax(logits).tolist(), metadata.draft_token_ids.tolist()
        accepted = [chosen[row] == token for row, token in zip(rows, drafted, strict=True)]
        self.judged = judged = looking.decide(accepted)
        kept = accepted.copy()
        for token in judged.fuzzy:
            if drafted[token] >= 0 and logits[rows[token], drafted[token]] > -torch.inf:
                kept[token] = True
        return torch.tensor(emit(counts, drafted, kept, chosen), dtype=torch.int32)

    def apply_logits_processors(self, logits: Tensor, sampling_metadata: Any, metadata: Any) -> Tensor:
        """Returns the processed logits (N, V) of the drafted tokens, before temperature, top-k and top-p."""
        processed: Tensor = super().apply_logits_processors(logits, sampling_metadata, metadata)
        if isinstance(self.judged, Looking):
            self.judged = self.judged.decide((argmax(processed) == metadata.draft_token_ids).tolist())
        if isinstance(self.judged, Pending):
            self.judged = self.judged.decide(self._sight(self.judged.score, processed, sampling_metadata, metadata))
        if self.judged is not None:
            self.judged.accept(processed, metadata.draft_token_ids)
        return processed

    def _sight(self, score: Score, processed: Tensor, sampling_metadata: Any, metadata: Any) -> Sight:
        drafted = metadata.draft_token_ids
        if sampling_metadata.all_greedy:
            return Sight(processed, drafted)
        target = apply_sampling_constraints(processed.clone(), metadata.cu_num_draft_tokens, sampling_metadata)
        uniform = None
        if score.reads_noise or score.window:
            uniform = _next_uniform(metadata, sampling_metadata, processed.device)
        return Sight(target, drafted, self._draft_probs, uniform)


class Serving:
    """Follows a profile in a model runner (V1) whose models are loaded.

    A step of the runner verifies the drafts of the step before, then drafts again. The plugin keeps the logits of every
    draft step, judges the tokens by them before vLLM masks the target's logits by a grammar, and puts its own rejection
    sampler in the place of vLLM's.

    Args:
        runner: vLLM's `GPUModelRunner`, or a subclass of it.
        followed: the profile.
        telemetry: receives the steps.
    """

    _tells_scaled = False  # see `Judge`

    def __init__(self, runner: Any, followed: Followed, telemetry: StepTelemetry) -> None:
        supported_vllm.check_runner(runner)
        _check_drafter(runner.drafter)
        self._runner, self._telemetry = runner, telemetry
        self._drafts = _draft_logits(runner.vllm_config, runner.device)
        self._follow(followed)
        self._sampler = FuzzyRejectionSampler(runner.sampler, runner.speculative_config, runner.device)
        runner.rejection_sampler = self._sampler
        runner._sample = functools.partial(self._sample, runner._sample)
        runner.drafter._sample_draft_tokens = functools.partial(_sample_draft_tokens, runner.drafter, self._drafts)

    def _follow(self, followed: Followed) -> None:
        policy = policy_of(followed)
        self._judge = Judge(self._drafts, followed.score, policy, self._tells_scaled)
        self._phases = phases_of(policy, self._runner.vllm_config, self._runner.device)
        self._requests = RunningRequests(
            self._runner.requests, followed, functools.partial(warn_of, followed.task),
            self._runner.vllm_config.model_config.max_model_len,
        )  # fmt: skip

    @contextmanager
    def step(self) -> Iterator[None]:
        """Judges the drafts that the step verifies, and keeps the logits of those that it makes."""
        self._sampler.judged = judged = self._judged()
        if not isinstance(judged, Looking):
            self._drafts.begin()
        yield
        self._drafts.end(self._runner.input_batch.req_ids)

    @contextmanager
    def unheard(self) -> Iterator[None]:
        """vLLM warms this runner up without requests, so there is nothing to keep from being counted."""
        yield

    def admit(self, requests: Iterable[Any]) -> None:
        """Notes requests that the scheduler sends for the first time, or again with other parameters."""
        requests = list(requests)
        self._requests.forget(request.req_id for request in requests)
        if self._phases is not None:
            self._phases.begin({request.req_id: request.prompt_token_ids for request in requests})

    def resume(self, texts: Mapping[str, Sequence[int]]) -> None:
        """Notes the prompts and texts so far of requests that the last step left out."""
        if self._phases is not None:
            self._phases.begin(texts)

    def forget(self, finished: Set[str]) -> None:
        """Forgets requests that have finished."""
        if finished:
            self._telemetry.log.finish(finished)
            self._requests.forget(finished)
        if self._phases is not None:
            self._phases.forget(finished)

    def close(self) -> None:
        """Brings what was seen of the last steps to where it belongs. Nothing follows."""
        self._telemetry.close()

    def _judged(self) -> Judged | Pending | Looking | None:
        """The drafted tokens that the runner is about to verify, judged; None: vLLM's rule alone decides."""
        state = self._runner.execute_model_state
        metadata = None if state is None else state.spec_decode_metadata
        if metadata is None or not any(metadata.num_draft_tokens):
            return None
        ids = list(self._runner.input_batch.req_ids)  # vLLM changes its own
        running, counts = self._requests.together(ids), metadata.num_draft_tokens
        largest = max(t for t, count in zip(running.thresholds, counts, strict=True) if count)
        if largest < 0 and self._telemetry.measures is None:
            return None
        rows, drafted = metadata.target_logits_indices, metadata.draft_token_ids
        phases = None if self._phases is None else self._phases.before(ids, counts, drafted)
        places = self._places(metadata)
        looks_first = self._looks_first(state.logits, running)
        logits = state.logits.clone() if looks_first and running.masked else state.logits  # vLLM masks its own
        step = Verification(ids, counts, logits, rows, drafted, running.greedy, places, phases)
        if looks_first:
            return Looking(self._judge, step, running.thresholds, running.plain)
        return self._judge(step, running.thresholds, self._telemetry.measures)

    def _looks_first(self, logits: Tensor, running: Running) -> bool:
        """Whether D is computed only where the exact rule rejects.

        That is most of the work saved on a CPU. A GPU would have to wait until it is known which tokens these are.
        """
        if logits.is_cuda or self._telemetry.measures is not None:
            return False
        return running.plain or (self._judge.on_raw and running.all_greedy)

    def _places(self, metadata: Any) -> Tensor | None:
        """Positions of the drafted tokens in their completions (N,), if T depends on them."""
        if not self._judge.needs_places:
            return None
        before = self._runner._get_positions(metadata.logits_indices[metadata.target_logits_indices])
        prompts = self._runner.input_batch.num_prompt_tokens.tolist()
        of_tokens = [prompts[row] for row, count in enumerate(metadata.num_draft_tokens) for _ in range(count)]
        places: Tensor = before if before.dim() == 1 else before[0]  # of text all three of M-RoPE are the same
        return places + 1 - to_device(of_tokens, before.device)

    def _sample(self, original: Callable[[Any, Any], Any], logits: Any, metadata: Any) -> Any:
        """vLLM's `_sample`, whose step is logged: every one, so that the tokens of all texts are known."""
        output, judged = original(logits, metadata), self._sampler.judged
        self._drafts.begin()
        if not self._telemetry.listens and self._phases is None:
            return output
        assert not isinstance(judged, Pending | Looking)  # the sampler decided
        runner, ids = self._runner, self._runner.input_batch.req_ids
        emits = ~runner.discard_request_mask.np[: len(ids)]
        if self._phases is not None:
            self._phases.advance(ids, output.sampled_token_ids, emits)
        if self._telemetry.listens:
            drafted = [0] * len(ids) if metadata is None else metadata.num_draft_tokens
            emitted = Emitted(output.sampled_token_ids, runner.seq_lens[: len(ids)], drafted, emits)
            self._telemetry.log.add(ids, self._requests.together(ids).requests, judged, emitted)
        return output


def follow_profile(runner: Any) -> Serving:
    """Lets a runner follow the profile that its engine was configured with."""
    config = runner.vllm_config
    settings = ServeSettings(**config.additional_config[KEY])
    profile = ThresholdProfile.from_content(settings.content)
    return Serving(runner, profile, Telemetry(profile, settings, config))


def _tells_logprobs(sampling_metadata: Any) -> bool:
    return sampling_metadata.max_num_logprobs is not None or bool(sampling_metadata.logprob_token_ids)


def _next_uniform(metadata: Any, sampling_metadata: Any, device: torch.device) -> Tensor:
    """Returns the u that vLLM's exact test is about to draw for every drafted token: (N,) in fp64.

    vLLM draws nothing in between, and its generators are left as they were, so that it draws the same.
    """
    generators = sampling_metadata.generators
    states = {row: generator.get_state() for row, generator in generators.items()}
    counts = metadata.num_draft_tokens
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        drawn: Tensor = generate_uniform_probs(sum(counts), counts, generators, device)
    for row, state in states.items():
        generators[row].set_state(state)
    return drawn


def _draft_logits(config: Any, device: torch.device) -> DraftLogits:
    vocabulary = config.model_config.get_vocab_size()
    if device.type == "cpu":
        return HostDraftLogits(vocabulary)
    shape = config.scheduler_config.max_num_seqs, config.speculative_config.num_speculative_tokens, vocabulary
    return BufferedDraftLogits(shape, config.model_config.dtype, device)


def _check_drafter(drafter: Any) -> None:
    """Raises UsageError where a drafter draws tokens in a way of its own, whose logits would not be seen."""
    kind = type(drafter)
    for name in ("propose", "_sample_draft_tokens", "_sample_from_logits", "_greedy_sample"):
        if getattr(kind, name, None) is not getattr(SpecDecodeBaseProposer, name):
            raise UsageError(
                f"vLLM's drafter is {kind.__name__}, which has a {name} of its own that fsd does not know; use another "
                "drafter"
            )


def warn_of(task: str, departures: tuple[str, ...]) -> None:
    """Warns once of requests that the certificate is not for, for each set of names of what differs."""
    names = ", ".join(sorted({departure.split()[0] for departure in departures}))
    logger.warning_once(
        "fsd: requests are served with another %s than the profile of %r was calibrated with: its certificate is not "
        "for them", names, task,
    )  # fmt: skip


def _sample_draft_tokens(
    drafter: Any, drafts: DraftLogits, hidden_states: Tensor, sampling_metadata: Any
) -> tuple[Tensor, Tensor | None]:
    """vLLM's `_sample_draft_tokens`, which also keeps the logits, before vLLM scales them in place.

    DFlash drafts all tokens of a request at once, whose rows are beside each other.
    """
    logits = drafter.model.compute_logits(hidden_states)
    samples = drafter._enable_probabilistic_draft_probs and not sampling_metadata.all_greedy
    if drafter.parallel_drafting:
        for step in range(drafter.num_speculative_tokens):
            drafts.add(logits[step :: drafter.num_speculative_tokens], changes=samples)
    else:
        drafts.add(logits, changes=samples)
    if not samples:
        return argmax(logits), None
    sampled: tuple[Tensor, Tensor | None] = drafter._sample_from_logits(logits, sampling_metadata)
    return sampled
