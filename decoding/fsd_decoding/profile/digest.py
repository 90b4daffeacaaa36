"""The digest of a profile, which shows whether its content is what the calibration wrote.

It detects accidents and edits, not forgery: whoever changes a file can also compute a new digest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

FIELD: Final = "digest"


def digest_of(content: Mapping[str, Any]) -> str:
    """Returns the SHA-256, in hexadecimal, of a profile's parsed JSON without the field `digest`.

    What is hashed is the content as canonical JSON, which is that of Python's `json.dumps` with `sort_keys=True` and
    `separators=(",", ":")`: names in order, no spaces, ASCII, and the shortest digits that give the same float.
    """
    rest = {name: value for name, value in content.items() if name != FIELD}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def edited_message(name: str) -> str:
    """Returns why a profile is refused whose content does not match its digest."""
    return (
        f"{name} was changed after the calibration that wrote it, so nothing certifies its threshold; restore the "
        "file, calibrate again, or set allow_edited=True (--allow-edited) to decode without a certificate"
    )
