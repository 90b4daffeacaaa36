"""Argument checks; each raises a `UsageError` with the argument's name, its value and the rule it breaks."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from numbers import Integral, Real

from fsd_common.errors import UsageError

_IN_COMMAND = ContextVar("whether arguments are options of a command", default=False)


def named(argument: str) -> str:
    """Returns what messages call an argument: in Python its name, in a command the option of that name."""
    return f"--{argument.replace('_', '-')}" if _IN_COMMAND.get() else argument


def off(argument: str) -> str:
    """Returns how a flag is turned off, which is on by itself."""
    return f"--no-{argument.replace('_', '-')}" if _IN_COMMAND.get() else f"{argument}=False"


@contextmanager
def as_options() -> Iterator[None]:
    """Inside, messages name options, see `named`."""
    before = _IN_COMMAND.set(True)
    try:
        yield
    finally:
        _IN_COMMAND.reset(before)


def number(thing: str, value: object, rule: str = "it must be a number (negative is lossless)") -> float:
    """Returns the value as a float. UsageError: it is not a number (a bool is not), or it is NaN."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise UsageError(f"{thing} is {value!r:.60}; {rule}")
    if math.isnan(value):
        raise UsageError(f"{thing} is NaN; {rule}")
    return float(value)


def amount(thing: str, value: object, *, zero: bool = True) -> float:
    """Returns the value as a float. UsageError: it is not finite, is negative, or is 0 when `zero` is False."""
    rule = f"it must be a finite number {'of 0 or more' if zero else 'above 0'}"
    found = number(thing, value, rule)
    if not 0 <= found < math.inf or not (found or zero):
        raise UsageError(f"{thing} is {value}; {rule}")
    return found


LONGEST_MARKER = 200  # bytes


def marker(thing: str, value: object) -> str | int:
    """Returns the value. UsageError: it is neither a text, which may not be long, nor the id of a token."""
    if isinstance(value, str) and 0 < len(value.encode()) <= LONGEST_MARKER:
        return value
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 0:
        raise UsageError(
            f"{thing} is {value!r:.60}; it must be a text of 1 to {LONGEST_MARKER} bytes, or the id of a token"
        )
    return int(value)


def check_settings(draft_lengths: Sequence[object], thresholds: Sequence[object]) -> None:
    """UsageError: a draft length is not a whole number of at least 1, or a threshold is not a number."""
    for length in draft_lengths:
        check_count("draft_length", length, " (rule 'target' drafts nothing)")
    for threshold in thresholds:
        if not isinstance(threshold, Real) or math.isnan(threshold):
            shown = "NaN" if isinstance(threshold, Real) else repr(threshold)
            raise UsageError(f"threshold is {shown}; it must be a number (negative is lossless)")


TRUNCATIONS = ("top_k", "top_p", "min_p")
"""Settings of sampling that greedy decoding has no use for."""
LEAST_TEMPERATURE = 1e-6
"""Below it, logits divided by it overflow fp32."""


def check_sampling(temperature: object, top_k: object = None, top_p: object = None, min_p: object = None) -> None:
    """UsageError: a setting of sampling is of the wrong type or out of range, or is combined with temperature 0."""
    given = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    for name, value in given.items():
        check_kind(named(name), value, Integral if name == "top_k" else Real)
    if temperature != 0.0 and not LEAST_TEMPERATURE <= temperature < math.inf:  # type: ignore[operator]
        raise UsageError(
            f"{named('temperature')} is {temperature}; it must be 0 (greedy) or a finite number >= "
            f"{LEAST_TEMPERATURE:g}"
        )
    if top_k is not None and top_k < 1:  # type: ignore[operator]
        raise UsageError(f"{named('top_k')} is {top_k}; it must be at least 1, or None")
    for name, share in (("top_p", top_p), ("min_p", min_p)):
        if share is not None and not 0.0 < share <= 1.0:  # type: ignore[operator]
            raise UsageError(f"{named(name)} is {share}; it must be in (0, 1], or None")
    for name in TRUNCATIONS:
        off = given[name] is None or (name == "top_p" and given[name] == 1.0)  # which leaves nothing out
        if temperature == 0.0 and not off:
            raise UsageError(
                f"{named(name)} is {given[name]} at temperature 0, which is greedy; set a temperature above 0"
            )


def check_kind(name: str, value: object, kind: type) -> None:
    """UsageError: `value` is neither None nor a number of a kind (a bool is not)."""
    if isinstance(value, bool) or not isinstance(value, kind | None):
        whole = "whole " if kind is Integral else ""
        raise UsageError(f"{name} is {value!r}; it must be a {whole}number")


def check_flag(name: str, value: object) -> None:
    """UsageError: `value` is neither True nor False."""
    if not isinstance(value, bool):
        raise UsageError(f"{name} is {value!r:.60}; it must be True or False")


def check_path(name: str, value: object) -> None:
    """UsageError: a path is empty, or holds a null character, which the system takes as its end."""
    if value == "":
        raise UsageError(f"{name} is empty, perhaps from a variable that is not set; give a path, or leave it out")
    if isinstance(value, str | os.PathLike) and "\0" in os.fspath(value):
        raise UsageError(f"{name} is {os.fspath(value)!r:.60}; a path has no null character, leave it out")


def check_whole(name: str, value: object) -> None:
    """UsageError: `value` is not a whole number (a bool is not)."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise UsageError(f"{name} is {value!r}; it must be a whole number")


def check_count(name: str, value: object, hint: str = "") -> None:
    """UsageError: `value` is not a whole number of at least 1 (a bool is not)."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise UsageError(f"{name} is {value!r}; it must be a whole number of at least 1{hint}")
