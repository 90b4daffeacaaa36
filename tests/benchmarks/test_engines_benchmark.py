"""The parts of `benchmarks/engines.py` that need no vLLM."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from engines import NOT_LEAN, random_models
from lib.engines import OURS, SD, TARGET, TRANSFORMERS, Engine, OwnEngine, TransformersEngine, Work, serve


@pytest.mark.slow
def test_ours_and_transformers_decode_the_same_texts_of_a_saved_pair(tmp_path: Path) -> None:
    models, prompts = random_models(tmp_path, 2)
    engines: dict[str, Callable[[], Engine]] = {
        OURS: partial(OwnEngine, models), NOT_LEAN: partial(OwnEngine, models, lean=False),
        TRANSFORMERS: partial(TransformersEngine, models),
    }  # fmt: skip
    work = Work(prompts, (0, 1), 12, (), 1)
    with serve(engines) as served:
        found = [each.decode(work, way) for each in served.values() for way in (TARGET, f"{SD} 3")]
    assert len({decoded.texts for decoded in found}) == 1
    assert {decoded.tokens for decoded in found} == {24}
    assert all(decoded.cpu > 0 for decoded in found)
