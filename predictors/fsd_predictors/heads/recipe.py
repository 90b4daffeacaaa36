"""How an EAGLE head is trained, and the prompts that it learns from."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from fsd_common.argument_checks import check_count, check_whole, named
from fsd_common.digests import facts_digest
from fsd_common.errors import UsageError


@dataclass(frozen=True)
class Source:
    """The prompts whose completions by the target a head learns from.

    Args:
        name: of the task.
        prompts: of problems for tuning alone, in random order.
        max_new_tokens: the longest completion.
        stop: strings that end one.
        keys: numbers that the problems are known by; what is certified with the head leaves them out.
    """

    name: str
    prompts: tuple[str, ...]
    max_new_tokens: int
    stop: tuple[str, ...] = ()
    keys: frozenset[int] = frozenset()

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of all of it."""
        return facts_digest(asdict(self) | {"keys": sorted(self.keys)})


_RATE, _AT_WIDTH = 4e-3, 128  # a larger head takes smaller steps: in inverse proportion to its width
_FEWEST_LAYERS = 3  # of a target, of which one is read at the beginning, in the middle and at the end


@dataclass(frozen=True)
class HeadRecipe:
    """The settings of one training.

    Args:
        epochs: passes over the texts.
        steps: tokens that the head drafts after one another in training (EAGLE-3, section 3.2: training-time test).
        layers: which of the target's hidden states it reads, as indices into transformers' `hidden_states`; None: what
            goes into layers 2, L/2 and L - 3, as in EAGLE-3, or 0, L/2 and L - 1 of a target of fewer than 6 layers.
        vocabulary: how many tokens it can draft, the most frequent ones; None: all.
        batch_size: texts of a step of the optimiser.
        learning_rate: at its highest; None: 4e-3 at a width of 128, and less in proportion for wider targets.
        seed: of the initial weights and the order of texts; any whole number.

    Raises:
        UsageError: a number is out of its range.
    """

    epochs: int = 4
    steps: int = 3
    layers: tuple[int, ...] | None = None
    vocabulary: int | None = None
    batch_size: int = 8
    learning_rate: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("epochs", "steps", "batch_size", "vocabulary"):
            if getattr(self, name) is not None:
                check_count(named(name), getattr(self, name))
        check_whole(named("seed"), self.seed)
        if self.learning_rate is not None and not 0 < self.learning_rate < 1:
            raise UsageError(f"{named('learning_rate')} is {self.learning_rate!r}; it must be a number between 0 and 1")

    def rate(self, width: int) -> float:
        """Returns the highest learning rate for hidden states of `width` components."""
        return self.learning_rate or _RATE * _AT_WIDTH / width

    def layers_of(self, target: Any) -> tuple[int, ...]:
        """Returns the hidden states that are read. UsageError: the target does not have them."""
        count = target.config.get_text_config().num_hidden_layers
        if self.layers is None:
            if count < _FEWEST_LAYERS:
                raise UsageError(f"the target has {count} layers, and a head reads three; give {named('layers')}")
            return (2, count // 2, count - 3) if count >= 6 else (0, count // 2, count - 1)
        if not self.layers or not all(0 <= layer < count for layer in self.layers):
            given = ",".join(map(str, self.layers))
            raise UsageError(f"{named('layers')} is {given!r}; the target's are numbered from 0 to {count - 1}")
        return self.layers

    def check_vocabulary(self, target: Any) -> None:
        """Raises UsageError where the head would draft more tokens than there are."""
        from fsd_decoding.models.runner import vocabulary_size  # which imports torch

        if self.vocabulary is not None and self.vocabulary > (most := vocabulary_size(target)):
            raise UsageError(f"{named('vocabulary')} is {self.vocabulary}; the target has {most} tokens")
