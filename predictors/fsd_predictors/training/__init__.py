"""Training of acceptance predictors, and the evaluation that goes on their card."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fsd_common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from fsd_predictors.training.api import train

__all__ = ["train"]

__getattr__, __dir__ = lazy_exports(__name__, {"train": "fsd_predictors.training.api"})
