"""Which drafts `--draft`, `--head` and `--drafter` ask for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from fsd_calib import Eagle, NGram
from fsd_calib.cli.drafters import Drafters
from fsd_data import head_path, pair_paths
from support.messages import usage_error

SMALL, HEAD = str(pair_paths()[1]), Eagle(str(head_path()))


@pytest.mark.parametrize(
    ("models", "heads", "named", "drafts"),
    [
        ([], [], [], [SMALL]),
        (["a", "a"], [], [], ["a"]),
        ([], ["h"], [], [Eagle("h")]),
        (["a"], ["h", "i"], [], ["a", Eagle("h"), Eagle("i")]),
        ([], [], ["ngram"], [NGram()]),
        ([], [], ["ngram", "model"], [SMALL, NGram()]),
        ([], [], ["eagle"], [HEAD]),
        ([], [], ["auto"], [SMALL, HEAD, NGram()]),
        (["a"], ["h"], ["auto"], ["a", Eagle("h"), NGram()]),
    ],
)
def test_drafts_of_the_bundled_target(
    models: Sequence[str], heads: Sequence[str], named: Sequence[str], drafts: list[Any]
) -> None:
    assert Drafters(models, heads, named).with_target("arithmetic", None)[1] == drafts


def test_the_bundled_head_is_for_its_target_alone() -> None:
    assert Drafters(["a"], [], ["auto"]).with_target("arithmetic", "mine") == ("mine", ["a", NGram()])
    message = usage_error(lambda: Drafters([], [], ["eagle"]).with_target("arithmetic", "mine"))
    assert message == "--drafter eagle needs a head of mine; give --head, or train one with fsd-train-eagle"


@pytest.mark.parametrize(
    ("models", "heads", "named", "message"),
    [
        ([], [], ["tree"], "--drafter is 'tree'; it must be one of model, eagle, ngram, auto"),
        ([], [], ["auto", "model"], "--drafter is 'auto,model'; auto is all of them, give it alone"),
        (["a"], [], ["eagle"], "--draft and --drafter eagle are both given, which leaves model out"),
        ([], ["h"], ["model", "ngram"], "--head and --drafter model,ngram are both given, which leaves eagle out"),
    ],
)
def test_contradictions_are_refused(
    models: Sequence[str], heads: Sequence[str], named: Sequence[str], message: str
) -> None:
    assert usage_error(lambda: Drafters(models, heads, named)).startswith(message)
