"""Files that a calibration seals: a digest of the content binds them, and whatever was changed since is told."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, PrivateAttr, ValidationError

from fsd_common.errors import UsageError
from fsd_decoding.profile.io import SCHEMA_VERSION, digest_of, edited_message, file_of, first_problem, read
from fsd_decoding.profile.parts import Part


class Sealed(Part):
    """What a calibration seals, and its file; see `ThresholdProfile`."""

    schema_version: Literal[1] = SCHEMA_VERSION
    """Version of this schema."""
    digest: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = None
    """SHA-256, in hexadecimal, of all other fields as canonical JSON: that of Python's json.dumps with sort_keys=True
    and separators=(",", ":"). It binds the threshold to its certificate: a profile that was changed since has another
    one, and is not certified. It detects accidents and edits, not forgery."""

    _file: Path | None = PrivateAttr(default=None)

    def __eq__(self, other: object) -> bool:
        """Whether the contents are the same, wherever they are."""
        return isinstance(other, type(self)) and self.__dict__ == other.__dict__

    @property
    def name(self) -> str:
        """What messages call it."""
        raise NotImplementedError

    @property
    def file(self) -> Path | None:
        """The file that it was loaded from, or last saved to; None: neither."""
        return self._file

    @property
    def bound(self) -> bool:
        """Whether the digest shows that the content is what the calibration wrote. If not, nothing is certified."""
        return self.digest is not None and not self.edited

    @property
    def edited(self) -> bool:
        """Whether the content is not what its digest was made from. Without a digest that is not known: False."""
        return self.digest is not None and self.digest != self._own_digest()

    def sealed(self) -> Self:
        """Returns a copy with the digest of its content, by which the caller says that a calibration found it so."""
        return self.model_copy(update={"digest": self._own_digest()})

    def _own_digest(self) -> str:
        return digest_of(json.loads(self.model_dump_json()))

    def require_unedited(self, name: str | None = None) -> None:
        """Raises UsageError if the profile is edited; `name` is what the message calls it."""
        if self.edited:
            raise UsageError(edited_message(name or self.name))

    def digest_doubt(self) -> str | None:
        """Returns a warning if the profile is not bound by its digest, so that nothing certifies it; else None."""
        if self.edited:
            return f"{self.name} was edited: its certificate does not cover this decoding"
        if self.digest is None:
            return (
                f"{self.name} has no digest, so nothing shows that it is what a calibration found, and nothing "
                "certifies it; calibrate again"
            )
        return None

    def check_sealed(self) -> None:
        """Raises UsageError where there is no digest, without which a file would be refused."""
        if self.digest is None:
            raise UsageError(
                f"{self.name} has no digest, without which its file would be refused; save what a calibration "
                "returned, or what sealed() returns"
            )

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, allow_edited: bool = False) -> Self:
        """Reads a file that `save` wrote.

        Args:
            path: the file, or its folder, if it is named profile.json.
            allow_edited: load a file that was changed, too; the profile is then `edited`.

        Raises:
            UsageError: the file is missing, malformed, of a newer schema, of another kind, or edited.
        """
        file = file_of(path)
        name = f"profile {str(file)!r}"
        content = read(file, name)
        cls._check_kind(content.get("kind"), name)
        try:
            profile = cls.model_validate_json(json.dumps(content), strict=True)
        except ValidationError as error:
            raise UsageError(f"{name} is not valid: {first_problem(error)}") from error
        profile._file = file
        if not allow_edited:
            profile.require_unedited(name)
        return profile

    @classmethod
    def _check_kind(cls, kind: object, name: str) -> None:
        """Raises UsageError where a file holds a profile of another kind."""
        raise NotImplementedError
