"""The judge reads logits in place or copies them, as the requests of a step and their drafts lie; D is the same."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from fsd_calib.vllm_plugin.draft_logits import DraftLogits
from fsd_calib.vllm_plugin.judge import Judge, Verification
from fsd_decoding.divergence import divergence

_LENGTH, _VOCABULARY = 5, 3000  # 10 rows of logits are copied or compared at a time
_DRAFTED = ["a", "b", "c", "d", "e", "f"]  # the order of the requests when they were drafted for


@pytest.mark.parametrize(
    ("requests", "counts"),
    [
        (_DRAFTED, [5] * 6),  # in place, two requests at a time
        (_DRAFTED[:1], [5]),
        (_DRAFTED[:3], [2] * 3),  # in place, shorter than the drafts
        (_DRAFTED[::-1], [5] * 6),  # in another order
        (_DRAFTED, [5, 0, 3, 5, 1, 0]),
        (["b", "new", "a"], [5, 0, 4]),
    ],
)
def test_divergences_are_those_of_each_requests_own_tokens(requests: Sequence[str], counts: Sequence[int]) -> None:
    random = torch.Generator().manual_seed(1)
    drafts = DraftLogits(8, _LENGTH, _VOCABULARY, torch.float32, torch.device("cpu"))
    drafted = torch.randn(len(_DRAFTED), _LENGTH, _VOCABULARY, generator=random)
    drafts.begin()
    for step in range(_LENGTH):
        drafts.add(drafted[:, step])
    drafts.end(_DRAFTED)
    logits = torch.randn(sum(counts) + len(counts), _VOCABULARY, generator=random)  # a bonus token behind each draft
    begins = [sum(counts[:i]) + i for i in range(len(counts))]
    rows = [begin + i for begin, count in zip(begins, counts, strict=True) for i in range(count)]
    thresholds = [0.1 * (i + 1) for i in range(len(requests))]

    judged = Judge(drafts, "js", None)(Verification(requests, counts, logits, torch.tensor(rows), None), thresholds)

    assert judged is not None
    own = [drafted[_DRAFTED.index(name), i] for name, count in zip(requests, counts, strict=True) for i in range(count)]
    expected = divergence("js", logits[rows].double(), torch.stack(own).double())
    torch.testing.assert_close(judged.divergences.double(), expected, rtol=1e-4, atol=1e-6)
    bounds = [t for t, count in zip(thresholds, counts, strict=True) for _ in range(count)]
    assert judged.thresholds.tolist() == bounds
    assert judged.fuzzy.tolist() == [d <= t for d, t in zip(judged.divergences.tolist(), bounds, strict=True)]
