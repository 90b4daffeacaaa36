"""The shipped checks of stop policies find what they are there to find, and pass one that keeps its promises."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fsd_calib.testing import check
from support.own_code import on_path

pytestmark = pytest.mark.slow  # all of them decode

WRITTEN = """
import torch
from fsd_decoding.policies.stopping import StopPolicy

class Sure(StopPolicy):
    def goes_on(self, state):
        return state.logits[-1][:, 0].softmax(-1).amax(-1) > 0.5 if state.logits else state.drafting

    def withholds(self, state):
        return state.logits[-1][:, 0].softmax(-1).amax(-1) < 0.2

class ByThreshold(StopPolicy):
    reads_threshold = True
    def goes_on(self, state):
        return [row is not None and len(state.logits) < 1 + 8 * row.request.threshold for row in state.rows]

class Never(StopPolicy):
    def goes_on(self, state):
        return [False] * len(state.rows)

class OfOthers(Sure):
    def goes_on(self, state):
        return [sum(row is not None for row in state.rows) > 2 or not state.logits] * len(state.rows)

class OfToken(Sure):
    def withholds(self, state):
        place = (state.batch.lengths + len(state.logits) - 1)[:, None]
        return state.batch.tokens.gather(1, place)[:, 0] % 2 == 0

class SecretlyByThreshold(ByThreshold):
    reads_threshold = False
"""


@pytest.fixture(scope="module", autouse=True)
def broken() -> Iterator[None]:
    """A module with a stop policy for each thing that can be wrong."""
    with on_path(broken_stop_policies=WRITTEN):
        yield


@pytest.mark.parametrize("name", ["Sure", "ByThreshold"])
def test_a_policy_that_keeps_its_promises_passes(name: str) -> None:
    check("stop policy", f"broken_stop_policies:{name}")


FOUND = [
    ("Never", "texts_stay_the_targets: it ends every draft before its first token"),
    ("OfOthers", "batches_do_not_matter: text "),
    ("OfToken", "what_is_withheld_does_not_depend_on_the_token: withholds depends on the token that was drawn"),
    ("SecretlyByThreshold", "intervals_decode_equal: a text at T = "),
]


@pytest.mark.parametrize(("name", "message"), FOUND, ids=[name for name, _ in FOUND])
def test_a_broken_promise_is_found_and_said(name: str, message: str) -> None:
    with pytest.raises(AssertionError) as caught:
        check("stop policy", f"broken_stop_policies:{name}")
    assert str(caught.value).startswith(f"stop policy 'broken_stop_policies:{name}', ")
    assert message in str(caught.value)
