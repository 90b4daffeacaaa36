"""The predictor: two models of acceptance, the scale of T they read, and what is known of them.

Knows how these become files and are found again. Knows neither how they were trained nor who stops by them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fsd_decoding.errors import UsageError
from fsd_decoding.profile.io import first_problem
from fsd_decoding.profile.parts import ModelInfo
from fsd_predictors import files
from fsd_predictors.facts import SCHEMA_VERSION, Facts
from fsd_predictors.features.features import FEATURES, ROLES
from fsd_predictors.features.share_scale import ShareScale
from fsd_predictors.models.base import AcceptanceModel, Parts
from fsd_predictors.models.calibration import restored

_TEXT, _ARRAYS = ".txt", ".safetensors"


@dataclass(frozen=True)
class Predictor:
    """accepting: of a_j. next: of b_{j+1}. Both from `features.FEATURES`."""

    accepting: AcceptanceModel
    next: AcceptanceModel
    scale: ShareScale
    facts: Facts

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of all that the predictor is, its facts included, as predictor.json names it: all but the card."""
        return files.checksum(json.loads(self._as_files()[0]))

    def save(self, folder: str | os.PathLike[str], card: Mapping[str, bytes] | None = None) -> None:
        """Writes the folder whole or not at all. UsageError: it cannot be written, or holds something else."""
        files.write(Path(folder), *self._as_files(), card or {})

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Predictor:
        """Reads what `save` wrote. UsageError: it is missing, altered, or of a newer schema."""
        path = Path(folder)
        content, contents = files.read(path, SCHEMA_VERSION)
        try:
            models = {role: _model(role, numbers, contents) for role, numbers in content["models"].items()}
            loaded = cls(
                models["accepting"], models["next"], ShareScale.from_json(content["scale"]),
                Facts.model_validate(content["facts"]),
            )  # fmt: skip
        except ValidationError as error:
            raise UsageError(f"predictor {str(path)!r} is not valid: {first_problem(error)}") from error
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(f"predictor {str(path)!r} is not valid: {error!r:.80}; train again") from error
        _check_features(loaded.facts, path)
        return loaded

    def check(self, target_model: Any, draft_model: Any, tokenizer: Any, rule: str, divergence: str) -> None:
        """Compares with the models in hand, loaded, and with what they are to do.

        Raises:
            UsageError: other models, another tokenizer, rule or divergence, or divergences of another version.
        """
        self.facts.check(ModelInfo.of(target_model), ModelInfo.of(draft_model), tokenizer, rule, divergence)

    def _as_files(self) -> tuple[bytes, dict[str, bytes]]:
        """predictor.json, and the files that it names."""
        parts = {"accepting": self.accepting.parts(), "next": self.next.parts()}
        contents = {name: content for role, each in parts.items() for name, content in _files(role, each).items()}
        content = {
            "schema_version": SCHEMA_VERSION,
            "facts": json.loads(self.facts.model_dump_json()),
            "scale": self.scale.to_json(),
            "models": {role: each.numbers for role, each in parts.items()},
        }
        return files.described(content, contents), contents


def _check_features(facts: Facts, path: Path) -> None:
    """Names and order; what a model reads of a hidden state comes behind them."""
    for role in ROLES:
        if facts.features.get(role, ())[: len(FEATURES)] != FEATURES:
            raise UsageError(f"predictor {str(path)!r} reads other features than this version has; train again")


def _files(role: str, parts: Parts) -> dict[str, bytes]:
    from safetensors.numpy import save

    held = {}
    if parts.text:
        held[role + _TEXT] = parts.text.encode()
    if parts.arrays:
        held[role + _ARRAYS] = save(dict(sorted(parts.arrays.items())))
    return held


def _model(role: str, numbers: dict[str, Any], contents: Mapping[str, bytes]) -> AcceptanceModel:
    from safetensors.numpy import load

    arrays = load(contents[role + _ARRAYS]) if role + _ARRAYS in contents else {}
    return restored(Parts(numbers, arrays, contents.get(role + _TEXT, b"").decode()))
