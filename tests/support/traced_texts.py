"""Traces along the target of texts that a test decoded, in memory. Knows what collects them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fsd_collectors.collection.along_target import Completion, trace_completions
from fsd_collectors.collection.measures import Measures
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.engine.result import Result
from fsd_decoding.sampling import Sampling
from support.in_memory import InMemory


def traced(
    decoder: SpeculativeDecoder, prompts: Sequence[Sequence[int]], results: Sequence[Result], sampling: Sampling
) -> InMemory:
    """What the decoder's target made of the prompts, with their numbers as ids and `js` as the divergence."""
    completions = [Completion.of(i, *one) for i, one in enumerate(zip(prompts, results, strict=True))]
    measures = Measures(["js"], "raw", sampling)
    found = trace_completions(decoder, completions, measures, 8)
    texts: list[list[dict[str, Any]]] = [[] for _ in prompts]
    for owner, column in zip(found.owner.tolist(), found.measured.T.tolist(), strict=True):
        row: dict[str, Any] = dict(zip(measures.columns, column, strict=True))
        decided = {name: row[name] == 1 for name in ("same_token", "sd_accepts")}
        texts[owner].append(row | decided | {"drafted": int(row["drafted"]), "problem": owner})
    return InMemory(texts)
