"""Tables of the curve: a bounded front, and the nondominated points of a measured one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fsd_calib.report.tables import nondominated
from fsd_decoding.profile.fields import CurvePoint
from support.calibration.profiles import FRONT, values
from support.calibration.reports import one_line, printed


def test_a_front_is_shown_with_its_bounds() -> None:
    text = printed(FRONT)
    assert "hold simultaneously at 95% confidence" in one_line(text)
    lines = [line.split() for line in text.splitlines() if line.strip().startswith("fsd-coupled js")]
    assert [(line[3], line[5], line[6], line[8]) for line in lines] == [
        ("0.03", "100.0%", "98.5%", "57.0"),
        ("0.0625", "99.0%", "97.0%", "61.5"),
        ("0.25", "90.0%", "86.0%", "70.0"),
    ]
    measured = printed({**FRONT, "curve": values()["curve"][:3]})
    assert "hold simultaneously" not in one_line(measured)
    assert "measured points that no other beats" in measured


points = st.lists(
    st.tuples(st.sampled_from([0.9, 0.95, 0.98, 1.0]), st.sampled_from([None, 40.0, 50.0, 60.0])), max_size=8
)


@given(points)
def test_what_is_left_is_what_nothing_beats(made: list[tuple[float, float | None]]) -> None:
    base = values()["curve"][1]
    curve = [CurvePoint.model_validate(base | {"retention": r, "forecast": s}) for r, s in made]
    kept = {(p.retention, p.forecast) for p in nondominated(curve)}
    timed = {(r, s) for r, s in made if s is not None}
    assert kept == {(r, s) for r, s in timed if not any((a, b) != (r, s) and a >= r and b >= s for a, b in timed)}
