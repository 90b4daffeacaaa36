"""`fsd_generate`: sampling, logits processors and stopping criteria, also those that keep a state.

Float64 on tiny random models. At a negative threshold the texts are the target's own, so `generate` without
`fsd_generate` gives the expected result."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare
from torch import Tensor
from transformers import (
    LogitNormalization,
    LogitsProcessorList,
    MinPLogitsWarper,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    StoppingCriteria,
    StoppingCriteriaList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from fsd_decoding.hf import sampling_for
from support.models.hf_pair import (
    TARGET,
    EndsOn,
    Fours,
    Penalty,
    batch,
    fsd,
    one,
    plain,
    same,
)
from support.models.tiny_models import EOS, VOCABULARY, word_tokenizer

WARPERS: dict[str, tuple[dict[str, Any], list[Any]]] = {
    "temperature": ({"temperature": 2.5}, [TemperatureLogitsWarper(2.5)]),
    "top_k": ({"temperature": 2.5, "top_k": 6}, [TemperatureLogitsWarper(2.5), TopKLogitsWarper(6)]),
    "top_p": ({"temperature": 3.0, "top_p": 0.8}, [TemperatureLogitsWarper(3.0), TopPLogitsWarper(0.8)]),
    "all": (
        {"temperature": 3.0, "top_k": 9, "top_p": 0.9, "min_p": 0.05},
        [TemperatureLogitsWarper(3.0), TopKLogitsWarper(9), TopPLogitsWarper(0.9), MinPLogitsWarper(0.05)],
    ),
}


def law_of_two(prompt: list[int], warpers: LogitsProcessorList) -> np.ndarray[Any, Any]:
    """Returns the target's probabilities of the next two tokens, (V, V); an EOS is followed by padding."""

    def next_token(texts: Tensor) -> Tensor:
        return torch.softmax(warpers(texts, TARGET(texts).logits[:, -1]), -1)  # type: ignore[arg-type]

    with torch.no_grad():
        first = next_token(torch.tensor([prompt]))
        second = next_token(torch.tensor([[*prompt, token] for token in range(VOCABULARY)]))
    second[list(EOS)] = torch.nn.functional.one_hot(torch.tensor(0), VOCABULARY).double()
    law: np.ndarray[Any, Any] = (first.T * second).numpy()
    return law


@pytest.mark.thinned(every=8)
@pytest.mark.parametrize("name", WARPERS)
@pytest.mark.parametrize("fsd_rule", ["sd", "fsd-coupled"])
def test_sampled_texts_follow_the_targets_law(fsd_rule: str, name: str) -> None:
    """Chi-square over pairs of tokens; the eight cases together fail by chance at most once in 10^6 runs."""
    options, warpers = WARPERS[name]
    samples, prompt = 3000, [5, 9, 2]
    common_options: dict[str, Any] = {
        "top_k": 0,
        "max_new_tokens": 2,
        "num_return_sequences": samples,
        "do_sample": True,
    }
    torch.manual_seed(11)
    texts = fsd(
        {"input_ids": torch.tensor([prompt])}, **(common_options | options), fsd_rule=fsd_rule, fsd_draft_length=2
    )
    law = law_of_two(prompt, LogitsProcessorList(warpers)).flatten() * samples
    counts = np.bincount((texts[:, 3] * VOCABULARY + texts[:, 4]).numpy(), minlength=law.size)
    assert counts[law == 0].sum() == 0
    common = law >= 5
    pooled = [np.append(x[common], x[~common].sum()) for x in (counts, law)]
    kept = pooled[1] > 1e-9
    assert kept.sum() > 10
    assert chisquare(pooled[0][kept], pooled[1][kept]).pvalue > 1e-6 / 8


def sampled(seed: int | None = None, **options: Any) -> Any:
    if seed is not None:
        torch.manual_seed(seed)
    return fsd(batch(), do_sample=True, **options)


def test_manual_seed_decides_sampled_texts() -> None:
    first, again, next_call = sampled(1), sampled(1), sampled()
    assert same(first, again)
    assert not same(first, next_call)
    for processors in ({}, {"no_repeat_ngram_size": 2}):  # all rows at once, and one by one
        assert same(sampled(1, **processors), sampled(1, **processors, fsd_draft_length=2))


def test_greedy_decoding_draws_nothing() -> None:
    before = torch.get_rng_state()
    fsd(batch())
    assert same(torch.get_rng_state(), before)


@pytest.mark.thinned(every=2)
@pytest.mark.parametrize("processors", [{}, {"no_repeat_ngram_size": 3}])
def test_returned_sequences_differ_and_stay_with_their_prompt(processors: dict[str, Any]) -> None:
    inputs = batch()
    sequences = sampled(1, num_return_sequences=3, temperature=4.0, eos_token_id=None, **processors).view(6, 3, -1)
    for prompt, texts in zip(inputs["input_ids"], sequences, strict=True):
        assert (texts[:, :9] == prompt).all()
        assert len({tuple(text.tolist()) for text in texts}) == 3


PROCESSORS = [
    TemperatureLogitsWarper(0.7), TopKLogitsWarper(7), TopPLogitsWarper(0.8), MinPLogitsWarper(0.1),
    TopKLogitsWarper(9, min_tokens_to_keep=2), MinPLogitsWarper(0.9, min_tokens_to_keep=3), TypicalLogitsWarper(0.6),
    LogitNormalization(), RepetitionPenaltyLogitsProcessor(1.4), NoRepeatNGramLogitsProcessor(1),
    RepetitionPenaltyLogitsProcessor(1.4, prompt_ignore_length=2),
]  # fmt: skip


@given(order=st.permutations(range(len(PROCESSORS))), used=st.integers(0, 5), do_sample=st.booleans())
def test_processors_in_any_order_choose_as_in_generate(order: list[int], used: int, do_sample: bool) -> None:
    processors = LogitsProcessorList(PROCESSORS[i] for i in order[:used])
    logits = torch.randn(1, 2, VOCABULARY, generator=torch.Generator().manual_seed(4), dtype=torch.float64) * 3
    tokens, positions = torch.tensor([[5, 9, 2, 17, 0]]), torch.tensor([[3, 4]])
    warped = sampling_for(processors, do_sample).warp(logits, tokens, positions)
    for n, at in enumerate((3, 4)):
        expected = processors(tokens[:, :at], logits[:, n])  # type: ignore[arg-type]
        torch.testing.assert_close(warped[:, n].softmax(-1), expected.softmax(-1))


def test_processors_that_write_leave_raw_logits_alone() -> None:
    logits = torch.zeros(1, 1, VOCABULARY)
    warped = sampling_for(LogitsProcessorList([Penalty()]), False).warp(
        logits, torch.tensor([[5]]), torch.tensor([[1]])
    )
    assert not logits.any()
    assert warped.any()


@pytest.mark.parametrize(
    "options", [case[0] for case in WARPERS.values()] + [{"repetition_penalty": 1.3, "renormalize_logits": True}]
)
def test_usual_settings_need_no_processor(options: dict[str, Any]) -> None:
    """So all rows are decoded at once."""
    seen: list[int] = []

    class Counting:
        def drafter(self, rows: int, slots: int, vocabulary: int) -> Any:
            seen.append(rows)
            return Fours().drafter(rows, slots, vocabulary)

    fsd(batch(), draft_model=Counting(), do_sample=True, **({"top_k": 0} | options))
    assert seen == [6]


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
    unstopped, ended_early = plain(inputs, **eos), 0
    for word in EVERY:
        expected = plain(inputs, **criteria(StopSequence(word, 9, rows)), **eos)
        assert same(fsd(inputs, **criteria(StopSequence(word, 9, rows)), **eos), expected), word
        ended_early += not same(expected, unstopped)
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
