"""The parts of `benchmarks/engines.py` that need no vLLM."""

from __future__ import annotations

from pathlib import Path

import pytest

from lib.engines import pairs
from lib.engines.contest import NOT_LEAN, OURS, SD, TARGET, TRANSFORMERS
from lib.engines.own import OwnSettings
from lib.engines.processes import Settings, serve
from lib.engines.transformers import TransformersSettings
from lib.engines.work import Work


@pytest.mark.slow
def test_ours_and_transformers_decode_the_same_texts_of_a_saved_pair(tmp_path: Path) -> None:
    pair = pairs.random(tmp_path, 2, 12)
    settings: dict[str, Settings] = {
        OURS: OwnSettings(pair.models), NOT_LEAN: OwnSettings(pair.models, lean=False),
        TRANSFORMERS: TransformersSettings(pair.models),
    }  # fmt: skip
    work = Work(pair.prompts, (0, 1), 12, (), 1)
    with serve(settings) as served:
        found = [each.decode(work, way) for each in served.values() for way in (TARGET, f"{SD} 3")]
    assert len({decoded.texts for decoded in found}) == 1
    assert {decoded.tokens for decoded in found} == {24}
    assert all(decoded.cpu > 0 for decoded in found)
