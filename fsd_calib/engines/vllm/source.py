"""What a process makes a vLLM engine of: this one, or a worker that is a replica of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

from fsd_calib.engines.base import Limits
from fsd_calib.engines.vllm.arguments import EngineArguments
from fsd_calib.engines.vllm.checkpoint import read_checkpoints
from fsd_calib.engines.vllm.engine import VllmEngine
from fsd_calib.engines.vllm.loading import Room
from fsd_decoding.config import DecodingConfig


@dataclass(frozen=True)
class VllmEngineSource:
    """Checkpoints, and all settings of decoding that no configuration holds. Implements `EngineSource`.

    Attributes:
        target, draft: Paths or hub ids.
        dtype: None: the target checkpoint's own.
        task: Its name, for messages.
        intervals_hold: See `VllmEngine.intervals_hold`.
    """

    target: str
    draft: str
    dtype: str | None
    decoding: DecodingConfig
    limits: Limits
    arguments: EngineArguments
    room: Room
    task: str
    intervals_hold: bool = False

    def engine(self, draft: str | None) -> VllmEngine:
        """See `EngineSource.engine`."""
        return _made(self)

    def noting(self, note: Callable[[str], None]) -> VllmEngine:
        """Returns an engine that says what it cannot do."""
        checkpoints, room = read_checkpoints(self.target, self.draft, self.dtype), self.room
        if checkpoints.context is not None:
            room = replace(room, context=min(room.context, checkpoints.context))
        engine = VllmEngine(checkpoints, self.decoding, self.limits, self.arguments, room, self.task, note)
        engine.intervals_hold = self.intervals_hold
        return engine


@cache
def _made(source: VllmEngineSource) -> VllmEngine:
    return source.noting(lambda line: None)
