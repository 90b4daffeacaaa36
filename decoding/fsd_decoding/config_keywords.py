"""Keywords as an alternative to the fields of a configuration object."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, TypeVar

from fsd_common.errors import UsageError

_Config = TypeVar("_Config")


def override(config: _Config, keywords: dict[str, Any]) -> _Config:
    """Returns a copy of a dataclass with fields replaced by `keywords`; removes those used."""
    names = [f.name for f in fields(config) if f.name in keywords]  # type: ignore[arg-type]
    return replace(config, **{name: keywords.pop(name) for name in names})  # type: ignore[type-var]


def refuse_rest(function: str, keywords: Mapping[str, Any]) -> None:
    """Raises TypeError, as Python does, if any keyword is left: no configuration object has taken it."""
    for name in keywords:
        raise TypeError(f"{function}() got an unexpected keyword argument {name!r}")


def check_type(name: str, value: Any, kind: type[_Config]) -> _Config | None:
    """Returns a configuration object, or None where none is given.

    Raises:
        UsageError: it is something else.
    """
    if value is None or isinstance(value, kind):
        return value
    raise UsageError(f"{name} is {value!r:.60}; it must be a {kind.__name__}, or give its fields as keywords")
