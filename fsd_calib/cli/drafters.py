"""What drafts: `--draft`, `--head`, `--drafter` and `--speculative-config`, as the drafts that Python takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fsd_calib.cli.options import check_found
from fsd_calib.options.common import AUTO, LARGE_PAIR, RECURRENT
from fsd_calib.options.job import DRAFTERS, own_drafters
from fsd_common.errors import UsageError
from fsd_decoding.drafters.vllm_draft import VllmDraft
from fsd_decoding.tree_shape import CHAIN

BUNDLED = "arithmetic"
"""The task that a pair of models is bundled for."""
AUTO_TREES = (CHAIN, "2,6", "3,16")
"""The shapes that `--drafter auto` chooses among where no others are given."""


@dataclass(frozen=True)
class Drafters:
    """What a calibration is asked for.

    Args:
        models: of --draft.
        heads: of --head.
        named: of --drafter; empty: what --draft and --head say.
        revision: of --draft-revision, which is a head's where no model drafts.
        of_vllm: --speculative-config; None: the others say what drafts.

    Raises:
        UsageError: a name is unknown, or options contradict each other.
    """

    models: Sequence[str]
    heads: Sequence[str]
    named: Sequence[str]
    revision: str | None = None
    of_vllm: VllmDraft | None = None

    def __post_init__(self) -> None:
        others = {"--draft": self.models, "--head": self.heads, "--drafter": self.named}
        if self.of_vllm is not None and (option := next((name for name, given in others.items() if given), None)):
            raise UsageError(
                f"--speculative-config and {option} are both given, and vLLM has one drafter; leave one out"
            )
        check_found("drafter", "--drafter", self.named, DRAFTERS)
        if AUTO in self.named and len(self.named) > 1:
            raise UsageError(f"--drafter is {','.join(self.named)!r}; auto is all of them, give it alone")
        for option, given, kind in (("--draft", self.models, "model"), ("--head", self.heads, "eagle")):
            if given and not self.takes(kind):
                raise UsageError(
                    f"{option} and --drafter {','.join(self.named)} are both given, which leaves {kind} out; leave "
                    f"--drafter out, or add {kind} to it"
                )

    @property
    def auto(self) -> bool:
        return AUTO in self.named

    def takes(self, kind: str) -> bool:
        """Whether drafts of this kind are among what --drafter names, if it is given."""
        return self.auto or not self.named or kind in self.named

    def check_models(self, given: str) -> None:
        """Raises UsageError where not models alone draft, and something is given, in words, that they alone draft."""
        others = [name for name in self.named if name != "model"]
        option, values = ("--drafter", others) if others else ("--head", self.heads)
        if values:
            raise UsageError(
                f"{given}, and {option} is {', '.join(values)}; beams are drafted by models, leave one of the two out"
            )

    def check_pair(self, task: str, target: str | None) -> None:
        """Raises UsageError where of a target and a draft model one is missing; see `with_target`."""
        if self.of_vllm is None and "model" in self._kinds(bool(self.heads)):
            given_or_default(task, target, self.models[0] if self.models else None)

    def with_target(self, task: str, target: str | None) -> tuple[str, list[Any]]:
        """Returns the target and the drafts, without repeats: those given, or the task's defaults.

        Raises:
            UsageError: a head is asked for, and none is given, or of a target and a draft model one is missing.
        """
        from fsd_decoding.drafters.eagle import Eagle
        from fsd_decoding.drafters.named import drafter_named
        from fsd_decoding.drafters.ngram import NGram

        if self.of_vllm is not None:
            return target or default_pair(task)[0], [self.of_vllm]
        heads = self.heads or _bundled_heads(task, target)
        kinds = self._kinds(bool(heads))
        large, small = target or default_pair(task)[0], ""
        if "model" in kinds:
            large, small = given_or_default(task, target, self.models[0] if self.models else None)
        if "eagle" in kinds and not heads:
            raise UsageError(f"--drafter eagle needs a head of {large}; give --head, or train one with fsd-train-eagle")
        drafts: list[Any] = [*map(_model_named, self.models or [small])] if "model" in kinds else []
        revision = None if drafts else self.revision
        drafts += [Eagle(head, revision) for head in heads] if "eagle" in kinds else []
        drafts += [NGram()] if "ngram" in kinds else []
        drafts += map(drafter_named, own_drafters(kinds))
        return large, list(dict.fromkeys(drafts))

    def _kinds(self, heads: bool) -> Sequence[str]:
        if self.auto:
            return "model", *["eagle"] * heads, "ngram"
        return self.named or [*["model"] * bool(self.models or not self.heads), *["eagle"] * bool(self.heads)]


def given_or_default(task: str, target: str | None, draft: str | None) -> tuple[str, str]:
    """Target and draft: those given, or the task's default pair. UsageError: one of the two is missing."""
    pair = default_pair(task)
    if target is None and draft == RECURRENT and task == BUNDLED:
        target = pair[0]
    if target is not None and draft is not None:
        return target, _model_named(draft)
    if target is None and draft is None:
        return pair
    named, given, missing = ("--target", target, "--draft") if draft is None else ("--draft", draft, "--target")
    raise UsageError(
        f"{named} is {given!r}, and {missing} is missing; give both, or neither for the default pair of task {task}, "
        f"{pair[0]} with {pair[1]}"
    )


def default_pair(task: str) -> tuple[str, str]:
    """Target and draft where neither is given."""
    if task != BUNDLED:
        return LARGE_PAIR
    from fsd_data import pair_paths

    target, draft = pair_paths()
    return str(target), str(draft)


def check_one(draft: str | None, head: str | None, drafter: str | None = None) -> None:
    """Raises UsageError where a command that takes one draft is given several."""
    options = {"--head": head, "--draft": draft, "--drafter": drafter}
    several = [option for option, value in options.items() if value is not None]
    if len(several) > 1:
        raise UsageError(f"{several[0]} and {several[1]} are both given; one of them drafts, leave the other out")


def given(draft: str | None, head: str | None, revision: str | None, drafter: str | None = None) -> Any:
    """Returns the draft that a command is given; None: none is. revision: of --draft-revision."""
    from fsd_decoding.drafters.eagle import Eagle
    from fsd_decoding.drafters.named import drafter_named

    if drafter is not None:
        return drafter_named(drafter)
    return _model_named(draft) if head is None else Eagle(head, revision)


def _model_named(draft: Any) -> Any:
    """The draft model that --draft names: a bundled one by its folder."""
    if draft != RECURRENT:
        return draft
    from fsd_data import recurrent_path

    return str(recurrent_path())


def _bundled_heads(task: str, target: str | None) -> list[str]:
    """The head that is bundled for the default target of a task."""
    if task != BUNDLED or target is not None:
        return []
    from fsd_data import head_path

    return [str(head_path())]
