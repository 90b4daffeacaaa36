"""The interface of every drafter, and the n-gram drafter's distribution; `test_drafting.py` has whole rounds."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fsd_calib.testing import checks_of
from fsd_common.errors import UsageError
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.drafters.base import Drafter, DraftSource
from fsd_decoding.drafters.ngram import NGram, NGramCorpus
from fsd_decoding.models.runner import ModelDrafter, ModelRunner
from fsd_decoding.profile.threshold_profile import ThresholdProfile
from support.calibration.profiles import values
from support.models.tiny_models import VOCABULARY, llama, word_tokenizer

SLOTS = 40
LENGTHS = [1, 2, 9, 5]  # of the prompts


@pytest.fixture(autouse=True)
def _inference_mode() -> Iterator[None]:
    with torch.inference_mode():
        yield


def model_drafter(rows: int, vocabulary: int = VOCABULARY) -> Drafter:
    return ModelDrafter(ModelRunner(llama(seed=3, layers=1), rows, SLOTS, vocabulary))


def ngram_drafter(rows: int, vocabulary: int = VOCABULARY) -> Drafter:
    return NGram().drafter(rows, SLOTS, vocabulary)


def corpus_drafter(rows: int, vocabulary: int = VOCABULARY) -> Drafter:
    return NGram(5, NGramCorpus.of(texts(seed=7).tolist(), 5)).drafter(rows, SLOTS, vocabulary)


def texts(seed: int = 0, rows: int = len(LENGTHS)) -> Tensor:
    """(rows, SLOTS) tokens with repetitions."""
    return torch.randint(2, 9, (rows, SLOTS), generator=torch.Generator().manual_seed(seed))


def prefill(drafter: Drafter, tokens: Tensor, lengths: Tensor) -> Drafter:
    drafter.prefill(torch.arange(len(tokens)), tokens, int(lengths.max()) - 1)
    return drafter


def drafted(drafter: Drafter, tokens: Tensor, lengths: Tensor, steps: int = 4) -> Tensor:
    """log q at every step of a round whose drafts are already in `tokens`: (B, steps, V)."""
    longest = int(lengths.max())
    actual = [drafter.logits(tokens, lengths, step, longest + step) for step in range(steps)]
    return torch.log_softmax(torch.cat(actual, 1), -1)


def same(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=1e-9)


class Source:
    """A `DraftSource` of whatever makes a drafter."""

    def __init__(self, make: Callable[..., Drafter]) -> None:
        self._make = make

    def drafter(self, rows: int, slots: int, vocabulary: int) -> Drafter:
        return self._make(rows, vocabulary)


@pytest.mark.parametrize("make", [model_drafter, ngram_drafter, corpus_drafter])
class TestEveryDrafter:
    """`fsd_calib.testing` has what every drafter must do; but for what it decodes, which other tests do."""

    @pytest.mark.parametrize("each", checks_of("drafter")[:-1], ids=lambda each: each.__name__)
    def test_does_what_the_shipped_checks_say(self, each: Callable[[Any], None], make: Callable[..., Drafter]) -> None:
        each(Source(make))

    def test_depends_on_the_last_two_tokens(self, make: Callable[..., Drafter]) -> None:
        lengths = torch.tensor(LENGTHS)
        clean = drafted(prefill(make(len(LENGTHS)), texts(), lengths), texts(), lengths, 1)
        for back in (1, 2):
            other = texts().scatter(1, (lengths - back).clamp_min(0)[:, None], 9)
            changed = drafted(prefill(make(len(LENGTHS)), other, lengths), other, lengths, 1)
            assert (changed - clean).abs().amax((1, 2)).min() > 1e-3


def witten_bell(text: list[int], vocabulary: int, order: int = 3, corpus: Sequence[list[int]] = ()) -> list[Fraction]:
    """q of the next token in exact fractions, from explicit tables of counts."""
    tables: dict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
    for counted in (text, *corpus):
        for end in range(len(counted)):
            for start in range(max(0, end - order + 1), end + 1):
                tables[tuple(counted[start:end])][counted[end]] += 1
    q = [Fraction(1, vocabulary)] * vocabulary
    for back in range(min(order - 1, len(text)) + 1):
        table = tables[tuple(text[len(text) - back :])]
        if table:
            q = [(table[w] + len(table) * q[w]) / Fraction(table.total() + len(table)) for w in range(vocabulary)]
    return q


some_texts = st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=14), min_size=1, max_size=4)


@given(some_texts, st.integers(1, 8), st.none() | some_texts)
def test_ngram_applies_witten_bell_smoothing(rows: list[list[int]], order: int, corpus: list[list[int]] | None) -> None:
    """To the row's own text and the corpus; rows differ in length and end in padding; the result is log q itself."""
    tokens = torch.tensor([row + [3] * (SLOTS - len(row)) for row in rows])
    lengths = torch.tensor([len(row) for row in rows])
    source = NGram(order, None if corpus is None else NGramCorpus.of(corpus, order))
    actual = source.drafter(len(rows), SLOTS, 5).logits(tokens, lengths, 0, int(lengths.max()))[:, 0].exp()
    expected = torch.tensor([[float(x) for x in witten_bell(row, 5, order, corpus or ())] for row in rows])
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=0)
    assert (actual > 0).all()


def test_ngram_never_waits_for_the_device() -> None:
    """The meta device has no values, so reading one fails."""
    tokens, lengths = torch.zeros((3, SLOTS), dtype=torch.int64, device="meta"), torch.ones(3, device="meta").long()
    assert ngram_drafter(3).logits(tokens, lengths, 1, 9).device.type == "meta"


def test_ngram_is_a_draft_source_and_a_model_is_not() -> None:
    assert isinstance(NGram(), DraftSource)
    assert not isinstance(llama(seed=1), DraftSource)


def test_a_profile_refuses_a_draft_that_is_no_model() -> None:
    profile = ThresholdProfile.model_validate(values())
    message = r"calibrated with the draft model 'small', but this draft is NGram\(\); give that one"
    with pytest.raises(UsageError, match=message):
        SpeculativeDecoder.from_pretrained(llama(seed=1), NGram(), profile, tokenizer=word_tokenizer())
