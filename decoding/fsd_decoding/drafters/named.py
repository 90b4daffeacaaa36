"""Drafters of users and of other packages, by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fsd_common.addons import OWN, Addon, Registry
from fsd_common.errors import UsageError
from fsd_decoding.drafters.base import Drafter, DraftSource, layers_read, trained_on


def _as_source(found: Any, name: str) -> DraftSource | None:
    """What drafts, or what a class or function without arguments makes."""
    made = found() if isinstance(found, type) or not isinstance(found, DraftSource) else found
    return made if isinstance(made, DraftSource) and not isinstance(made, type) else None


_DRAFTERS = Registry[DraftSource](
    "drafter", {}, _as_source, "a DraftSource (fsd_decoding.drafters.base), or a class or function that makes one"
)


def drafter_named(name: str) -> NamedDrafter:
    """Returns the drafter that is found by a name, `module:Name` or that of an entry point, for decoders and
    calibrations.

    Raises:
        UsageError: there is none.
    """
    if not isinstance(name, str) or _DRAFTERS.addon(name) is None:
        known = "".join(f"{each}, " for each in _DRAFTERS.names)
        raise UsageError(f"unknown drafter {name!r:.60}; known: {known}{OWN}")
    return NamedDrafter(name)


@dataclass(frozen=True, repr=False)
class NamedDrafter:
    """A `DraftSource` that other processes make again, and profiles name. It is imported when it drafts."""

    name: str

    @property
    def addon(self) -> Addon:
        """What is known of its code. UsageError: it is missing."""
        found = _DRAFTERS.addon(self.name)
        assert found is not None  # see `drafter_named`
        return found

    @property
    def target_layers(self) -> tuple[int, ...]:
        """See `layers_read`."""
        return layers_read(self._source)

    @property
    def trained_on(self) -> frozenset[int]:
        """See `trained_on` of the base."""
        return trained_on(self._source)

    @property
    def _source(self) -> DraftSource:
        found = _DRAFTERS.find(self.name)
        assert found is not None
        return found

    def __repr__(self) -> str:
        """What tells it from others in cache keys, too: its source and version."""
        known = self.addon
        return f"{self.name} ({known.version or 'no version'}, {known.source[:16]})"

    def drafter(self, rows: int, slots: int, vocabulary: int) -> Drafter:
        """See `DraftSource.drafter`."""
        return self._source.drafter(rows, slots, vocabulary)
