"""A model runner that a calibration measures: one setting after another, without reloading, and what texts took."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from vllm.tokenizers import cached_tokenizer_from_config

from fsd_calib.vllm_plugin.judge import Judged, Looking, Pending, sampled_as
from fsd_calib.vllm_plugin.own_rules import measured_fly, own_rule
from fsd_calib.vllm_plugin.rejection_sampler import Serving
from fsd_calib.vllm_plugin.settings import MeasuredSetting
from fsd_calib.vllm_plugin.telemetry.steps import StepLog
from fsd_calib.vllm_plugin.telemetry.texts import Round, ServedText, Texts
from fsd_collectors.collection.measures import Measures
from fsd_decoding.scores import Fly, score_named


class CalibratingServing(Serving):
    """Follows settings that arrive between steps, while no request runs.

    A setting may draft fewer tokens than the engine was loaded for, or none: the target decodes alone then, and the
    draft model is not even run. Caches of prefixes must be off, as they would miss what it skipped.

    Args:
        runner: as of `Serving`.
        first: the setting until another one arrives.
    """

    _tells_scaled = True  # as intervals of T are of what is compared with T

    def __init__(self, runner: Any, first: MeasuredSetting) -> None:
        self._taken, self._by_fly = TextLog(runner.vllm_config), own_rule(runner.vllm_config) == "fly"
        super().__init__(runner, first, self._taken)
        self.follow(first)
        self._fits = runner._input_fits_in_drafter
        runner._input_fits_in_drafter = self._input_fits_in_drafter

    def follow(self, setting: MeasuredSetting) -> None:
        """Measures another setting from now on. vLLM's own FLy (0.33), where it decides, reads its T at every step."""
        self._setting = setting
        self._follow(setting)
        self._taken.measure(setting)
        if self._by_fly:
            score = score_named(setting.score)
            assert isinstance(score, Fly)  # the engine was loaded for these alone
            for name, value in measured_fly(score, setting.threshold).items():
                setattr(self._sampler, name, value)

    def take(self, ids: Sequence[str]) -> list[dict[str, Any]]:
        """Returns what the texts of finished requests took, by the names that the front end gave these."""
        return self._taken.take(ids)

    def plan_drafts(self, scheduler_output: Any) -> None:
        """Sets how many tokens the next step drafts."""
        scheduler_output.num_spec_tokens_to_schedule = self._setting.draft_length

    def scheduled(self, drafts: Any) -> Any:
        """Returns which of the tokens that a step drafted are to be verified."""
        if drafts is None or self._setting.draft_length:
            return drafts
        return type(drafts)(drafts.req_ids, [[] for _ in drafts.req_ids])

    def _judged(self) -> Judged | Pending | Looking | None:
        if self._by_fly and self._telemetry.measures is None:
            return None
        return super()._judged()

    def _input_fits_in_drafter(self, *arguments: Any) -> bool:
        return self._setting.draft_length > 0 and bool(self._fits(*arguments))

    def _sample(self, original: Callable[[Any, Any], Any], logits: Any, metadata: Any) -> Any:
        """vLLM's `_sample`; for traces along the target only the first token of a step stays, so that every token of
        the text is drafted for."""

        def sample(logits: Any, metadata: Any) -> Any:
            output = original(logits, metadata)
            if self._setting.each_token:
                output.sampled_token_ids[:, 1:] = -1
            return output

        return super()._sample(sample, logits, metadata)


class TextLog:
    """Keeps the texts of finished requests until a calibration takes them. Implements `StepTelemetry`."""

    def __init__(self, config: Any) -> None:
        parallel = config.parallel_config
        self.listens = parallel.rank % parallel.tensor_parallel_size == 0
        self.measures: Measures | None = None
        self._finished: list[ServedText] = []
        self._texts = Texts([self], cached_tokenizer_from_config(config.model_config))
        self.log = StepLog([self._texts] if self.listens else [])

    def measure(self, setting: MeasuredSetting) -> None:
        """Computes columns of the traces that a setting asks for from now on."""
        self.measures = Measures(setting.traced, "raw", sampled_as(setting.sampling)) if setting.traced else None

    def finished(self, text: ServedText) -> None:
        self._finished.append(text)

    def take(self, ids: Iterable[str]) -> list[dict[str, Any]]:
        """See `CalibratingServing.take`. Where steps are not listened to, there are none."""
        self.log.flush()
        internal = {name.rpartition("-")[0]: name for name in self._texts.running}  # vLLM adds random characters
        taken = []
        for name in ids:
            if name in internal:
                self._texts.finish([internal[name]])
                taken.append({"id": name, **_facts_of(self._finished.pop(), self.measures)})
        self._finished.clear()  # what was aborted, which nobody asks for
        return taken

    def close(self) -> None:
        self.log.flush()


def _facts_of(text: ServedText, measures: Measures | None) -> dict[str, Any]:
    """What a text took, of plain values, as they travel between processes.

    The step that reads the prompt emits a token, too, but is no round, unless the text has no other.
    """
    lo, hi = interval_of(text)
    facts = {
        "tokens": list(map(int, text.tokens)), "reason": text.reason,
        "rounds": max(1, sum(each.begin > 0 for each in text.steps)),
        "drafted": sum(each.drafted for each in text.steps),
        "accepted": sum(max(0, min(each.accepted, len(text.tokens) - each.begin)) for each in text.steps),
        "bonus": sum(_has_bonus(text, each) for each in text.steps), "lo": lo, "hi": hi, "whole": text.whole,
    }  # fmt: skip
    if measures is None:
        return facts
    begins = [each.begin for each in text.rounds]
    columns = [each.facts[3:].T.tolist() for each in text.rounds]  # of each drafted token
    return facts | {"prompt": list(map(int, text.request.prompt)), "begins": begins, "columns": columns}


def _has_bonus(text: ServedText, round: Round) -> bool:
    """Whether the target added a token to a draft that was accepted whole."""
    return 0 < round.accepted == round.drafted and round.begin + round.accepted < len(text.tokens)


def interval_of(text: ServedText) -> tuple[float, float]:
    """Returns lo and hi: greedy decoding at any T in [lo, hi) gives the same text in the same rounds.

    Of the tokens that are not the target's argmax and whose acceptance decided the text, lo is the largest D, divided
    by the policy's scale, that was accepted, and hi the smallest that was rejected.
    """
    lo, hi = -math.inf, math.inf
    for each in text.rounds:
        n = min(each.accepted + 1, each.facts.shape[1], len(text.tokens) - each.begin)
        scores, _, most_likely = each.facts[:3, :n]
        by_score = most_likely == 0
        kept = np.arange(n) < each.accepted
        lo = max(lo, scores[by_score & kept].max(initial=-math.inf))
        hi = min(hi, scores[by_score & ~kept].min(initial=math.inf))
    return float(lo), float(hi)
