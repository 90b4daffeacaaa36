"""Settings of an engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fsd_decoding.acceptance.proposal import Criterion
from fsd_decoding.acceptance.rules import Rule
from fsd_decoding.batch import Request
from fsd_decoding.observers.round_record import Observer
from fsd_decoding.policies.stopping import StopPolicy
from fsd_decoding.policies.threshold import ThresholdPolicy
from fsd_decoding.sampling import Sampling
from fsd_decoding.trees.shape import TreeShape


@dataclass(frozen=True)
class Settings:
    """How a stream of requests is decoded."""

    rule: Rule
    criterion: Criterion
    sampling: Sampling
    eos: frozenset[int]
    seed: int
    stops: Callable[[Request, list[int], int], int | None] | None = None
    """(request, its new tokens, how many of them are from this round) -> the number of tokens up to the one that ends
    the text, or None if the text goes on."""
    stop_policy: StopPolicy | None = None
    threshold_policy: ThresholdPolicy | None = None
    observer: Observer | None = None
    tree: TreeShape | None = None
    """Of the drafted trees; None: chains."""
