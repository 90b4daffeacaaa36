"""What is known of a text before each drafted token: earlier rounds and the phase."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fsd_collectors.collection.along_target import Completion, trace_completions
from fsd_collectors.collection.measures import Measures
from fsd_decoding.batch import Request
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.judging.features import PAST
from fsd_decoding.judging.known import register
from fsd_decoding.judging.model import Trees
from fsd_decoding.judging.past import Past, past_of
from fsd_decoding.observers.round_record import RoundRecord
from fsd_decoding.policies.markers import automaton
from fsd_decoding.sampling import Sampling
from support.models.followed_pair import PAIR
from support.models.judges import judge_of
from support.models.tiny_models import word_tokenizer
from support.models.tiny_pair import ragged_prompts

NEW = 14
READING = automaton(None, (3, 4))


def reader(phase: tuple[int, int]) -> str:
    """A judge that reads the past and nothing else, each in another digit of its logit."""
    line = {"column": [0, 1, 2], "low": [0.0] * 3, "high": [9.0] * 3, "weight": [0.3, 0.01, 1.0]}
    none = Trees(column=(), threshold=(), leaf=())
    return register(judge_of(PAIR, features=[*PAST], line=line, trees=none, phase=phase, classes=""))


@settings(deadline=None)
@given(
    prompt=st.lists(st.integers(2, 5), min_size=1, max_size=5),
    rounds=st.lists(st.tuples(st.lists(st.integers(2, 5), min_size=1, max_size=4), st.booleans()), max_size=6),
    drafted=st.lists(st.integers(2, 5), min_size=1, max_size=4),
)
def test_rounds_are_followed_as_a_text_tells(
    prompt: list[int], rounds: list[tuple[list[int], bool]], drafted: list[int]
) -> None:
    """Beside a row whose text goes on otherwise, and from which it is separated in the end."""
    past, text, replaced = Past(2, torch.device("cpu"), READING), list[int](), list[int]()
    past.start(torch.tensor([1, 0]), [Request(0, prompt, 0, 0.0, 0, 9), Request(1, [3], 0, 0.0, 0, 9)])
    for tokens, ends_replaced in rounds:
        padded = torch.tensor([[3] * 4, tokens + [3] * (4 - len(tokens))])
        past.add(padded, torch.tensor([1, len(tokens)]), torch.tensor([True, ends_replaced]))
        text += tokens
        replaced += [len(text) - 1] * ends_replaced
    past.keep(torch.tensor([1]))
    (found,) = past.before(torch.tensor([drafted])).tolist()
    for ahead, known in enumerate(found):
        before = [*prompt, *text, *drafted[:ahead]]
        assert known == pytest.approx(past_of(len(text) + ahead, replaced, before, READING), abs=1e-5)


def test_the_past_by_hand() -> None:
    """Places 2 and 3 were replaced, and the phase has begun before them and not ended."""
    since, lately, phase = past_of(12, [2, 3, 14], [9, 3, 9, 9], READING)
    assert since == pytest.approx(math.log(9))
    assert lately == pytest.approx(0.5 + 0.5 ** (9 / 8))
    assert phase == 1.0
    assert past_of(5, [], [3, 4], READING) == [pytest.approx(math.log(6)), 0.0, 0.0]
    assert past_of(5, [], [3], None)[2] == 0.0


def rejecting(name: str, draft_length: int) -> tuple[dict[tuple[int, int], float], list[Any]]:
    """The scores of all rejected tokens in exact decoding, by the prompt and the place of the token; and the texts."""
    found = dict[tuple[int, int], float]()

    def observe(round_: RoundRecord) -> None:
        places = round_.proposal.seen("raw").places
        assert places is not None
        scores = round_.verdict.score
        assert scores is not None
        rows = zip(round_.requests, places().tolist(), scores.tolist(), round_.accepted.tolist(), strict=True)
        for row, (request, at, score, accepted) in enumerate(rows):
            if request is not None and accepted < round_.drafted[row]:
                found[request.index, at[accepted]] = score[accepted]

    decoder = SpeculativeDecoder(*PAIR, word_tokenizer(), draft_length=draft_length, score=name, threshold=-1.0)
    return found, decoder.generate(ragged_prompts(6), NEW, batch_size=4, observer=observe)


def test_traces_along_the_target_show_the_past_that_exact_decoding_has() -> None:
    """Whose drafts are so long that nothing is added behind them; rejections behind a text's end do not count."""
    texts = SpeculativeDecoder(*PAIR, word_tokenizer(), rule="target").generate(ragged_prompts(6), NEW)
    tokens = [token for text in texts for token in text.tokens]
    name = reader((tokens[2], tokens[-2]))  # a phase that begins and ends within texts
    rejected, exact = rejecting(name, NEW)
    found = {at: score for at, score in rejected.items() if at[1] < exact[at[0]].emitted}
    assert [text.tokens for text in exact] == [text.tokens for text in texts]
    decoder, measures = SpeculativeDecoder(*PAIR, word_tokenizer()), Measures([name], "raw", Sampling())
    asked = [
        Completion.of(i, prompt, text) for i, (prompt, text) in enumerate(zip(ragged_prompts(6), texts, strict=True))
    ]
    traced = trace_completions(decoder, asked, measures, 4)
    scores = traced.measured[measures.columns.index(name)]
    along = dict(zip(zip(traced.owner.tolist(), traced.position.tolist(), strict=True), scores.tolist(), strict=True))
    assert len(set(found.values())) > 4
    assert {at: along[at] for at in found} == pytest.approx(found, abs=1e-6)
