"""The examples run as they stand, small. What they print is theirs."""

from __future__ import annotations

import runpy

import pytest

from conformance.threshold_policies import EveryScalePolicy
from support.paths import EXAMPLES

EXAMPLE = EXAMPLES / "own_policy.py"
SHOWN = runpy.run_path(str(EXAMPLE))


@pytest.mark.parametrize("make", [SHOWN["Unsure"]], ids=["unsure"])
class TestTheOwnPolicy(EveryScalePolicy):
    """It keeps what scale policies promise."""


def test_the_own_policy_is_measured_beside_a_constant(capsys: pytest.CaptureFixture[str]) -> None:
    SHOWN["main"](4)
    constant, own = capsys.readouterr().out.splitlines()
    assert constant.startswith("T = 0.1: ")
    assert own.startswith("Unsure: ")
    assert all("tokens a round" in line and "of 4 right" in line for line in (constant, own))
