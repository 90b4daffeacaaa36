"""Whether lm-eval asks a task of its own as the calibration of a profile did; a decoder tells of other prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lm_eval.api.instance import Instance

from fsd_calib.tasks.asking import Asking
from fsd_calib.tasks.harness.kind import HarnessKind
from fsd_calib.tasks.registry import task_kind
from fsd_common.errors import UsageError
from fsd_decoding.profile.threshold_profile import ThresholdProfile


def departure(profile: ThresholdProfile, tokenizer: Any, requests: Sequence[Instance]) -> str | None:
    """Returns a line where requests ask otherwise than the profile's task of lm-eval, if it has one.

    Told by the first document: worked examples are drawn document by document.
    """
    if profile.prompt is None or profile.prompt.form is not None:
        return None
    try:
        kind = task_kind(profile.task)
        if not isinstance(kind, HarnessKind):
            raise UsageError("it is none of lm-eval's")
        asking = Asking(tokenizer, recorded=profile.prompt)
        first = [request for request in requests if request.doc_id == 0]
        if all(request.args[0] == _first_prompt(kind, asking, request.doc) for request in first):
            return None
    except UsageError as error:
        return f"prompts cannot be compared with those of the profile of {profile.task!r} ({error})"
    return f"prompts are not made as in the calibration: the profile of {profile.task!r} certifies nothing of that"


def _first_prompt(kind: HarnessKind, asking: Asking, document: Any) -> str | None:
    """The prompt of the first document; None: the task has none for it, as the document is another task's."""
    try:
        return kind.first_prompt(asking, document)
    except UsageError:
        raise
    except Exception:  # of the task's own code and templates
        return None
