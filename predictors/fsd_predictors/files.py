"""A folder that holds a predictor: predictor.json, which names every other file with its checksum, and a card.

Knows names, bytes and checksums. Knows nothing of what the files say.

    predictor.json    what was trained, and the SHA-256 of each file of the models
    accepting.*       files of the model of a_j
    next.*            files of the model of b_{j+1}
    card.md, *.png    for people; nothing depends on them
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fsd_collectors.store.folder import TEMPORARY, whole
from fsd_decoding.errors import UsageError

DESCRIPTION = "predictor.json"
CARD = "card.md"
_OURS = re.compile(rf"(predictor\.json|card\.md|\w+\.png|(accepting|next)\.\w+)({re.escape(TEMPORARY)})?")


def described(content: Mapping[str, Any], files: Mapping[str, bytes]) -> bytes:
    """predictor.json: the content, and what shows that it and the files are these."""
    whole_content = {**content, "files": {name: _sha256(held) for name, held in sorted(files.items())}}
    return json.dumps({**whole_content, "sha256": checksum(whole_content)}, indent=2).encode() + b"\n"


def checksum(content: Mapping[str, Any]) -> str:
    """SHA-256 (hex) of what predictor.json says, less its own."""
    plain = {name: value for name, value in content.items() if name != "sha256"}
    return _sha256(json.dumps(plain, sort_keys=True, allow_nan=False).encode())


def write(folder: Path, description: bytes, files: Mapping[str, bytes], card: Mapping[str, bytes]) -> None:
    """Puts a predictor there, in the place of one that is.

    All is on the disk before the first file gets its name, and predictor.json gets it last: what a failure leaves is
    the earlier predictor, or, in the moment of renaming, one that its checksums refuse.

    Raises:
        UsageError: the folder cannot be written, or holds something else.
    """
    check_place(folder)
    with _writable(folder), contextlib.ExitStack() as stack:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in {DESCRIPTION: description, **files, **card}.items():  # named in the opposite order
            stack.enter_context(whole(folder / name)).write(content)
    with _writable(folder):
        for path in _held(folder):
            if path.name not in {DESCRIPTION, *files, *card}:  # of the one before
                path.unlink()


def check_place(folder: Path) -> None:
    """UsageError where the folder holds what is no predictor's."""
    if other := [path.name for path in _held(folder) if not _OURS.fullmatch(path.name)]:
        raise UsageError(f"folder {str(folder)!r} holds {other[0]!r}, which is no predictor's; choose another --out")


def read(folder: Path, schema_version: int) -> tuple[dict[str, Any], dict[str, bytes]]:
    """What predictor.json says, and the files it names, whole.

    Raises:
        UsageError: a file is missing, or another than was written; or the schema is newer than `schema_version`.
    """
    content = _described(folder, schema_version)
    if content.get("sha256") != checksum(content):
        raise _altered(folder, DESCRIPTION)
    return content, {name: _checked(folder, name, sha) for name, sha in content["files"].items()}


def _described(folder: Path, schema_version: int) -> dict[str, Any]:
    try:
        content = json.loads(_bytes(folder, DESCRIPTION))
    except ValueError as error:
        raise UsageError(f"predictor {str(folder)!r}: {DESCRIPTION} is not JSON: {error}") from error
    version = content.get("schema_version") if isinstance(content, dict) else None
    if type(version) is not int:
        raise UsageError(f"predictor {str(folder)!r}: {DESCRIPTION} is no predictor's, schema_version is {version!r}")
    if version > schema_version:
        raise UsageError(
            f"predictor {str(folder)!r} has schema_version {version}, this reads up to {schema_version}; upgrade "
            "fsd-calib"
        )
    return dict(content)


def _checked(folder: Path, name: str, sha256: str) -> bytes:
    content = _bytes(folder, name)
    if _sha256(content) != sha256:
        raise _altered(folder, name)
    return content


def _altered(folder: Path, name: str) -> UsageError:
    return UsageError(
        f"predictor {str(folder)!r}: {name} was altered since it was written, its checksum says; restore it from a "
        "copy, or train again"
    )


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _bytes(folder: Path, name: str) -> bytes:
    try:
        return (folder / name).read_bytes()
    except OSError as error:
        raise UsageError(f"predictor {str(folder)!r}: {name} cannot be read ({error.strerror})") from error


def _held(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


@contextlib.contextmanager
def _writable(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"folder {str(folder)!r} cannot be written ({error.strerror or error}); free space or choose another --out"
        ) from error
