"""Loops at the ends of texts: what is one, and what is not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsd_calib.measuring.measurement import COPIES, LENGTH, ends_in_loop

WORDS = st.builds(
    "{}{}{}".format, st.text("abc \n", max_size=20), st.sampled_from("abc"), st.text("abc \n", max_size=19)
)


@pytest.mark.slow
@given(before=st.text(max_size=80), passage=WORDS, cut=st.integers(0, 39), more=st.integers(0, 4))
def test_a_passage_three_times_over_is_a_loop_wherever_it_is_cut(
    before: str, passage: str, cut: int, more: int
) -> None:
    copies = COPIES + more + -(-LENGTH // len(passage))
    text = before + passage * copies + passage[: cut % len(passage)]
    assert ends_in_loop(text)
    assert ends_in_loop(text + " \n")


@given(text=st.text("ab", max_size=130))
def test_a_loop_is_found_exactly_where_the_definition_has_one(text: str) -> None:
    defined = any(
        copies * length >= LENGTH and text.endswith(text[-length:] * copies)
        for length in range(1, len(text) // COPIES + 1)
        for copies in range(COPIES, len(text) // length + 1)
    )
    found = ends_in_loop(text)
    assert found or not defined
    if found:  # whole copies may fall short of the length by less than one, which is then cut off
        spans = [max(COPIES * length, LENGTH) for length in range(1, len(text) // COPIES + 1)]
        assert any(
            span <= len(text) and all(text[-i] == text[-i - length] for i in range(1, span - length + 1))
            for length, span in enumerate(spans, 1)
        )


@pytest.mark.parametrize(
    "text",
    ["", "no", "The answer is 42.", "-" * (LENGTH - 1), "ha " * 3, "a b c d e f g " * 2 + "a b c d e f",
     "She sells sea shells by the sea shore, and the shells that she sells are sea shells, I am sure of that."],
)  # fmt: skip
def test_short_or_twofold_repetition_is_no_loop(text: str) -> None:
    assert not ends_in_loop(text)
    assert not ends_in_loop("-" * LENGTH + text + "?")
