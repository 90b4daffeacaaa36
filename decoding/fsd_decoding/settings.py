"""What determines how a text is decoded, besides the models, T and L."""

from __future__ import annotations

from typing import Protocol

from fsd_decoding.acceptance import Criterion, Rule
from fsd_decoding.policies.stopping import StopPolicy
from fsd_decoding.policies.threshold import ThresholdPolicy
from fsd_decoding.sampling import Sampling
from fsd_decoding.tree_shape import TreeShape


class Settings(Protocol):
    """Settings of the engine, or a resolved configuration."""

    @property
    def rule(self) -> Rule: ...
    @property
    def criterion(self) -> Criterion: ...
    @property
    def sampling(self) -> Sampling: ...
    @property
    def stop_policy(self) -> StopPolicy | None: ...
    @property
    def threshold_policy(self) -> ThresholdPolicy | None: ...
    @property
    def tree(self) -> TreeShape | None: ...
