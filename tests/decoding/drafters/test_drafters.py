"""The interface of every drafter, and the n-gram drafter's distribution; `test_drafting.py` has whole rounds."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

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


@pytest.mark.parametrize("make", [model_drafter, ngram_drafter, corpus_drafter])
class TestEveryDrafter:
    def test_gives_a_distribution_at_every_step(self, make: Callable[..., Drafter]) -> None:
        lengths = torch.tensor(LENGTHS)
        drafter = prefill(make(len(LENGTHS)), texts(), lengths)
        for step in range(4):
            logits = drafter.logits(texts(), lengths, step, max(LENGTHS) + step)
            assert logits.shape == (len(LENGTHS), 1, VOCABULARY)
            assert logits.dtype in (torch.float32, torch.float64)
            assert logits.isfinite().all()

    def test_is_deterministic(self, make: Callable[..., Drafter]) -> None:
        lengths = torch.tensor(LENGTHS)
        drafter = prefill(make(len(LENGTHS)), texts(), lengths)
        first = drafted(drafter, texts(), lengths)
        assert torch.equal(drafted(drafter, texts(), lengths), first)

    def test_rows_are_independent(self, make: Callable[..., Drafter]) -> None:
        lengths = torch.tensor(LENGTHS)
        together = drafted(prefill(make(len(LENGTHS)), texts(), lengths), texts(), lengths)
        for i in range(len(LENGTHS)):
            one, length = texts()[i : i + 1], lengths[i : i + 1]
            same(drafted(prefill(make(1), one, length), one, length), together[i : i + 1])

    def test_depends_only_on_the_text_before(self, make: Callable[..., Drafter]) -> None:
        lengths = torch.tensor(LENGTHS)
        clean = drafted(prefill(make(len(LENGTHS)), texts(), lengths), texts(), lengths)
        for step in range(4):
            beyond = torch.arange(SLOTS) >= lengths[:, None] + step
            other = torch.where(beyond, texts(seed=1), texts())
            drafter = prefill(make(len(LENGTHS)), other, lengths)
            same(drafted(drafter, other, lengths, step + 1)[:, step], clean[:, step])

    def test_depends_on_the_last_two_tokens(self, make: Callable[..., Drafter]) -> None:
        lengths = torch.tensor(LENGTHS)
        clean = drafted(prefill(make(len(LENGTHS)), texts(), lengths), texts(), lengths, 1)
        for back in (1, 2):
            other = texts().scatter(1, (lengths - back).clamp_min(0)[:, None], 9)
            changed = drafted(prefill(make(len(LENGTHS)), other, lengths), other, lengths, 1)
            assert (changed - clean).abs().amax((1, 2)).min() > 1e-3

    def test_a_shorter_length_rolls_back(self, make: Callable[..., Drafter]) -> None:
        """Rounds keep 0 to 4 of 4 drafted tokens and add one; q is that of a drafter that read the text at once."""
        lengths, tokens, rng = torch.tensor(LENGTHS), texts(), Random(0)
        drafter = prefill(make(len(LENGTHS)), tokens, lengths)
        for round_ in range(5):
            drafted(drafter, tokens, lengths)
            lengths = lengths + torch.tensor([rng.randint(0, 4) for _ in LENGTHS])
            tokens = torch.where(torch.arange(SLOTS) < lengths[:, None], tokens, texts(seed=2 + round_))
            lengths = lengths + 1
            fresh = prefill(make(len(LENGTHS)), tokens, lengths)
            same(drafted(drafter, tokens, lengths), drafted(fresh, tokens, lengths))

    def test_a_refilled_row_forgets_its_former_text(self, make: Callable[..., Drafter]) -> None:
        lengths, tokens = torch.tensor(LENGTHS), texts()
        drafter = prefill(make(len(LENGTHS)), tokens, lengths)
        drafted(drafter, tokens, lengths)
        tokens[2], lengths[2] = texts(seed=5)[2], 3
        drafter.prefill(torch.tensor([2]), tokens[2:3], 2)
        fresh = prefill(make(len(LENGTHS)), tokens, lengths)
        same(drafted(drafter, tokens, lengths), drafted(fresh, tokens, lengths))

    def test_kept_rows_are_renumbered(self, make: Callable[..., Drafter]) -> None:
        lengths, tokens, kept = torch.tensor(LENGTHS), texts(), [2, 0]
        drafter = prefill(make(len(LENGTHS)), tokens, lengths)
        whole = drafted(drafter, tokens, lengths)
        drafter.keep(kept)
        same(drafted(drafter, tokens[kept], lengths[kept]), whole[kept])


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
