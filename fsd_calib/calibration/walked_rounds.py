"""Rounds that forecasts walk again, kept in the cache for later runs as traces are."""

from __future__ import annotations

import hashlib
import json
import warnings
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fsd_calib.engines.base import DecodingRequest
from fsd_calib.engines.own import OwnEngine
from fsd_collectors.replay.walks import Walked, Walks
from fsd_common.files import atomic_write, make_private_folder, naming
from fsd_decoding.divergence import DIVERGENCE_VERSION

_WALKS_VERSION = 1  # of what is kept
_FACTS = "facts"  # entry: tokens, rounds, and whether there are chains alone


def walked_rounds(
    engine: OwnEngine, request: DecodingRequest, divergences: Sequence[str], cache: Path | None
) -> Walked:
    """Returns what `OwnEngine.walked` does, decoded at the first call.

    Args:
        cache: the folder of decodings and traces; None: nothing is kept.
    """
    if cache is None:
        return engine.walked(request, divergences)
    file = cache / "walks" / f"{_name(engine, request, divergences)}.npz"
    found = _read(file, divergences)
    if found is None:
        found = engine.walked(request, divergences)
        _write(file, found)
    return found


def _name(engine: OwnEngine, request: DecodingRequest, divergences: Sequence[str]) -> str:
    """A hash of everything that the rounds depend on, but for rounding."""
    key = engine.key(request.setting, request.seed)
    facts = [key.json, *divergences, DIVERGENCE_VERSION, _WALKS_VERSION, *map(tuple, request.prompts)]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:24]


def _read(file: Path, divergences: Sequence[str]) -> Walked | None:
    """What was kept; None: nothing was, or it is damaged, which is a warning."""
    if not file.exists():
        return None
    try:
        with np.load(file) as kept:  # whose entries have checksums
            tokens, rounds, chains = kept[_FACTS].tolist()
            columns = {name: kept[f"D {name}"] for name in divergences}
            return Walked(Walks(kept["exact"], kept["drafted"], columns, bool(chains)), tokens, rounds)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        warnings.warn(f"walked rounds {str(file)!r} are damaged ({error}); they are decoded again", stacklevel=2)
        return None


def _write(file: Path, walked: Walked) -> None:
    walks = walked.walks
    entries: dict[str, Any] = {
        "exact": walks.exact, "drafted": walks.drafted,
        _FACTS: np.array([walked.tokens, walked.rounds, int(walks.chains)]),
        **{f"D {name}": values for name, values in walks.divergences.items()},
    }  # fmt: skip
    with naming("walked rounds", file):
        make_private_folder(file.parent)
        with atomic_write(file) as stream:
            np.savez_compressed(stream, **entries)
