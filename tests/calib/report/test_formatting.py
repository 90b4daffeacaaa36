"""Number formats: bounds are rounded to the side on which they claim less, whatever their size."""

from __future__ import annotations

import pytest

from fsd_common.formatting import at_least, at_most, confidence, parameters


@pytest.mark.parametrize(
    ("share", "least", "most"),
    [
        (0.0, "0%", "0%"),
        (-0.1, "0%", "0%"),
        (0.01251, "1.2%", "1.3%"),
        (0.25, "25%", "25%"),
        (0.1 + 0.2, "30%", "30%"),  # 0.30000000000000004
        (0.999, "99%", "100%"),
        (1.0, "100%", "100%"),
        (1.23e-300, "1.2e-298%", "1.3e-298%"),
        (5e-324, "4.94066e-322%", "4.94066e-322%"),  # the smallest float: no other has two digits there
    ],
)
def test_bounds_keep_two_digits(share: float, least: str, most: str) -> None:
    assert at_least(share) == least
    assert at_most(share) == most


def test_confidence_is_rounded_down() -> None:
    assert confidence(0.05) == "95%"
    assert confidence(0.03039635509270136) == "96.9%"
    assert confidence(5e-324) == "100%"


@pytest.mark.parametrize(
    ("count", "shown"), [(2_036_000, "2M"), (630_170_000, "630M"), (1_543_714_304, "1.5B"), (70_553_706_496, "71B")]
)
def test_sizes_of_models_have_two_digits(count: int, shown: str) -> None:
    assert parameters(count) == shown
