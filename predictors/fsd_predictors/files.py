"""The files of a predictor's folder, with their checksums.

predictor.json    facts, scale and calibration, and the SHA-256 of each file of the models
accepting.*       files of the model of a_j
next.*            files of the model of b_{j+1}
card.md, *.png    for people; nothing depends on them
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fsd_common.argument_checks import named
from fsd_common.digests import facts_digest
from fsd_common.errors import UsageError
from fsd_common.files import atomic_write, foreign_name, read_regular
from fsd_common.strict_json import parse_versioned

SCHEMA_VERSION = 1
DESCRIPTION = "predictor.json"
CARD = "card.md"
_LARGEST = 1 << 30  # bytes of a file
_OURS = r"predictor\.json|card\.md|\w+\.png|(accepting|next)\.\w+"


def describe(content: Mapping[str, Any], files: Mapping[str, bytes]) -> bytes:
    """Returns predictor.json: the content, the checksums of the files, and a checksum of all this."""
    with_files = {**content, "files": {name: hashlib.sha256(data).hexdigest() for name, data in sorted(files.items())}}
    return json.dumps({**with_files, "sha256": checksum(with_files)}, indent=2, allow_nan=False).encode() + b"\n"


def checksum(content: Mapping[str, Any]) -> str:
    """Returns the SHA-256 (hex) of predictor.json's content, without its own entry `sha256`."""
    return facts_digest({name: value for name, value in content.items() if name != "sha256"})


def write(folder: Path, description: bytes, files: Mapping[str, bytes], card: Mapping[str, bytes]) -> None:
    """Writes a predictor, replacing an earlier one.

    All files are on the disk before the first is renamed to its final name, and predictor.json is renamed last: a
    failure leaves the earlier predictor or, while files are being renamed, one whose checksums do not match.

    Args:
        description: content of predictor.json.
        files: the models' files by name.
        card: files for people by name.

    Raises:
        UsageError: the folder cannot be written or holds other files.
    """
    check_place(folder)
    with _writable(folder), contextlib.ExitStack() as stack:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in {DESCRIPTION: description, **files, **card}.items():  # renamed in reverse order
            stack.enter_context(atomic_write(folder / name)).write(content)
    with _writable(folder):
        for path in folder.iterdir():
            if path.name not in {DESCRIPTION, *files, *card}:  # left from the earlier predictor
                path.unlink()


def check_place(folder: Path) -> None:
    """Raises UsageError where the folder holds files that are not a predictor's."""
    if other := foreign_name(folder, _OURS):
        raise UsageError(
            f"folder {str(folder)!r} holds {other!r}, which is not a file of a predictor; choose another {named('out')}"
        )


def read(folder: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Returns the content of predictor.json and, by name, the files it lists.

    Raises:
        UsageError: a file is missing or was altered, or the schema is newer than this one.
    """
    name = f"predictor {str(folder)!r}: {DESCRIPTION}"
    content = parse_versioned(_bytes(folder, DESCRIPTION), name, SCHEMA_VERSION)
    if content.get("sha256") != checksum(content):
        raise _altered(folder, DESCRIPTION)
    return content, {name: _read_file(folder, name, sha) for name, sha in content["files"].items()}


def _read_file(folder: Path, name: str, sha256: str) -> bytes:
    content = _bytes(folder, name)
    if hashlib.sha256(content).hexdigest() != sha256:
        raise _altered(folder, name)
    return content


def _altered(folder: Path, name: str) -> UsageError:
    return UsageError(
        f"predictor {str(folder)!r}: {name} was altered since it was written, its checksum differs; restore it from a "
        "copy, or train again"
    )


def _bytes(folder: Path, name: str) -> bytes:
    try:
        return read_regular(folder / name, _LARGEST)
    except (OSError, ValueError) as error:  # ValueError: an invalid file name
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"predictor {str(folder)!r}: {name} cannot be read ({reason})") from error


@contextlib.contextmanager
def _writable(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"folder {str(folder)!r} cannot be written ({error.strerror or error}); free space or choose another "
            f"{named('out')}"
        ) from error
