"""Digests of what a study holds: a database, unlike the journal, has no checksums of its own."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from optuna.trial import FrozenTrial, Trial

from fsd_common.errors import UsageError

_KEY = "digest"


def seal(trial: Trial, value: float) -> None:
    """Adds the digest of all that a trial holds, before it ends with this value."""
    frozen = trial.storage.get_trial(trial._trial_id)
    trial.storage.set_trial_system_attr(trial._trial_id, _KEY, digest_of(_content(frozen, value)))


def require_intact(trial: FrozenTrial) -> None:
    """Raises UsageError where a finished trial does not match its digest."""
    if trial.system_attrs.get(_KEY) != digest_of(_content(trial, trial.value)):
        raise damaged(f"trial {trial.number}")


def digest_of(content: Any) -> str:
    """Returns the BLAKE2b, in hexadecimal, of a value of JSON types."""
    return hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=16).hexdigest()


def damaged(what: str) -> UsageError:
    """Returns the error for a part of a study that does not match its digest."""
    return UsageError(
        f"{what} in the study's storage does not match its digest, so it was changed or damaged; restore the storage "
        "or give another one: what was decoded comes from the cache again"
    )


def _content(trial: FrozenTrial, value: float | None) -> list[Any]:
    return [trial.params, trial.user_attrs, list(trial.constraints.values()), value]
