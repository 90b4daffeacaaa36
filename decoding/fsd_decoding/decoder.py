"""SpeculativeDecoder: prompts in, texts out, with two models and an acceptance rule between them.

Knows tokenizers, prompts, stop strings and profiles. The loop itself is `engine.py`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import torch

from fsd_decoding.acceptance.proposal import Criterion, Logits
from fsd_decoding.acceptance.rules import Rule, rule_named
from fsd_decoding.batch import Request
from fsd_decoding.drafters.base import DraftSource
from fsd_decoding.engine.engine import Engine, Settings
from fsd_decoding.engine.kv_pool import KVCachePool, Models
from fsd_decoding.engine.result import Result, keeping
from fsd_decoding.errors import UsageError
from fsd_decoding.kernels.dispatch import prepare
from fsd_decoding.loading import (
    as_dtype,
    check_device,
    check_pair,
    default_device,
    is_source,
    load_model,
    shared_tokenizer,
)
from fsd_decoding.models.runner import context_length, vocabulary_size
from fsd_decoding.observers.round_record import Observer
from fsd_decoding.policies.stopping import Answer, DraftState, StopPolicy, as_policy
from fsd_decoding.policies.threshold import ThresholdPolicy
from fsd_decoding.profile.drift import Drift, watch
from fsd_decoding.profile.settings import followed
from fsd_decoding.requests import Prompt, check_count, check_settings, check_whole, requests_for
from fsd_decoding.sampling import Sampling
from fsd_decoding.text import StopStrings, TextStream

Policy = StopPolicy | Callable[[DraftState], Answer]
Threshold = float | ThresholdPolicy


class SpeculativeDecoder:
    """A causal LM and a drafter that share a tokenizer, decoding in batches. See `from_pretrained`."""

    def __init__(
        self,
        target: Any,
        draft: Any,
        tokenizer: Any,
        *,
        rule: str = "fsd-coupled",
        divergence: str = "js",
        threshold: Threshold = 0.1,
        draft_length: int = 5,
        seed: int = 0,
        sampling: Sampling | None = None,
        on: Logits = "raw",
        within_support: bool = False,
        compile: bool | Literal["capture"] = False,
        policy: Policy | None = None,
        drift: Drift | None = None,
    ) -> None:
        self._pool = KVCachePool(compile)
        check_pair(target, draft)
        self.target, self.draft, self.tokenizer = target, draft, tokenizer
        self.rule, self.seed, self.drift = rule_named(rule).name, seed, drift
        self.adaptive = _movable(threshold, rule_named(rule))
        self.threshold = threshold.threshold if isinstance(threshold, ThresholdPolicy) else threshold
        self.draft_length = draft_length
        self.sampling = sampling or Sampling()
        self.criterion = Criterion(divergence, on, within_support)
        self.policy = None if policy is None else as_policy(policy)
        check_settings([draft_length], [self.threshold])
        check_whole("seed", seed)

    @classmethod
    def from_pretrained(
        cls,
        target: Any,
        draft: Any,
        profile: Any = None,
        *,
        rule: str = "fsd-coupled",
        divergence: str = "js",
        threshold: Threshold = 0.1,
        draft_length: int = 5,
        device: str | None = None,
        dtype: str | torch.dtype | None = None,
        seed: int = 0,
        tokenizer: Any = None,
        sampling: Sampling | None = None,
        on: Logits = "raw",
        within_support: bool = False,
        policy: Policy | None = None,
        compile: bool | Literal["capture"] = False,
    ) -> SpeculativeDecoder:
        """Loads a target and a draft model.

        Args:
            target: hub id, path, or loaded model (then `tokenizer` is needed), on whatever device or devices.
            draft: the same, or `NGram()`, which drafts from the text itself.
            profile: path of a profile or a `ThresholdProfile`; sets rule, divergence, threshold, draft
                length, sampling and seed, whatever else is given.
            rule, divergence, threshold, draft_length: DESIGN words; see `rules.py`, `divergence.py`. `threshold` may
                be a `threshold_policy.ThresholdPolicy`, which moves it.
            device: "cuda" where there is one, else "cpu". dtype: the checkpoint's own. Loaded models stay as
                they are.
            sampling: what `generate` does when it is given no temperature; greedy.
            on, within_support: see `proposal.Criterion`.
            policy: says how far rows draft, up to `draft_length`; see `stop_policy.StopPolicy`.
            compile: run rounds as graphs, made anew for every batch size, draft length, rule, sampling and
                doubling of the longest text. "capture" leaves Python out of a round, after seconds; True compiles
                kernels too, after half a minute or more. Worth it where thousands of rounds follow. On CUDA they are
                CUDA graphs, captured where something comes twice, and memory stays taken between calls; see
                docs/decoding.md.

        Raises:
            UsageError: a model cannot be loaded, the tokenizers differ, or the profile is of other models.
        """
        place = device or default_device()
        check_device(place)
        as_dtype(dtype)
        shared = shared_tokenizer(target, draft, tokenizer)  # before the weights: it may refuse the pair
        models = [load_model(m, place, dtype) if is_source(m) else m for m in (target, draft)]
        settings: dict[str, Any] = {
            "rule": rule, "divergence": divergence, "threshold": threshold, "draft_length": draft_length, "seed": seed,
            "sampling": sampling, "on": on, "within_support": within_support, "policy": policy,
        }  # fmt: skip
        if profile is not None:
            settings = followed(profile, models, shared, stacklevel=3)
        return cls(models[0], models[1], shared, compile=compile, **settings)

    @property
    def divergence(self) -> str:
        return self.criterion.divergence

    @property
    def device(self) -> torch.device:
        return torch.device(self.target.device)

    @property
    def dtype(self) -> torch.dtype:
        found: torch.dtype = self.target.dtype
        return found

    @property
    def eos(self) -> frozenset[int]:
        """The tokens that end a text."""
        configured = self.target.generation_config.eos_token_id
        ids = configured if isinstance(configured, list) else [configured, self.tokenizer.eos_token_id]
        return frozenset(i for i in ids if i is not None)

    def generate(
        self,
        prompts: Sequence[Prompt],
        max_new_tokens: int = 256,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        repetition_penalty: float | None = None,
        rule: str | None = None,
        threshold: Threshold | Sequence[float] | None = None,
        draft_length: int | Sequence[int] | None = None,
        batch_size: int = 32,
        ids: Sequence[int] | None = None,
        stop: Sequence[str] = (),
        on_finish: Callable[[int, Result], None] | None = None,
        policy: Policy | None = None,
        observer: Observer | None = None,
    ) -> list[Result]:
        """Decodes prompts, in their order.

        Args:
            prompts: texts, or lists of token ids taken as they are.
            max_new_tokens: the most a text may have, EOS included; a text also ends with the models' context.
            temperature, top_k, top_p, min_p, repetition_penalty: see `sampling.Sampling`; temperature 0 is
                greedy. Without a temperature the profile's, and without all five its whole sampling (greedy
                where there is no profile).
            rule, threshold, draft_length: for this call instead of the decoder's; `threshold` and
                `draft_length` may be one a prompt; `threshold` may be a policy instead, which moves it.
            ids: one stable integer a prompt, the key of its noise; default: its index.
            stop: strings that end a text; the text is cut before them.
            on_finish: called with a prompt's index and result as soon as it is done.
            policy: says how far rows draft, see `stop_policy.StopPolicy`; for this call instead of the decoder's. One
                that is for other rules is left out.
            observer: called once a round, see `observing.Observer`.

        Raises:
            UsageError: an empty prompt or batch, a prompt beyond the context, or a bad setting.
            NumericalError: a model gave NaN or +inf logits. OutOfMemoryError: the batch is too large.
                `error.finished` of both has the results until then.
        """
        requests = self.requests(prompts, max_new_tokens, ids, rule, threshold, draft_length)
        check_count("batch_size", batch_size)
        sampling = self._sampling(temperature, top_k, top_p, min_p, repetition_penalty)
        settings = self._settings(rule, sampling, stop, policy, observer, threshold)
        finished: dict[int, Result] = {}
        with keeping(finished, min(batch_size, len(requests))):
            for row in self.engine(settings, requests, batch_size).run(requests):
                index = row.request.index
                finished[index] = Result.of(row, self.tokenizer, stop)
                if on_finish is not None:
                    on_finish(index, finished[index])
        results = [finished[i] for i in range(len(requests))]
        _doubt(settings.adaptive, stacklevel=3)
        watch(self.drift, settings, requests, results, stacklevel=3)
        return results

    def stream(
        self,
        prompt: Prompt,
        max_new_tokens: int = 256,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        repetition_penalty: float | None = None,
        rule: str | None = None,
        threshold: Threshold | None = None,
        draft_length: int | None = None,
        id: int = 0,
        stop: Sequence[str] = (),
    ) -> Iterator[str]:
        """Decodes one prompt and yields its text round by round; the pieces joined are `generate`'s text.

        Arguments and errors are those of `generate`.
        """
        requests = self.requests([prompt], max_new_tokens, [id], rule, threshold, draft_length)
        sampling = self._sampling(temperature, top_k, top_p, min_p, repetition_penalty)
        settings = self._settings(rule, sampling, stop, threshold=threshold)
        with keeping({}, 1):
            return self._pieces(self.engine(settings, requests, 1), settings, requests, stop)

    def _pieces(self, engine: Engine, settings: Settings, asked: list[Request], stop: Sequence[str]) -> Iterator[str]:
        text = TextStream(self.tokenizer, stop)
        with keeping({}, 1):
            for (row,) in engine.rounds(asked):
                done = row.finish_reason is not None
                piece = text.rest(Result.of(row, self.tokenizer, stop).text) if done else text.push(row.tokens)
                if piece:
                    yield piece
        _doubt(settings.adaptive, stacklevel=3)
        watch(self.drift, settings, asked, [row], stacklevel=3)

    def requests(
        self,
        prompts: Sequence[Prompt],
        max_new_tokens: int,
        ids: Sequence[int] | None,
        rule: str | None,
        threshold: Threshold | Sequence[float] | None,
        draft_length: int | Sequence[int] | None,
    ) -> list[Request]:
        """What `generate` makes of its prompts; None: the decoder's own setting."""
        threshold = threshold.threshold if isinstance(threshold, ThresholdPolicy) else threshold
        if threshold is not None and rule is None and not rule_named(self.rule).fuzzy:
            raise UsageError(f"threshold is given, but the decoder's rule {self.rule!r} has none; give rule= too")
        asked = rule_named(rule or self.rule)
        if threshold is None and asked.name != self.rule and asked.fuzzy and not asked.bounds_divergence:
            raise UsageError(f"rule {asked.name!r} measures T on a scale of its own; give threshold= too")
        lengths = [length for m in self._models() if (length := context_length(m)) is not None]
        return requests_for(
            self.tokenizer, min(lengths, default=None), self._vocabulary, prompts, ids,
            self.threshold if threshold is None else threshold,
            self.draft_length if draft_length is None else draft_length, max_new_tokens,
        )  # fmt: skip

    def _sampling(self, *given: float | None) -> Sampling:
        names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
        changed = {name: value for name, value in zip(names, given, strict=True) if value is not None}
        kept: dict[str, Any] = {"temperature": self.sampling.temperature, "processors": self.sampling.processors}
        return Sampling(**kept | changed) if changed else self.sampling

    def _settings(
        self,
        rule: str | None,
        sampling: Sampling,
        stop: Sequence[str],
        policy: Policy | None = None,
        observer: Observer | None = None,
        threshold: Threshold | Sequence[float] | None = None,
    ) -> Settings:
        if isinstance(stop, str) or not isinstance(stop, Sequence) or not all(s and isinstance(s, str) for s in stop):
            raise UsageError(f"stop is {stop!r}; it must be a list of strings, none of them empty")
        strings = StopStrings(self.tokenizer, stop) if stop else None
        stops = (lambda request, tokens, new: strings.completed_at(tokens, new)) if strings else None
        chosen = rule_named(rule or self.rule)
        asked = self.policy if policy is None else as_policy(policy)
        if asked is not None and asked.rules is not None and chosen.name not in asked.rules:
            asked = None
        adaptive = self.adaptive_for(chosen, threshold)
        if adaptive is not None and asked is not None and asked.reads_threshold:
            raise UsageError(
                f"{type(asked).__name__} ends drafts by a T that stays, and {type(adaptive).__name__} moves it; give T "
                "as a number, or a profile without a predictor"
            )
        return Settings(chosen, self.criterion, sampling, self.eos, self.seed, stops, asked, adaptive, observer)

    def adaptive_for(self, rule: Rule, threshold: Threshold | Sequence[float] | None = None) -> ThresholdPolicy | None:
        """Who moves T in a call: the policy it is given, or the decoder's own where it is given none and no T.

        UsageError: the rule follows none, or the policy refuses the models.
        """
        given = _movable(threshold, rule)
        chosen = given if threshold is not None else self.adaptive if rule.bounds_divergence else None
        if chosen is not None:
            chosen.check(self._models(), self.tokenizer, rule.name, self.divergence)
        return chosen

    def engine(self, settings: Settings, requests: list[Request], batch_size: int) -> Engine:
        """The loop for these requests, with caches for `batch_size` of them at a time. It runs once."""
        prepare(self.device)
        longest = max(len(r.prompt) + r.max_new_tokens for r in requests)
        longest += max(r.draft_length for r in requests) + 1  # all rows draft the most
        models = Models(self.target, self.draft, self._vocabulary)
        graphs = not settings.sampling.processors  # what those do fits none
        caches = self._pool.caches(models, len(requests), batch_size, longest, settings.rule.drafts, graphs)
        return Engine(caches, settings)

    @property
    def _vocabulary(self) -> int:
        """What the models share: the tail of the wider one is padding."""
        return min(vocabulary_size(m) for m in self._models())

    def _models(self) -> list[Any]:
        return [self.target] if isinstance(self.draft, DraftSource) else [self.target, self.draft]


def _movable(threshold: object, rule: Rule) -> ThresholdPolicy | None:
    """The policy, where it is one. UsageError: the rule has nothing for it to move."""
    if not isinstance(threshold, ThresholdPolicy):
        return None
    if not rule.bounds_divergence:
        raise UsageError(
            f"rule {rule.name!r} has no threshold on a divergence that {type(threshold).__name__} could move; give it "
            "a number, or another rule"
        )
    return threshold


def _doubt(policy: ThresholdPolicy | None, stacklevel: int) -> None:
    """Warns, at `stacklevel`, of what a policy says could not be held."""
    for doubt in policy.doubts() if policy is not None else ():
        warnings.warn(doubt, stacklevel=stacklevel)
