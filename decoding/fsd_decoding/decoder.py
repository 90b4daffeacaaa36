"""SpeculativeDecoder: prompts in, texts out, with two models and an acceptance rule between them.

Knows tokenizers, prompts, stop strings and profiles. The loop itself is `engine.py`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fsd_decoding.divergence import check_name
from fsd_decoding.drafter import ModelDrafter
from fsd_decoding.engine import Engine, FinishReason, Observer, Request, Row, Settings
from fsd_decoding.errors import NumericalError, UsageError
from fsd_decoding.loading import as_dtype, check_device, default_device, is_source, load_model, shared_tokenizer
from fsd_decoding.profile import ThresholdProfile
from fsd_decoding.rules import rule_named
from fsd_decoding.runner import ModelRunner, context_length
from fsd_decoding.sampling import Sampling
from fsd_decoding.stopping import StopStrings

Prompt = str | list[int]


@dataclass(frozen=True)
class Result:
    """What one prompt became."""

    text: str
    tokens: list[int]  # new ones, without EOS
    rounds: int
    drafted: int
    accepted: int
    interval: tuple[float, float]  # every threshold in [lo, hi) gives this very text
    finish_reason: FinishReason

    @property
    def emitted(self) -> int:
        """Tokens the rounds brought, an EOS included: what speeds are counted in."""
        return len(self.tokens) + (self.finish_reason == "eos")


class SpeculativeDecoder:
    """Two causal LMs that share a tokenizer, decoding in batches. See `from_pretrained`."""

    def __init__(
        self,
        target: Any,
        draft: Any,
        tokenizer: Any,
        *,
        rule: str = "fsd-coupled",
        divergence: str = "js",
        threshold: float = 0.1,
        draft_length: int = 5,
        seed: int = 0,
        sampling: Sampling | None = None,
    ) -> None:
        self.target, self.draft, self.tokenizer = target, draft, tokenizer
        self.rule, self.divergence, self.seed = rule, divergence, seed
        self.threshold, self.draft_length = threshold, draft_length
        self.sampling = sampling or Sampling()
        self._check_settings(rule, divergence, draft_length, [threshold])

    @classmethod
    def from_pretrained(
        cls,
        target: Any,
        draft: Any,
        profile: Any = None,
        *,
        rule: str = "fsd-coupled",
        divergence: str = "js",
        threshold: float = 0.1,
        draft_length: int = 5,
        device: str | None = None,
        dtype: str | torch.dtype | None = None,
        seed: int = 0,
        tokenizer: Any = None,
        sampling: Sampling | None = None,
    ) -> SpeculativeDecoder:
        """Loads a target and a draft model.

        Args:
            target, draft: hub id, path, or loaded model (then `tokenizer` is needed).
            profile: path of a profile or a `ThresholdProfile`; sets rule, divergence, threshold, draft
                length, sampling and seed, whatever else is given.
            rule, divergence, threshold, draft_length: DESIGN words; see `rules.py`, `divergence.py`.
            device: "cuda" where there is one, else "cpu". dtype: the checkpoint's own.
            sampling: what `generate` does when it is given no temperature; greedy.

        Raises:
            UsageError: a model cannot be loaded, the tokenizers differ, or the profile is of other models.
        """
        place = device or default_device()
        check_device(place)
        as_dtype(dtype)
        shared = shared_tokenizer(target, draft, tokenizer)  # before the weights: it may refuse the pair
        models = [load_model(m, place, dtype) if is_source(m) else m for m in (target, draft)]
        decoder = cls(
            models[0], models[1], shared, rule=rule, divergence=divergence, threshold=threshold,
            draft_length=draft_length, seed=seed, sampling=sampling,
        )  # fmt: skip
        if profile is not None:
            decoder._follow(profile if isinstance(profile, ThresholdProfile) else ThresholdProfile.load(profile))
        return decoder

    def _follow(self, profile: ThresholdProfile) -> None:
        profile.check(self.target, self.draft, self.tokenizer)
        if profile.threshold is None:
            warnings.warn(
                f"the profile certifies no threshold for {profile.task!r}; decoding runs the lossless "
                f"rule {profile.effective_rule!r}",
                stacklevel=3,
            )
        self.rule, self.divergence, self.seed = profile.effective_rule, profile.divergence, profile.seed
        self.threshold = -1.0 if profile.threshold is None else profile.threshold
        self.draft_length = profile.draft_length
        self.sampling = Sampling(**profile.sampling.model_dump())

    @property
    def device(self) -> torch.device:
        return torch.device(self.target.device)

    @property
    def dtype(self) -> torch.dtype:
        found: torch.dtype = self.target.dtype
        return found

    def generate(
        self,
        prompts: Sequence[Prompt],
        max_new_tokens: int = 256,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        rule: str | None = None,
        threshold: float | Sequence[float] | None = None,
        draft_length: int | None = None,
        batch_size: int = 32,
        ids: Sequence[int] | None = None,
        stop: Sequence[str] = (),
        on_finish: Callable[[int, Result], None] | None = None,
        observer: Observer | None = None,
    ) -> list[Result]:
        """Decodes prompts, in their order.

        Args:
            prompts: texts, or lists of token ids taken as they are.
            max_new_tokens: the most a text may have, EOS included; a text also ends with the models' context.
            temperature, top_k, top_p: 0 is greedy; without a temperature the profile's, and without all three
                its whole sampling (greedy where there is no profile).
            rule, threshold, draft_length: for this call instead of the decoder's; `threshold` may be one a
                prompt.
            ids: one stable integer a prompt, the key of its noise; default: its index.
            stop: strings that end a text; the text is cut before them.
            on_finish: called with a prompt's index and result as soon as it is done.
            observer: called once a round, see `engine.Observer`.

        Raises:
            UsageError: an empty prompt or batch, a prompt beyond the context, or a bad setting.
            NumericalError: a model gave NaN or +inf logits; `error.finished` has the results until then.
        """
        sampling = self._sampling(temperature, top_k, top_p)
        thresholds = self._thresholds(threshold, len(prompts))
        chosen = rule_named(rule or self.rule)
        if threshold is not None and rule is None and not chosen.fuzzy:
            raise UsageError(f"threshold is given, but the decoder's rule {chosen.name!r} has none; give rule= too")
        length = self.draft_length if draft_length is None else draft_length
        self._check_settings(chosen.name, self.divergence, length, thresholds)
        requests = self._requests(prompts, ids, thresholds, max_new_tokens)
        length = length if chosen.drafts else 0
        slots = max(len(r.prompt) + r.max_new_tokens for r in requests) + length + 1
        if batch_size < 1:
            raise UsageError(f"batch_size is {batch_size}; it must be at least 1")
        if isinstance(stop, str) or not all(stop):
            raise UsageError(f"stop is {stop!r}; it must be a list of strings, none of them empty")
        stops = StopStrings(self.tokenizer, stop).completed_at if stop else None
        settings = Settings(chosen, self.divergence, length, sampling, self._eos(), self.seed, stops, observer)
        engine = self._engine(settings, min(batch_size, len(requests)), slots)
        finished: dict[int, Result] = {}
        try:
            for row in engine.run(requests):
                index = row.request.index
                finished[index] = self._result(row, stop)
                if on_finish is not None:
                    on_finish(index, finished[index])
        except NumericalError as error:
            error.finished = finished
            raise
        return [finished[i] for i in range(len(requests))]

    def _sampling(self, temperature: float | None, top_k: int | None, top_p: float | None) -> Sampling:
        if temperature is None and top_k is None and top_p is None:
            return self.sampling
        return Sampling(self.sampling.temperature if temperature is None else temperature, top_k, top_p)

    def _engine(self, settings: Settings, rows: int, slots: int) -> Engine:
        vocabulary = min(m.get_output_embeddings().weight.shape[0] for m in (self.target, self.draft))
        target = ModelRunner(self.target, rows, slots, vocabulary)
        draft = ModelRunner(self.draft, rows, slots, vocabulary) if settings.rule.drafts else None
        return Engine(target, ModelDrafter(draft) if draft else None, rows, slots, settings)

    def _requests(
        self, prompts: Sequence[Prompt], ids: Sequence[int] | None, thresholds: list[float], max_new_tokens: int
    ) -> list[Request]:
        if isinstance(prompts, str) or not prompts:
            raise UsageError(f"prompts is {prompts!r:.40}; it must be a list of at least one prompt")
        keys = list(range(len(prompts))) if ids is None else list(ids)
        if len(keys) != len(prompts):
            raise UsageError(f"ids has {len(keys)} entries for {len(prompts)} prompts; give one each")
        if max_new_tokens < 1:
            raise UsageError(f"max_new_tokens is {max_new_tokens}; it must be at least 1")
        encoded = [self._encode(prompt, i) for i, prompt in enumerate(prompts)]
        rooms = [self._room(prompt, i, max_new_tokens) for i, prompt in enumerate(encoded)]
        return [Request(i, *row) for i, row in enumerate(zip(encoded, keys, thresholds, rooms, strict=True))]

    def _encode(self, prompt: Prompt, index: int) -> list[int]:
        if isinstance(prompt, str):
            # A chat template has put the BOS there already.
            begun = self.tokenizer.bos_token is not None and prompt.startswith(self.tokenizer.bos_token)
            prompt = list(self.tokenizer(prompt, add_special_tokens=not begun)["input_ids"])
        if not prompt:
            raise UsageError(f"prompt {index} is empty; it must hold at least one token")
        return prompt

    def _room(self, prompt: list[int], index: int, max_new_tokens: int) -> int:
        """How many new tokens a prompt may have: as asked, or to the end of the models' context."""
        limits = [length for m in (self.target, self.draft) if (length := context_length(m)) is not None]
        left = min(limits, default=len(prompt) + max_new_tokens) - len(prompt)
        if left < 1:
            raise UsageError(
                f"prompt {index} has {len(prompt)} tokens, the models' context is {min(limits)}; shorten the prompt"
            )
        return min(max_new_tokens, left)

    def _thresholds(self, threshold: float | Sequence[float] | None, prompts: int) -> list[float]:
        if threshold is None:
            threshold = self.threshold
        if not isinstance(threshold, Sequence):
            return [float(threshold)] * prompts
        if len(threshold) != prompts:
            raise UsageError(f"threshold has {len(threshold)} entries for {prompts} prompts; give one, or one each")
        return [float(t) for t in threshold]

    @staticmethod
    def _check_settings(rule: str, divergence: str, draft_length: int, thresholds: list[float]) -> None:
        rule_named(rule)
        check_name(divergence)
        if draft_length < 1:
            raise UsageError(f"draft_length is {draft_length}; it must be at least 1 (rule 'target' drafts nothing)")
        if any(math.isnan(t) for t in thresholds):
            raise UsageError("threshold is NaN; it must be a number (negative is lossless)")

    def _eos(self) -> frozenset[int]:
        configured = self.target.generation_config.eos_token_id
        ids = configured if isinstance(configured, list) else [configured, self.tokenizer.eos_token_id]
        return frozenset(i for i in ids if i is not None)

    def _result(self, row: Row, stop: Sequence[str]) -> Result:
        text = self.tokenizer.decode(row.tokens, skip_special_tokens=True)
        if row.finish_reason == "stop":
            text = text[: min((at for s in stop if (at := text.find(s)) >= 0), default=None)]
        assert row.finish_reason is not None
        return Result(text, row.tokens, row.rounds, row.drafted, row.accepted, (row.lo, row.hi), row.finish_reason)
