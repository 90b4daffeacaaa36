"""Walked rounds in the cache: read instead of decoded, and decoded again where they are damaged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fsd_calib.calibration.draft_forecasts import walked_rounds
from fsd_calib.engines.base import DecodingRequest, KeyedPrompt, Limits
from fsd_calib.engines.own import OwnEngine
from fsd_collectors.replay.walks import Walked
from fsd_decoding.profile.setting import Setting
from fsd_decoding.tree_shape import TreeShape
from support.models.tiny_pair import tiny_decoder

NAMES = ("js", "tv")


class Counting(OwnEngine):
    """Counts how often it decodes."""

    walks = 0

    def walked(self, request: DecodingRequest, scores: object) -> Walked:
        self.walks += 1
        return super().walked(request, NAMES)


@pytest.fixture
def engine() -> Counting:
    return Counting(tiny_decoder(), Limits(8, ()))


def request(tree: TreeShape | None = None, length: int = 3, prompt: str = "w9") -> DecodingRequest:
    prompts = [KeyedPrompt(0, "w5"), KeyedPrompt(1, prompt)]
    return DecodingRequest(Setting("coupled", "js", length, tree=tree), 0, prompts, 2)


def same(one: Walked, other: Walked) -> bool:
    arrays = [[each.walks.exact, each.walks.drafted, *map(each.walks.scores.get, NAMES)] for each in (one, other)]
    facts = [(each.tokens, each.rounds, each.walks.chains) for each in (one, other)]
    return facts[0] == facts[1] and all(map(np.array_equal, *arrays))


@pytest.mark.parametrize("tree", [None, TreeShape(2, 6)], ids=str)
def test_rounds_are_decoded_once(tree: TreeShape | None, engine: Counting, tmp_path: Path) -> None:
    first, again = (walked_rounds(engine, request(tree), NAMES, tmp_path) for _ in range(2))
    assert engine.walks == 1
    assert same(first, again)
    assert (tmp_path / "walks").stat().st_mode & 0o77 == 0


@pytest.mark.parametrize("other", [request(TreeShape(2, 6)), request(length=4), request(prompt="w8")], ids=range(3))
def test_other_rounds_are_told_apart(other: DecodingRequest, engine: Counting, tmp_path: Path) -> None:
    walked_rounds(engine, request(), NAMES, tmp_path)
    assert same(walked_rounds(engine, other, NAMES, tmp_path), engine.walked(other, NAMES))
    assert engine.walks == 3


def test_without_a_cache_nothing_is_kept(engine: Counting) -> None:
    for _ in range(2):
        walked_rounds(engine, request(), NAMES, None)
    assert engine.walks == 2


@pytest.mark.parametrize("keep", [0, 40, -30])
def test_damaged_rounds_are_decoded_again(keep: int, engine: Counting, tmp_path: Path) -> None:
    first = walked_rounds(engine, request(), NAMES, tmp_path)
    (file,) = (tmp_path / "walks").iterdir()
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.warns(UserWarning, match=r"walked rounds .* are damaged \(.*\); they are decoded again"):
        again = walked_rounds(engine, request(), NAMES, tmp_path)
    assert same(first, again)
    assert same(first, walked_rounds(engine, request(), NAMES, tmp_path))
    assert engine.walks == 2
