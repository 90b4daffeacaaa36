"""What a profile certified, and in what decoding differs from it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from fsd_common.errors import UsageError
from fsd_decoding.acceptance.proposal import Criterion
from fsd_decoding.acceptance.rules import Rule
from fsd_decoding.policies.stopping import StopPolicy
from fsd_decoding.policies.threshold import ThresholdPolicy
from fsd_decoding.profile.draft_shapes import DraftsByRule
from fsd_decoding.profile.policy import brief
from fsd_decoding.profile.prompt import PromptInfo
from fsd_decoding.profile.rendering import PromptRenderer
from fsd_decoding.sampling import SETTINGS, Sampling
from fsd_decoding.settings import Settings
from fsd_decoding.trees.shape import CHAIN, TreeShape

_LONGEST = 60  # characters of a value that are shown


@dataclass(frozen=True)
class DecodingSetting:
    """How a text is decoded: all that a certificate is for, besides the models. A seed is not part of it."""

    rule: Rule
    criterion: Criterion
    sampling: Sampling
    threshold: float
    draft_length: int
    stop_policy: StopPolicy | None = None
    threshold_policy: ThresholdPolicy | None = None
    tree: TreeShape | None = None

    @classmethod
    def of(cls, settings: Settings, threshold: float, draft_length: int) -> DecodingSetting:
        """Describes decoding by these settings with this T and L."""
        return cls(settings.rule, settings.criterion, settings.sampling, threshold, draft_length,
                   settings.stop_policy, settings.threshold_policy, settings.tree)  # fmt: skip

    @property
    def lossless(self) -> bool:
        """Whether decoding keeps the target's distribution, so that it costs nothing and needs no certificate."""
        return not self.rule.fuzzy or (self.threshold_policy is None and self.rule.lossless_at(self.threshold))

    def values(self) -> dict[str, Any]:
        """The setting by the names of arguments. Without a threshold, what would move or bound it does not count."""
        moving = self.threshold_policy if self.rule.fuzzy else None
        return {
            "rule": self.rule.name,
            "divergence": self.criterion.divergence if self.rule.bounds_divergence else None,
            "on": self.criterion.on if self.rule.bounds_divergence else None,
            "within_support": self.criterion.within_support and self.rule.fuzzy,
            "threshold": self.threshold if self.rule.fuzzy else None,
            "threshold_policy": _key(moving),
            "draft_length": self.draft_length if self.rule.drafts else None,
            "stop_policy": _key(self.stop_policy) if self.rule.drafts else None,
            "tree": (self.tree or CHAIN) if self.rule.drafts else None,
            **{name: getattr(self.sampling, name) for name in (*SETTINGS, "processors")},
        }


@dataclass(frozen=True)
class Coverage:
    """The setting that decoders of a profile run, and whether a certificate is for it.

    Args:
        setting: what the profile sets.
        task: the profile's task.
        certified: whether its certificate is for this setting.
        drafts: what the profile sets of drafts, by rule.
        prompt: how its prompts were made; None: it does not say.
    """

    setting: DecodingSetting
    task: str
    certified: bool
    drafts: DraftsByRule
    prompt: PromptInfo | None = None

    def covers(self, setting: DecodingSetting) -> bool:
        """Whether a setting is the profile's own."""
        return setting.values() == self.setting.values()

    def keeps_threshold(self, setting: DecodingSetting) -> bool:
        """Whether a setting has the profile's rule and threshold, whatever else differs."""
        now, own = setting.values(), self.setting.values()
        return all(now[name] == own[name] for name in ("rule", "threshold", "threshold_policy"))

    def departure(self, settings: Iterable[DecodingSetting]) -> str | None:
        """Returns a warning that names what differs from the profile; None where nothing does, or all are lossless."""
        lossy = [setting.values() for setting in settings if not setting.lossless]
        own = self.setting.values()
        changed = [f"{name} is {_shown(name, now)} instead of {_shown(name, then)}" for name, then in own.items()
                   if (now := next((each[name] for each in lossy if each[name] != then), then)) != then]  # fmt: skip
        return self._outside(changed)

    def asked_otherwise(
        self, tokenizer: Any, prompts: Sequence[str | list[int]], max_new_tokens: int, stop: Sequence[str]
    ) -> str | None:
        """Returns a warning where prompts, or what ends a text, are not the profile's; None where nothing is known.

        Prompts that are token ids are not compared.
        """
        if self.prompt is None:
            return None
        most, ends = self.prompt.max_new_tokens, self.prompt.stop
        changed = [] if max_new_tokens == most else [f"max_new_tokens is {max_new_tokens} instead of {most}"]
        if set(stop) != set(ends):  # in any order
            changed.append(f"stop is {_shown('stop', tuple(stop))} instead of {_shown('stop', ends)}")
        texts = [prompt for prompt in prompts if isinstance(prompt, str)]
        with suppress(UsageError):  # only a question is told from what surrounds it
            asked = PromptRenderer(self.prompt, tokenizer, "prompts")
            if any(asked.asks(text) is False for text in texts):
                changed.insert(0, "prompts are not made as in the calibration")
        return self._outside(changed)

    def _outside(self, changed: Sequence[str]) -> str | None:
        if not changed:
            return None
        whose = f"the profile of {self.task!r}"
        none = f"{whose} certifies no threshold, so nothing is known of what this costs in accuracy"
        return f"{', '.join(changed)}: " + (f"the certificate of {whose} does not apply" if self.certified else none)


def _key(policy: StopPolicy | ThresholdPolicy | None) -> Any:
    """Returns a value that is equal for policies that do the same."""
    return policy if policy is None or policy.identity is None else policy.identity


def _shown(name: str, value: Any) -> str:
    if isinstance(value, StopPolicy | ThresholdPolicy):
        return type(value).__name__
    shown = repr(value)
    with suppress(TypeError, ValueError, KeyError):  # a policy of users may have an identity of any form
        shown = brief(value) if name == "threshold_policy" else shown
    return f"{shown:.{_LONGEST}}"
