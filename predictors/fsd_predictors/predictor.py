"""The predictor: two models of acceptance, their scale of T and the facts of their training; saved and loaded."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fsd_common.errors import UsageError
from fsd_decoding.profile.io import first_problem
from fsd_decoding.profile.parts import ModelInfo
from fsd_predictors import files
from fsd_predictors.facts import PredictorFacts
from fsd_predictors.features import FEATURES, ROLES
from fsd_predictors.models.base import AcceptanceModel, Parts
from fsd_predictors.models.registry import restore_model
from fsd_predictors.share_scale import ShareScale

_TEXT, _ARRAYS = ".txt", ".safetensors"


@dataclass(frozen=True)
class Predictor:
    """A trained predictor.

    Args:
        accepting: forecasts a_j, that the last drafted token is accepted, from `features.FEATURES`.
        next: forecasts b_{j+1}, that the next token would be, from the same features.
        scale: scale on which both read T.
        facts: what it was trained on, for what, and its quality.
    """

    accepting: AcceptanceModel
    next: AcceptanceModel
    scale: ShareScale
    facts: PredictorFacts

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the predictor, as in predictor.json: of the models, the scale and the facts, not of the card."""
        return files.checksum(json.loads(self._as_files()[0]))

    def save(self, folder: str | os.PathLike[str], card: Mapping[str, bytes] | None = None) -> None:
        """Writes the predictor into a folder, atomically.

        Args:
            card: files for people, by name.

        Raises:
            UsageError: the folder cannot be written or holds other files.
        """
        files.write(Path(folder), *self._as_files(), card or {})

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Predictor:
        """Reads a predictor that `save` wrote.

        Raises:
            UsageError: it is missing, was altered, or has a newer schema.
        """
        path = Path(folder)
        content, contents = files.read(path)
        try:
            models = {role: _model(role, numbers, contents) for role, numbers in content["models"].items()}
            loaded = cls(
                models["accepting"], models["next"], ShareScale.from_json(content["scale"]),
                PredictorFacts.model_validate(content["facts"]),
            )  # fmt: skip
        except ValidationError as error:
            raise UsageError(f"predictor {str(path)!r} is not valid: {first_problem(error)}") from error
        except UsageError as error:
            raise UsageError(f"predictor {str(path)!r} is not valid: {error}") from error
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(f"predictor {str(path)!r} is not valid: {error!r:.80}; train again") from error
        _check_features(loaded.facts, path)
        return loaded

    def check(self, target_model: Any, draft_model: Any, tokenizer: Any, rule: str, score: str) -> None:
        """Checks that the predictor suits loaded models, a rule and a score.

        Raises:
            UsageError: it was trained for other models, another tokenizer, rule or score, or on another version
                of the scores.
        """
        self.facts.check(ModelInfo.of(target_model), ModelInfo.of(draft_model), tokenizer, rule, score)

    def _as_files(self) -> tuple[bytes, dict[str, bytes]]:
        """Returns predictor.json and, by name, the files it lists."""
        parts = {"accepting": self.accepting.parts(), "next": self.next.parts()}
        contents = {name: content for role, each in parts.items() for name, content in _files(role, each).items()}
        content = {
            "schema_version": files.SCHEMA_VERSION,
            "facts": json.loads(self.facts.model_dump_json()),
            "scale": self.scale.to_json(),
            "models": {role: each.numbers for role, each in parts.items()},
        }
        return files.describe(content, contents), contents


def _check_features(facts: PredictorFacts, path: Path) -> None:
    """Compares names and order of the features; a hidden state may follow them."""
    for role in ROLES:
        if facts.features.get(role, ())[: len(FEATURES)] != FEATURES:
            raise UsageError(
                f"predictor {str(path)!r} was trained with other features than this version's; train again"
            )


def _files(role: str, parts: Parts) -> dict[str, bytes]:
    from safetensors.numpy import save

    contents = {}
    if parts.text:
        contents[role + _TEXT] = parts.text.encode()
    if parts.arrays:
        contents[role + _ARRAYS] = save(dict(sorted(parts.arrays.items())))
    return contents


def _model(role: str, numbers: dict[str, Any], contents: Mapping[str, bytes]) -> AcceptanceModel:
    from safetensors.numpy import load

    arrays = load(contents[role + _ARRAYS]) if role + _ARRAYS in contents else {}
    return restore_model(Parts(numbers, arrays, contents.get(role + _TEXT, b"").decode()))
