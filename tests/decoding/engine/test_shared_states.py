"""Prompts that share their beginning, read by recurrent layers: once, also where rows have long gone on from it."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.models import runner as runners
from fsd_decoding.models.runner import ModelRunner
from support.models.ragged import ROWS, SLOTS
from support.models.recurrent_models import RECURRENT
from support.models.shared_prompts import alone, counted, worked
from support.models.tiny_models import VOCABULARY, llama, random_model, word_tokenizer
from support.models.wide_scans import use_wide_scans

SHARED, NEW = 40, 5
PROMPTS = {
    "all share": worked(7, SHARED),
    "two tasks in turn": [
        prompt for pair in zip(worked(4, SHARED, 1), worked(4, 24, 2), strict=True) for prompt in pair
    ],
    "one within another": [worked(1, SHARED)[0][:n] for n in (40, 41, 18, 43, 42, 40, 20)],
    "more tasks than places": [worked(3, 24, seed)[i] for i in range(3) for seed in range(4)],
}


@pytest.fixture(autouse=True)
def float64_throughout(monkeypatch: pytest.MonkeyPatch) -> None:
    use_wide_scans(monkeypatch)


def decoder(target: str, draft: str) -> SpeculativeDecoder:
    large, small = (
        llama(seed=1) if name == "llama" else random_model(RECURRENT[name], seed=i)
        for i, name in enumerate((target, draft))
    )
    return SpeculativeDecoder(large, small, word_tokenizer(), rule="fsd-coupled", threshold=0.1, draft_length=3)


@pytest.mark.thinned(every=3)
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("case", PROMPTS)
@pytest.mark.parametrize("pair", [("falcon-h1", "mamba2"), ("llama", "lfm2, convolutions alone")])
def test_texts_are_those_of_prompts_alone(pair: tuple[str, str], case: str, rows: int) -> None:
    made = decoder(*pair)
    found = made.generate(PROMPTS[case], NEW, batch_size=rows, temperature=0.7)
    assert [result.tokens for result in found] == alone(made, PROMPTS[case], NEW, temperature=0.7)


@pytest.mark.parametrize("pair", [("qwen3-next", "mamba"), ("mamba2", "llama"), ("llama", "mamba2")])
def test_a_beginning_is_read_once_more_to_set_its_states_aside(pair: tuple[str, str]) -> None:
    """The first prompt shows nothing that others share, and the second where they part."""
    prompts, made = worked(9, SHARED), decoder(*pair)
    own = sum(len(prompt) - SHARED for prompt in prompts)
    with counted() as passes:
        made.generate(prompts, 1, batch_size=1, rule="coupled", draft_length=1)
    for model in (made.target, made.draft):
        assert 2 * SHARED <= sum(passes[id(model)]) <= 2 * SHARED + own + 4 * len(prompts)


def test_prompts_of_two_tasks_in_turn_are_not_read_again_and_again() -> None:
    prompts, made = PROMPTS["two tasks in turn"], decoder("mamba2", "llama")
    own = sum(map(len, prompts)) - 4 * (SHARED + 24)
    with counted() as passes:
        made.generate(prompts, 1, batch_size=2, rule="target")
    assert sum(passes[id(made.target)]) <= 2 * (SHARED + 24) + own + 4 * len(prompts)


@pytest.mark.parametrize("case", RECURRENT)
@torch.inference_mode()
def test_a_state_that_is_taken_is_that_of_a_row_alone_in_every_bit(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where what is shared ends with a pass; elsewhere sums are rounded in another order, as in attention."""
    monkeypatch.setattr(runners, "PREFILL_CHUNK", 16)
    text = torch.randint(2, VOCABULARY, (1, 60))
    logits = []
    for breaks in ([0, 55], [0, 32, 55]):
        runner = ModelRunner(random_model(RECURRENT[case], seed=0), ROWS, SLOTS, VOCABULARY)
        for start, until in pairwise(breaks):
            runner.prefill(torch.tensor([0]), text, until, start)
            if until < breaks[-1]:
                runner.set_aside(0, until, 1)
                runner.prefill(torch.tensor([0]), text.flip(1), 50, until)  # it goes on otherwise
                runner.copy([0], [0], until)
                runner.take([1], [0], [until])
        fed, at = (each.expand(ROWS, -1) for each in (text[:, 55:57], torch.tensor([[55, 56]])))
        logits.append(runner.logits(fed, at, 57, keep=2)[0])
    assert torch.equal(*logits)
