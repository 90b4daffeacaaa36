"""The shipped checks of scores: those of this package pass them, and each finds what it is there to find."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from fsd_calib.testing import check, checks_of
from fsd_common.errors import UsageError
from fsd_decoding.scores import FAMILIES
from support.own_code import on_path

NAMES = [*FAMILIES, "js@3", "gated-js", "margin@4", "fly@1@2", "accept-threshold@0.7"]
DECODING = ("below_zero_it_is_lossless", "intervals_decode_equal")
QUICK = [each for each in checks_of("score") if each.__name__ not in DECODING]


@pytest.mark.parametrize("each", QUICK, ids=lambda each: each.__name__)
@pytest.mark.parametrize("name", NAMES)
def test_scores_of_this_package_pass(each: Callable[[str], None], name: str) -> None:
    each(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["js", "margin@4", "cactus", "fly@1"])
def test_they_pass_where_texts_are_decoded(name: str) -> None:
    check("score", name)


@pytest.fixture(scope="module", autouse=True)
def broken() -> Iterator[None]:
    """A module with a score for each thing that can be wrong."""
    with on_path(broken_scores=SCORES):
        yield


SCORES = """
import torch
from fsd_decoding.scores import Score

class Shape(Score):
    def of(self, seen):
        return behind(seen)[..., :1]

class NoTensor(Score):
    def of(self, seen):
        return 0.5

class Whole(Score):
    def of(self, seen):
        return behind(seen).round().long()

class Nan(Score):
    def of(self, seen):
        return seen.target.drafted.log() * 0.0

class Below(Score):
    def of(self, seen):
        return behind(seen) - 0.5

class Beyond(Score):
    def of(self, seen):
        return 3 * behind(seen)

class Infinite(Score):
    def of(self, seen):
        return behind(seen) + float("inf")

class OfBatch(Score):
    largest = 99
    def of(self, seen):
        return behind(seen) + seen.target.largest.mean()

class OfLogits(Score):
    largest = 99
    def of(self, seen):
        return seen.target_logits.amax(-1).clamp(0, 20)

class OfToken(Score):
    reads_token = False
    def of(self, seen):
        return behind(seen)

class OfDraft(Score):
    def of(self, seen):
        return 1 - seen.draft.drafted

class OfNoise(Score):
    def of(self, seen):
        return seen.uniform()

class OfAll(Score):
    largest = 9
    reads_top = 5
    def of(self, seen):
        return seen.target.entropy

class Coarse(Score):
    def of(self, seen):
        exact = behind(seen)
        return exact if exact.dtype == torch.float64 else (10 * exact).round() / 10

class Zero(Score):
    def of(self, seen):
        return torch.zeros_like(seen.target.largest)

def behind(seen):
    return 1 - seen.target.relative
"""

FOUND = [
    ("Shape", "every_token_has_a_number: of() returned a tensor of torch.float32 (12, 1); it must be"),
    ("NoTensor", "every_token_has_a_number: of() returned 0.5; it must be a tensor of the shape of seen.drafted"),
    ("Whole", "every_token_has_a_number: of() returned a tensor of torch.int64 (12, 20); give fp32 or fp64"),
    ("Nan", " of 240 tokens have the score NaN"),
    ("Below", "tokens have a score below 0, so T < 0 keeps them"),
    ("Beyond", "largest says 1"),
    ("Infinite", "all scores of random distributions are infinite"),
    ("OfBatch", "batches_do_not_matter: the score of a token by itself differs: at (0, 0) it is "),
    ("OfLogits", "logits_are_known_up_to_a_constant: a constant added to all logits changes the score"),
    ("OfToken", "it_reads_what_it_says: the score depends on x, and reads_token is False"),
    ("OfDraft", "it_reads_what_it_says: the score depends on q, and reads_draft is False"),
    ("OfNoise", "it_reads_what_it_says: the score asks for u, and reads_noise is False"),
    ("OfAll", "it_reads_no_more_tokens_than_it_says: the score depends on tokens beyond the 5 likeliest"),
    ("Coarse", "short_types_are_about_the_same: of logits in bfloat16 the score is not that of their values"),
]


@pytest.mark.parametrize(("name", "message"), FOUND, ids=[name for name, _ in FOUND])
def test_a_broken_promise_is_found_and_said(name: str, message: str) -> None:
    with pytest.raises(AssertionError) as caught:
        check("score", f"broken_scores:{name}")
    assert str(caught.value).startswith(f"score 'broken_scores:{name}', ")
    assert message in str(caught.value)


def test_a_kind_or_a_name_that_is_not_there_is_no_broken_promise() -> None:
    with pytest.raises(UsageError, match="kind is 'judge'; it must be one of score, rule, drafter, stop policy"):
        check("judge", "mine:Judge")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="score 'broken_scores:Nobody': it cannot be used"):
        check("score", "broken_scores:Nobody")


@pytest.mark.slow
def test_a_score_by_which_no_threshold_decides_is_found() -> None:
    with pytest.raises(AssertionError, match="intervals_decode_equal: of all tokens that the bundled pair drafts none"):
        check("score", "broken_scores:Zero")
