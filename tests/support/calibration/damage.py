"""Values that no calibration writes, put into each place of a file's content in turn."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from fsd_decoding.profile.parts import LARGEST

NUMBERS = (10**400, LARGEST, 0, 1e308, 5e-324)
ACTING = ("\x1b[2J\u202etok", "a\nb\r\x9b5m")
Steps = tuple[str | int, ...]


def leaves(value: Any, path: Steps = ()) -> Iterator[tuple[Steps, Any]]:
    """Yields numbers and strings with their paths; of a list, the first and the last item's."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, (*path, key))
    elif isinstance(value, list):
        for i in sorted({0, len(value) - 1} if value else ()):
            yield from leaves(value[i], (*path, i))
    elif isinstance(value, (int, float, str)) and not isinstance(value, bool):
        yield path, value


def edited(content: dict[str, Any], path: Steps, value: Any) -> dict[str, Any]:
    content = copy.deepcopy(content)
    *folders, last = path
    place: Any = content
    for step in folders:
        place = place[step]
    place[last] = value
    return content
