"""Which lower bounds are shown: of what is certified the claim, and more where the outcomes show more.

The bound that holds given that a claim passed may be below it. Beside the claim it would look like a contradiction, so
the profile alone has it.
"""

from __future__ import annotations

from fsd_decoding.profile.certificate import Certificate


def shows_no_more(c: Certificate) -> bool:
    """Returns whether the claim passed, and the bound that holds given that it did is not above it."""
    low = c.lower_bound if c.acc == "retention" else c.accuracy_lower_bound
    return c.given_passing and low is not None and c.wanted is not None and low <= c.wanted


def bounds_to_show(c: Certificate) -> tuple[float | None, float | None]:
    """Returns lower bounds of retention and accuracy of what was tested."""
    low, accuracy_low = c.lower_bound, c.accuracy_lower_bound
    if not shows_no_more(c) or c.wanted is None:
        return low, accuracy_low
    return (c.wanted, accuracy_low) if c.acc == "retention" else (low, c.wanted)


def bound_to_show(c: Certificate, low: float | None, chosen: bool) -> float | None:
    """Returns the lower bound of a setting's retention; None: there is none, or it is below the claim.

    Args:
        low: that of the setting by itself.
        chosen: whether it is the certified one.
    """
    if chosen and low is not None:
        return bounds_to_show(c)[0]
    below = shows_no_more(c) and low is not None and c.wanted is not None and low <= c.wanted
    return None if below else low


def difference_to_show(c: Certificate) -> tuple[float, float] | None:
    """Returns the interval of the accuracy's difference from the target's, not below what the claim leaves."""
    if c.difference_interval is None or not shows_no_more(c) or c.acc != "retention" or c.wanted is None:
        return c.difference_interval
    low, high = c.difference_interval
    return max(low, (c.wanted - 1) * c.counts.right / c.counts.total), high
