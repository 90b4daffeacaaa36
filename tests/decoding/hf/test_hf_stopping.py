"""Stopping criteria that keep a state or end all rows at once give the texts that they give in `generate`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LogitsProcessorList, StoppingCriteria, StoppingCriteriaList

from support.models.hf_pair import EndsOn, Penalty, batch, fsd, one, plain, same
from support.models.tiny_models import word_tokenizer

EVERY = [f"w{i}" for i in range(20, 40)]  # each a stop string of some row of some batch, at some length


class StopSequence(StoppingCriteria):
    """The shape of lm-eval's criterion: which rows of the whole batch are done is kept from call to call.

    It ends the batch once all rows have had their stop string.
    """

    def __init__(self, sequence: str, prompt: int, rows: int) -> None:
        self._sequence, self._prompt, self._tokenizer = sequence, prompt, word_tokenizer()
        self.done_tracker = [False] * rows

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        latest = self._tokenizer.batch_decode(input_ids[:, self._prompt :][:, -3:])
        for i, done in enumerate(self.done_tracker):
            if not done:
                self.done_tracker[i] = self._sequence in latest[i]
        return False not in self.done_tracker


class Together(StoppingCriteria):
    """Ends rows by what the whole batch says, and records its calls."""

    def __init__(self) -> None:
        self.seen: list[list[list[int]]] = []

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        self.seen.append(input_ids.tolist())
        return (input_ids[:, -1] + input_ids[:, -2].sum()) % 7 == 0


def criteria(*each: StoppingCriteria) -> dict[str, Any]:
    return {"stopping_criteria": StoppingCriteriaList(each)}


@pytest.mark.thinned(every=6)
@pytest.mark.parametrize("eos", [{}, {"eos_token_id": None}], ids=["with EOS", "without EOS"])
@pytest.mark.parametrize("rows", [pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(8, marks=pytest.mark.slow)])
def test_a_criterion_that_remembers_rows_of_the_batch(rows: int, eos: dict[str, Any]) -> None:
    """With EOS, rows that end early are padded until all rows are done."""
    inputs = batch(rows)
    ended_early = 0
    for word in EVERY:
        expected = plain(inputs, **criteria(StopSequence(word, 9, rows)), **eos)
        assert same(fsd(inputs, **criteria(StopSequence(word, 9, rows)), **eos), expected), word
        ended_early += not same(expected, plain(inputs, **eos))
    assert ended_early or rows == 8  # eight rows seldom have a word in common


@pytest.mark.thinned(every=3)
@pytest.mark.parametrize("options", [
    {}, {"eos_token_id": None}, {"pad_token_id": 3}, {"max_new_tokens": 1}, {"fsd_draft_length": 1},
    {"logits_processor": LogitsProcessorList([Penalty()])},
], ids=lambda options: next(iter(options), "plain"))  # fmt: skip
def test_a_criterion_is_called_with_all_rows_as_generate_calls_it(options: dict[str, Any]) -> None:
    ours, theirs = Together(), Together()
    own = {name: value for name, value in options.items() if not name.startswith("fsd")}
    expected = plain(batch(), **criteria(theirs), **own)
    assert same(fsd(batch(), **criteria(ours), **options), expected)
    assert ours.seen == theirs.seen


def test_several_criteria_at_once() -> None:
    """A row that one of them ends goes on for the others as padding."""
    ours, theirs = ([StopSequence(EVERY[3], 9, 6), EndsOn(5), Together()] for _ in range(2))
    assert same(fsd(batch(), **criteria(*ours)), plain(batch(), **criteria(*theirs)))


def test_under_such_a_criterion_all_rows_share_one_interval() -> None:
    """The length of a row depends on the others, so a T that changes any of them may change it."""
    options = {"return_dict_in_generate": True, "fsd_threshold": 0.2}
    alone = fsd(batch(), **options).intervals
    shared = fsd(batch(), **criteria(StopSequence(EVERY[0], 9, 6)), **options).intervals
    assert shared.unique(dim=0).shape == (1, 2)
    assert (shared[0, 0] <= 0.2) & (shared[0, 1] > 0.2)
    assert alone.unique(dim=0).shape[0] > 1
    single = fsd(one(), **criteria(StopSequence(EVERY[0], 4, 1)), **options).intervals
    assert torch.equal(single, fsd(one(), **options).intervals)
