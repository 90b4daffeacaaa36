"""Types of rotary encodings that transformers computes, to refuse others by name: its own error is a bare KeyError."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

_KNOWN = sorted({"default", *ROPE_INIT_FUNCTIONS})


def unknown_rope_type(values: Mapping[str, Any]) -> str | None:
    """Returns what is wrong with the rope_type that a configuration names, and the way out; None: nothing is.

    Args:
        values: entries of config.json. Those of the rotary encoding may differ by kind of layer.
    """
    for entry in ("rope_parameters", "rope_scaling"):
        if not isinstance(rope := values.get(entry), Mapping):
            continue
        for part in [part for part in rope.values() if isinstance(part, Mapping)] or [rope]:
            kind = part.get("rope_type", part.get("type", "default"))
            if kind not in _KNOWN:
                return (
                    f"{entry} has rope_type {kind!r:.40} in its config.json; it must be one of {', '.join(_KNOWN)}: "
                    "correct it, or install a version of transformers that knows it"
                )
    return None
