"""What decides a text, beside prompt and noise. Knows names and numbers, and decodes nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Configuration:
    """`threshold` None: the rule has none."""

    rule: str
    divergence: str
    draft_length: int
    threshold: float | None = None

    def at(self, threshold: float) -> Configuration:
        return replace(self, threshold=threshold)

    def under(self, rule: str) -> Configuration:
        """The same with a rule that has no threshold."""
        return replace(self, rule=rule, threshold=None)

    @property
    def arm(self) -> Configuration:
        """The same without its threshold: what thresholds are searched for."""
        return replace(self, threshold=None)

    def __str__(self) -> str:
        if self.rule == "target":
            return self.rule
        bound = "" if self.threshold is None else f" {self.divergence} <= {self.threshold:.4g}"
        return f"{self.rule}{bound} at L = {self.draft_length}"
