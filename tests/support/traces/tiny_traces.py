"""Traces of the tiny models along the target, as predictors train on; collecting them takes half a second.

About a third of the problems are in the tuning part.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fsd_calib import collect_traces
from fsd_collectors.store.reading import Traces
from support.models.tiny_models import word_tokenizer
from support.models.tiny_pair import related
from support.models.tiny_task import tiny_task

TOKENIZER = word_tokenizer()


def tiny_traces(out: Path, problems: int = 300, spread: float = 0.05, **settings: Any) -> Traces:
    """Collects traces. spread: how far the draft is from the target; 0 makes them equal."""
    target, draft = related(seed=1, spread=spread)
    common: dict[str, Any] = {"tokenizer": TOKENIZER, "scores": ("js", "tv"), "batch_size": 64}
    return collect_traces(
        tiny_task(problems, max_new_tokens=24), target=target, draft=draft, out=out, **common | settings
    )
