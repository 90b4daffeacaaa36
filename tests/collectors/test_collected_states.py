"""Hidden states in traces are those that q was computed from, whole or projected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fsd_calib import NGram
from fsd_collectors.collection.measures import HiddenStates, Measures
from fsd_collectors.collection.on_policy import OnPolicy
from fsd_common.errors import UsageError
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.sampling import Sampling
from support.models.tiny_pair import related
from support.models.tiny_task import tiny_task
from support.traces.collecting import TOKENIZER, WAYS, by_problem, collect, contexts
from support.traces.reference_columns import Array


@pytest.fixture(scope="module")
def pair() -> tuple[Any, Any]:
    return related(seed=1, spread=0.05)


def _last_states(model: Any, texts: list[list[int]]) -> list[Array]:
    with torch.inference_mode():
        return [model(torch.tensor([t]), output_hidden_states=True).hidden_states[-1][0].numpy() for t in texts]


@pytest.mark.thinned(every=2)
@pytest.mark.parametrize("way", ["along the target", "fsd-coupled"])
def test_hidden_states_are_those_that_q_was_computed_from(way: str, pair: tuple[Any, Any], tmp_path: Path) -> None:
    task = tiny_task(9)
    traces = collect(tmp_path / "whole", pair, task, hidden="whole", **WAYS[way])
    assert (traces.manifest.hidden, traces.manifest.projected) == (32, False)
    prompts = {p.id: TOKENIZER(p.prompt)["input_ids"] for p in task.problems}
    for problem, rows, completion in by_problem(traces):
        texts, counts = contexts(rows, prompts[problem], list(completion.tokens))
        expected = [states[-n:] for states, n in zip(_last_states(pair[1], texts), counts, strict=True)]
        assert np.stack(list(rows.draft_hidden)) == pytest.approx(np.concatenate(expected), abs=5e-3)  # fp16 of up to 5
    whole = np.stack(list(traces.to_pandas().draft_hidden)).astype(np.float64)
    projected = collect(tmp_path / "projected", pair, task, hidden=12, **WAYS[way])
    assert (projected.manifest.hidden, projected.manifest.projected) == (12, True)
    narrow = np.stack(list(projected.to_pandas().draft_hidden))
    matrix = np.linalg.lstsq(whole, narrow.astype(np.float64))[0]
    assert whole @ matrix == pytest.approx(narrow, abs=0.02)
    # Entries are N(0, 1/12): the sum of 384 squares of such, times 12, is chi-squared, which leaves [250, 540] with
    # probability 4e-7 (and the seed is fixed).
    assert 250 < 12 * (matrix**2).sum() < 540


@pytest.mark.slow
def test_hidden_states_need_a_model_in_eager_mode(pair: tuple[Any, Any]) -> None:
    assert HiddenStates(pair[1], 3, 2**70).width == 3  # whatever a seed may be
    with pytest.raises(UsageError, match=r"NGram\(\) has no hidden state; leave it out"):
        HiddenStates(NGram(), 4, 0)
    with pytest.raises(UsageError, match="the draft is compiled"):
        HiddenStates(torch.compile(pair[1]), 4, 0)
    with pytest.raises(UsageError, match="hidden is 33, but the draft's state has 32 components"):
        HiddenStates(pair[1], 33, 0)
    for wrong in (0, True, "half"):
        with pytest.raises(UsageError, match=f"hidden is {wrong!r}"):
            HiddenStates(pair[1], wrong, 0)  # type: ignore[arg-type]
    decoder = SpeculativeDecoder(*pair, TOKENIZER, compile="capture")
    with HiddenStates(pair[1], "whole", 0, calls=5) as states, pytest.raises(Exception, match="eager drafts only"):
        decoder.generate([[3, 4]], 4, observer=OnPolicy(Measures(["js"], "raw", Sampling()), states))
