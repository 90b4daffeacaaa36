"""Keywords that stand for the fields of a configuration object, so that either may be given."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, TypeVar

from fsd_decoding.errors import UsageError

_FORMER = {"policy": "stop_policy"}
_Config = TypeVar("_Config")


def override(config: _Config, keywords: dict[str, Any]) -> _Config:
    """Returns a copy of a dataclass with the fields that `keywords` name; removes these from there."""
    names = [f.name for f in fields(config) if f.name in keywords]  # type: ignore[arg-type]
    return replace(config, **{name: keywords.pop(name) for name in names})  # type: ignore[type-var]


def rename_former(keywords: Mapping[str, Any], stacklevel: int, former: Mapping[str, str] = _FORMER) -> dict[str, Any]:
    """Returns the keywords under their present names; warns, at `stacklevel`, of each that has a former one.

    Raises:
        UsageError: one is given under both names.
    """
    present = dict(keywords)
    for old, new in former.items():
        if old in present:
            if new in present:
                raise UsageError(f"{old}= and {new}= are both given; {old}= is the former name of {new}=, leave it out")
            warnings.warn(f"{old}= is now called {new}=", DeprecationWarning, stacklevel=stacklevel)
            present[new] = present.pop(old)
    return present


def refuse_rest(function: str, keywords: Mapping[str, Any]) -> None:
    """TypeError, as Python's own: a keyword is nobody's."""
    for name in keywords:
        raise TypeError(f"{function}() got an unexpected keyword argument {name!r}")
