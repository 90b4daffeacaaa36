"""What lm-eval asks otherwise than the calibration of a profile did: prompts, and what ends a text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.models.utils import normalize_gen_kwargs

from fsd_calib.tasks.asking import Asking
from fsd_calib.tasks.harness.kind import HarnessKind
from fsd_calib.tasks.registry import task_kind
from fsd_decoding.errors import UsageError
from fsd_decoding.profile.threshold_profile import ThresholdProfile


class Calibrated:
    """The prompts that a profile is certified for."""

    def __init__(self, profile: ThresholdProfile, tokenizer: Any) -> None:
        self._profile, self._tokenizer = profile, tokenizer

    def departure(self, requests: Sequence[Instance], max_gen_toks: int) -> str | None:
        """Returns a line that says in what requests differ from the profile's; None: nothing is known to.

        Args:
            max_gen_toks: the limit of requests that give none.
        """
        differing = [*self._prompts(requests), *self._ends(requests, max_gen_toks)]
        if not differing:
            return None
        return f"{'; '.join(differing)}: the profile of {self._profile.task!r} certifies nothing of that"

    def _prompts(self, requests: Sequence[Instance]) -> Iterator[str]:
        made = self._profile.prompt
        try:
            if made is not None and made.form is None:
                kind = task_kind(self._profile.task)
                same = not isinstance(kind, HarnessKind) or self._are_of(kind, requests)
            else:
                renderer = self._profile.prompts(self._tokenizer)
                known = [renderer.asks(request.args[0]) for request in requests]
                if None in known:
                    yield "whether prompts are made as in the calibration is not known, as its templates need columns"
                same = False not in known
        except UsageError as error:
            yield f"prompts cannot be compared with the calibration's ({error})"
            return
        if not same:
            yield "prompts are not made as in the calibration"

    def _are_of(self, kind: HarnessKind, requests: Sequence[Instance]) -> bool:
        """Whether requests ask as a task of lm-eval did: told by the first document, as worked examples are drawn."""
        asking = Asking(self._tokenizer, recorded=self._profile.prompt)
        first = [request for request in requests if request.doc_id == 0]
        return all(request.args[0] == kind.first_prompt(asking, request.doc) for request in first)

    def _ends(self, requests: Sequence[Instance], max_gen_toks: int) -> Iterator[str]:
        made = self._profile.prompt
        if made is None:
            return
        settings = [normalize_gen_kwargs(request.args[1], max_gen_toks) for request in requests]
        for limit in {each["max_gen_toks"] for each in settings} - {made.max_new_tokens}:
            yield f"texts have up to {limit} new tokens instead of {made.max_new_tokens}"
        for stop in {tuple(filter(None, each["until"])) for each in settings} - {made.stop}:
            yield f"texts end at {_listed(stop)} instead of {_listed(made.stop)}"


def _listed(stop: Sequence[str]) -> str:
    return " and ".join(map(repr, stop)) or "no strings"
