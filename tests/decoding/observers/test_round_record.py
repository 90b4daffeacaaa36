"""The records that observers receive, and the recorder of scores."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import entropy

from fsd_common.errors import UsageError
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.divergence import DIVERGENCES, divergence
from fsd_decoding.observers.round_log import Recorder
from fsd_decoding.observers.round_record import RoundRecord
from support.models.tiny_models import llama, word_tokenizer

PROMPTS = [[5, 9, 2], [30], [8, 8, 3, 2, 11], [4, 6], [12, 13, 14]]


@pytest.fixture(scope="module")
def decoder() -> SpeculativeDecoder:
    return SpeculativeDecoder(llama(seed=1), llama(seed=2, layers=1), word_tokenizer(), threshold=0.4, draft_length=3)


@pytest.fixture(scope="module")
def rounds(decoder: SpeculativeDecoder) -> list[RoundRecord]:
    seen: list[RoundRecord] = []
    decoder.generate(PROMPTS, 20, batch_size=2, observer=seen.append)
    return seen


def test_a_round_describes_both_distributions(rounds: list[RoundRecord]) -> None:
    record = rounds[3]
    p, q = (
        torch.softmax(logits, -1).numpy()
        for logits in (record.proposal.target_logits[:, :-1], record.proposal.draft_logits)
    )
    for found, expected in zip(record.entropies(), (p, q), strict=True):
        assert found.numpy() == pytest.approx(entropy(expected, axis=-1), rel=1e-9)
    for found, expected in zip(record.top_probabilities(3), (p, q), strict=True):
        assert found.numpy() == pytest.approx(np.sort(expected, -1)[..., :-4:-1], rel=1e-9)
    drafted = record.proposal.drafted.numpy()
    for found, expected in zip(record.ranks(), (p, q), strict=True):
        for row in range(len(drafted)):
            for step, token in enumerate(drafted[row]):
                likelier = (expected[row, step] > expected[row, step, token]).sum()
                assert found[row, step] == likelier
    assert record.draft_seconds > 0
    assert record.verify_seconds > 0


def test_an_entropy_counts_impossible_tokens_as_nothing(rounds: list[RoundRecord]) -> None:
    record = rounds[0]
    logits = record.proposal.target_logits.clone()
    logits[..., 5:] = -torch.inf
    cut = replace(record, proposal=replace(record.proposal, target_logits=logits))
    expected = entropy(torch.softmax(logits[:, :-1], -1).numpy(), axis=-1)
    assert cut.entropies()[0].numpy() == pytest.approx(expected, rel=1e-9)


def test_a_recorder_keeps_the_rounds_scores(
    decoder: SpeculativeDecoder, rounds: list[RoundRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logits kept for many rounds or for one give the same columns, and those are the rounds' own values."""
    names = [*DIVERGENCES, "js@5"]
    recorders = Recorder(names), Recorder(names)
    decoder.generate(PROMPTS, 20, batch_size=2, observer=recorders[0])
    monkeypatch.setattr("fsd_decoding.observers.round_log._PENDING", 1)
    decoder.generate(PROMPTS, 20, batch_size=2, observer=recorders[1])
    many, single = (recorder.columns() for recorder in recorders)
    for name, column in many.items():
        assert torch.equal(column, single[name]), name
    decided = torch.cat([record.decided.flatten() for record in rounds])
    for name in names:
        each = [divergence(name, r.proposal.target_logits[:, :-1], r.proposal.draft_logits).flatten() for r in rounds]
        assert torch.allclose(many[name], torch.cat(each)[decided], rtol=1e-12, atol=1e-15), name


def test_a_recorders_columns_agree_with_the_results(decoder: SpeculativeDecoder) -> None:
    recorder = Recorder(["js"])
    results = decoder.generate(PROMPTS, 20, batch_size=2, rule="fsd", observer=recorder)
    columns = recorder.columns()
    assert {len(column) for column in columns.values()} == {len(columns["js"])}
    assert torch.equal(columns["accepted"], columns["js"] <= 0.4)
    assert set(columns["prompt"].tolist()) == set(range(len(PROMPTS)))
    for prompt, result in zip(range(len(PROMPTS)), results, strict=True):
        mine = columns["prompt"] == prompt
        assert columns["position"][mine].min() == len(PROMPTS[prompt])
        assert (columns["draft"][mine] == 0).sum() == result.rounds
        stayed = mine & columns["accepted"]
        for at, token in zip(columns["position"][stayed], columns["token"][stayed], strict=True):
            new = int(at) - len(PROMPTS[prompt])
            assert new >= len(result.tokens) or result.tokens[new] == token


def test_a_recorder_may_have_nothing_to_keep(decoder: SpeculativeDecoder) -> None:
    recorder = Recorder(["tv"])
    decoder.generate(PROMPTS, 4, rule="target", observer=recorder)
    assert recorder.columns() == {}
    with pytest.raises(UsageError, match="unknown score 'x'"):
        Recorder(["x"])
