"""This project's engine, with or without a profile, as an engine that decodes work."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lib.engines.work import Decoded, Engine, Work


@dataclass(frozen=True)
class OwnSettings:
    """How our engine is set up.

    Args:
        models: paths of the target and the draft.
        profile: the profile that it follows, if any.
        lean: whether its own forward pass runs the models, or transformers' modules.
    """

    models: tuple[str, str]
    profile: Path | None = None
    lean: bool = True

    def build(self) -> Engine:
        return OwnEngine(self)


class OwnEngine:
    """`SpeculativeDecoder` in this process.

    Its ways are "target" and "sd L"; with a profile also "fsd", and "sd" at the profile's own L.
    """

    def __init__(self, settings: OwnSettings) -> None:
        import torch

        from fsd_calib import SpeculativeDecoder, ThresholdProfile

        profile = None if settings.profile is None else ThresholdProfile.load(settings.profile)
        self._decoder = SpeculativeDecoder.from_pretrained(
            *settings.models, profile=profile, device="cpu", dtype=torch.float32, lean=settings.lean
        )
        self._own_length = None if profile is None or profile.sd is None else profile.sd.draft_length

    def decode(self, work: Work, way: str) -> Decoded:
        how = self._how(way)
        cpu, wall = time.process_time(), time.perf_counter()
        results = self._decoder.generate(
            list(work.prompts), work.max_new_tokens, ids=list(work.ids), stop=work.stop, batch_size=work.batch, **how
        )
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        return Decoded(tuple(r.text for r in results), sum(r.emitted for r in results), 0, cpu, wall)

    def _how(self, way: str) -> dict[str, Any]:
        rule, _, length = way.partition(" ")
        lengths = {"draft_length": int(length) if length else self._own_length} if rule == "sd" else {}
        return {} if rule == "fsd" else {"rule": rule, **lengths}
