"""Where the V2 model runner of vLLM has the logits of drafted tokens, against plain Python."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fsd_calib.vllm_plugin.judge import Judge, JudgedTokens, Verification
from fsd_calib.vllm_plugin.logits_v2 import ChunkedDecisions, StateDraftLogits, StepRows, padded, with_certain
from fsd_decoding.divergence import divergence

VOCABULARY, LENGTH = 7, 4
COUNTS = st.lists(st.integers(0, LENGTH), min_size=1, max_size=5)
SEEDS = st.integers(0, 2**31)


def begins(counts: list[int]) -> np.ndarray:
    return np.cumsum([0, *(count + 1 for count in counts)])


def draws(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@given(COUNTS)
def test_rows_that_verify_drafted_tokens(counts: list[int]) -> None:
    rows = StepRows(begins(counts))
    expected: list[int] = []
    row = 0
    for count in counts:
        expected += range(row, row + count)
        row += count + 1  # the last one is the bonus token's
    assert rows.counts == counts
    assert rows.of_tokens.tolist() == expected
    spread = rows.spread(torch.ones(len(expected), dtype=torch.bool))
    assert spread.nonzero().flatten().tolist() == expected
    assert len(spread) == row


@given(COUNTS, SEEDS)
def test_divergences_are_of_each_requests_own_state(counts: list[int], seed: int) -> None:
    source = draws(seed)
    kept = torch.randn(8, LENGTH, VOCABULARY, generator=source)
    states = torch.randperm(8, generator=source)[: len(counts)].tolist()
    ids = [f"request-{i}" for i in range(len(counts))]
    logits = torch.randn(int(begins(counts)[-1]), VOCABULARY, generator=source)
    rows = StepRows(begins(counts))
    drafted, greedy = torch.zeros(sum(counts), dtype=torch.int32), [True] * len(ids)
    step = Verification(ids, rows.counts, logits, torch.tensor(rows.of_tokens), drafted, greedy)
    drafts = StateDraftLogits(kept, dict(zip(ids, states, strict=True)))
    drafts.made(ids, LENGTH)
    judged = Judge(drafts, "js", None)(step, [0.2] * len(ids))
    if not any(counts):
        assert judged is None
        return
    expected = [
        float(divergence("js", logits[begin + place], kept[state, place]))
        for begin, count, state in zip(begins(counts), counts, states, strict=False)
        for place in range(count)
    ]
    assert isinstance(judged, JudgedTokens)
    assert judged.scores.tolist() == pytest.approx(expected, abs=1e-6)
    assert judged.fuzzy.tolist() == [found <= 0.2 for found in judged.scores.tolist()]


@given(COUNTS, st.lists(st.integers(0, LENGTH), min_size=5, max_size=5), SEEDS)
def test_drafts_that_were_never_made_are_left_to_vllm(counts: list[int], made: list[int], seed: int) -> None:
    """vLLM pads the first steps of requests, and leaves out the drafts of some steps."""
    source = draws(seed)
    kept = torch.randn(8, LENGTH, VOCABULARY, generator=source)
    ids = [f"request-{i}" for i in range(len(counts))]
    drafts = StateDraftLogits(kept, {name: i for i, name in enumerate(ids)})
    drafts.made([*ids, "finished"], LENGTH)
    for name, count in zip(ids, made, strict=False):
        drafts.made([name], count)
    known = [0 < count <= there for count, there in zip(counts, made, strict=False)]
    assert drafts.rows_of(ids, counts) == [i if is_known else None for i, is_known in enumerate(known)]

    rows = StepRows(begins(counts))
    logits = torch.randn(rows.total, VOCABULARY, generator=source)
    inputs = torch.randint(0, VOCABULARY, (rows.total,), generator=source)
    step = Verification(ids, rows.counts, logits, torch.tensor(rows.of_tokens), inputs[rows.of_tokens + 1],
                        [True] * len(ids))  # fmt: skip
    for score in ("js", "typical"):
        found = Judge(drafts, score, None)(step, [100.0] * len(ids))
        if not any(known):
            assert found is None
            continue
        assert found is not None
        decisions = ChunkedDecisions(found, rows, torch.device("cpu"))
        certain = decisions.next(logits.clone(), inputs, own=True)
        of_known = torch.tensor(rows.of_tokens)[torch.tensor(known).repeat_interleave(torch.tensor(counts))]
        judged = decisions.judged()
        assert len(judged.scores) == len(of_known)
        sure = torch.zeros(rows.total, dtype=torch.bool)
        sure[of_known[judged.fuzzy]] = True
        assert torch.equal(certain == logits, ~sure.unsqueeze(1) | (torch.arange(VOCABULARY) != next_of(inputs)))
    drafts.forget(ids)
    assert drafts.rows_of(ids, counts) == [None] * len(ids)


def next_of(inputs: Tensor) -> Tensor:
    """The token that each row verifies: (rows, 1)."""
    return torch.cat([inputs[1:], inputs.new_full((1,), -1)]).unsqueeze(1)


def verified(logits: Tensor, inputs: Tensor, counts: list[int]) -> list[list[int]]:
    """vLLM's greedy rule: a drafted token is accepted if it is the argmax of the row before its own."""
    emitted = []
    for begin, count in zip(begins(counts).tolist(), counts, strict=False):
        tokens: list[int] = []
        for row in range(begin, begin + count + 1):
            tokens.append(int(logits[row].argmax()))
            if row == begin + count or inputs[row + 1] != tokens[-1]:
                break
        emitted.append(tokens)
    return emitted


@given(COUNTS, SEEDS, st.sampled_from([torch.float32, torch.float16, torch.bfloat16]))
def test_greedy_verification_accepts_fuzzy_tokens_too(counts: list[int], seed: int, dtype: torch.dtype) -> None:
    source = draws(seed)
    total = int(begins(counts)[-1])
    logits = torch.randn(total, VOCABULARY, generator=source).to(dtype)
    logits[torch.rand(total, VOCABULARY, generator=source) < 0.2] = -torch.inf  # a grammar's, or top-k's
    logits[:, 0] = 0.0
    inputs = torch.randint(-1, VOCABULARY, (total,), generator=source)  # -1: a draft that vLLM rejects
    rows = StepRows(begins(counts))
    fuzzy = torch.rand(len(rows.of_tokens), generator=source) < 0.5
    before = logits.clone()
    certain, most_likely = with_certain(logits, inputs, rows.spread(fuzzy), own=False)
    assert torch.equal(logits, before)  # logprobs are of these

    expected, accepts, row_of = [], fuzzy.tolist(), {row: i for i, row in enumerate(rows.of_tokens.tolist())}
    for begin, count in zip(begins(counts).tolist(), counts, strict=False):
        tokens: list[int] = []
        for row in range(begin, begin + count + 1):
            own, argmax = (int(inputs[row + 1]) if row < begin + count else -1), int(logits[row].argmax())
            allowed = own >= 0 and logits[row, own] > -torch.inf
            tokens.append(own if allowed and row in row_of and accepts[row_of[row]] else argmax)
            if row in row_of:
                assert bool(most_likely[row]) == (own >= 0 and bool(logits[row, own] >= logits[row].max()))
            if tokens[-1] != own:
                break
        expected.append(tokens)
    assert verified(certain, inputs, counts) == expected


def test_processed_logits_are_changed_in_place() -> None:
    logits = torch.zeros(2, VOCABULARY)
    certain, _ = with_certain(logits, torch.tensor([1, 3]), torch.tensor([True, False]), own=True)
    assert certain is logits
    assert certain.softmax(-1)[0].tolist() == [0, 0, 0, 1, 0, 0, 0]


def test_outputs_end_where_their_counts_say() -> None:
    sampled = torch.tensor([[5, 6, 7], [8, 9, 1], [2, 3, 4]])
    assert padded(sampled, torch.tensor([3, 1, 0])).tolist() == [[5, 6, 7], [8, -1, -1], [-1, -1, -1]]
