"""How commands make prompts of what a user gives: as a profile's calibration did, as a task does, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from fsd_calib.cli.options import MOST_NEW_TOKENS
from fsd_calib.tasks.asking import Asking
from fsd_calib.tasks.base import Kind
from fsd_common.errors import UsageError
from fsd_decoding.profile.parts import QUESTION, PromptForm

if TYPE_CHECKING:
    from fsd_decoding.profile.rendering import PromptRenderer
    from fsd_decoding.profile.threshold_profile import ThresholdProfile

_Made = TypeVar("_Made")


def prompts_of_profile(profile: ThresholdProfile, tokenizer: Any, raw: bool) -> PromptRenderer:
    """Returns what makes prompts as a profile's calibration did, or passes them as given; decoders say what differs.

    Raises:
        UsageError: prompts cannot be made as they were.
    """
    return prompts_as_given() if raw else _asked(lambda: profile.prompts(tokenizer))


def prompts_of_task(kind: Kind, tokenizer: Any) -> PromptRenderer:
    """Returns what makes prompts as a task does. UsageError: it makes them of whole documents."""
    asking = Asking(tokenizer)
    return _asked(lambda: asking.renderer(kind.prompts(asking), f"the prompts of task {kind.name}"))


def prompts_as_given() -> PromptRenderer:
    """Returns what passes prompts as they are given."""
    asking = Asking()
    return asking.renderer(asking.info(PromptForm(text=QUESTION), (), MOST_NEW_TOKENS), "prompts")


def prompt_of(renderer: PromptRenderer, text: str) -> str:
    """Returns the prompt as the models read it. UsageError: it needs more than a question."""
    return _asked(lambda: renderer.prompt(text))


def _asked(make: Callable[[], _Made]) -> _Made:
    try:
        return make()
    except UsageError as error:
        raise UsageError(f"{error}; --raw passes prompts as given") from error
