"""The drafts of a calibration: models, EAGLE heads of the target and n-grams, one or several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fsd_calib.engines.base import Engine
from fsd_common.errors import UsageError
from fsd_decoding.drafters.base import DraftSource
from fsd_decoding.profile.drafts import kind_of


def drafts_of(draft: Any) -> tuple[Any, ...]:
    """Returns one draft, or a list of them, as a tuple.

    Raises:
        UsageError: the list is empty, or one is a `DraftSource` that no profile can name.
    """
    drafts = tuple(draft) if isinstance(draft, (list, tuple)) else (draft,)
    if not drafts:
        raise UsageError("draft is an empty list; give one draft model or more")
    for each in drafts:
        if isinstance(each, DraftSource) and kind_of(each) is None:
            raise UsageError(
                f"the draft is {each!r:.60}, which no profile can name; give a model, Eagle(…) of a folder or hub id, "
                "NGram(…), or drafter_named('module:Name')"
            )
    return drafts


def models_among(drafts: Sequence[Any]) -> list[Any]:
    """Returns the drafts that are models, loaded or not."""
    return [draft for draft in drafts if kind_of(draft) == "model"]


def named(engines: Sequence[Engine]) -> dict[str, Engine]:
    """Returns several engines by their drafts' names; of one, none.

    Models are first, and otherwise names in order, because the order in which drafts are given must not matter.

    Raises:
        UsageError: two drafts are the same or have the same name, or one has no name.
    """
    if len(engines) == 1:
        return {}
    found = {engine: engine.pair.draft for engine in engines}
    names, prints = [draft.id for draft in found.values()], [draft.fingerprint for draft in found.values()]
    for name, fingerprint in zip(names, prints, strict=True):
        if prints.count(fingerprint) > 1:
            raise UsageError(f"drafts are {', '.join(map(repr, names))}, and {name!r} is there twice; give it once")
        if not name or names.count(name) > 1:
            raise UsageError(
                f"drafts are {', '.join(map(repr, names))}; several drafts are told apart by their names "
                "(config._name_or_path), so give each a name of its own"
            )
    ordered = sorted(found, key=lambda engine: (found[engine].kind != "model", found[engine].id))
    return {found[engine].id: engine for engine in ordered}
