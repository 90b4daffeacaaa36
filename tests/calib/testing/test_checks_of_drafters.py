"""The shipped checks of drafters find what they are there to find; `test_drafters.py` runs them on our own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fsd_calib.testing import check
from support.own_code import on_path
from support.paths import EXAMPLES

WRITTEN = """
import torch
from new_drafter import Lookup

class Broken(Lookup):
    round = 0
    def logits(self, tokens, lengths, step, kv_length):
        Broken.round += 1
        return self.changed(super().logits(tokens, lengths, step, kv_length), tokens, lengths, step)

class Flat(Broken):
    def changed(self, logits, tokens, lengths, step):
        return logits.squeeze(1)

class Short(Broken):
    def changed(self, logits, tokens, lengths, step):
        return logits.half()

class Impossible(Broken):
    def changed(self, logits, tokens, lengths, step):
        return logits.masked_fill(logits < -4, float("-inf"))

class Counting(Broken):
    def changed(self, logits, tokens, lengths, step):
        logits[..., Broken.round % 7] += 1
        return logits

class OfOthers(Broken):
    def changed(self, logits, tokens, lengths, step):
        return logits + logits[:1]

class Beyond(Broken):
    def changed(self, logits, tokens, lengths, step):
        return logits.scatter_add(2, tokens[:, -1:, None], torch.ones(len(tokens), 1, 1))

class Keeping(Broken):
    def drafter(self, rows, slots, vocabulary):
        made = super().drafter(rows, slots, vocabulary)
        made.first = [None] * rows
        return made
    def changed(self, logits, tokens, lengths, step):
        for row, length in enumerate(lengths.tolist()):
            self.first[row] = self.read(row, tokens, length)
            logits[row, 0, self.first[row]] += 1
        return logits
    def keep(self, rows):
        self.first = [self.first[row] for row in rows]

class Longest(Keeping):  # what it has read it does not forget
    def read(self, row, tokens, length):
        return max(self.first[row] or 0, length % 24)

class Prompted(Keeping):  # a new prompt does not make it forget the first token of the text before
    def read(self, row, tokens, length):
        return int(tokens[row, 0]) if self.first[row] is None else self.first[row]
    def prefill(self, rows, tokens, until, start=0):
        pass

"""


@pytest.fixture(scope="module", autouse=True)
def broken() -> Iterator[None]:
    """A module with a drafter for each thing that can be wrong."""
    with on_path(EXAMPLES, broken_drafters=WRITTEN):
        yield


FOUND = [
    ("Flat", "every_step_has_a_distribution: logits have the shape (4, 24); it must be (4, 1, 24)"),
    ("Short", "every_step_has_a_distribution: logits are torch.float16; give fp32 or fp64"),
    ("Impossible", "every_step_has_a_distribution: logits are not all finite"),
    ("Counting", "it_is_deterministic: a round that is drafted twice has other logits"),
    ("OfOthers", "rows_do_not_matter_to_each_other: row 2 by itself has other logits"),
    ("Beyond", "only_the_text_before_matters: what lies beyond the text changes the logits of step 0"),
    ("Longest", "rejected_tokens_are_forgotten: after 5 rounds logits are others"),
    ("Prompted", "a_refilled_row_forgets_its_text: after a new prompt logits are others"),
]


@pytest.mark.parametrize(("name", "message"), FOUND, ids=[name for name, _ in FOUND])
def test_a_broken_promise_is_found_and_said(name: str, message: str) -> None:
    with pytest.raises(AssertionError) as caught:
        check("drafter", f"broken_drafters:{name}")
    assert str(caught.value).startswith(f"drafter 'broken_drafters:{name}', ")
    assert message in str(caught.value)


@pytest.mark.slow
def test_a_drafter_that_keeps_its_promises_passes() -> None:
    check("drafter", "new_drafter:Lookup")
