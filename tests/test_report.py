"""The report: every number is the profile's, marked with its part, and no bound is rounded up."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fsd_calib.progress import Bars, Lines, Silent
from fsd_calib.report import print_report, usage, verdict
from profiles import UNCERTIFIED, profile

SPEED_MISSED = {**UNCERTIFIED, "certificate.wanted": None, "estimate": None, "speed.wanted": 90.0}


def printed(changes: dict[str, Any] | None = None, width: int = 80, path: Path | None = None) -> str:
    console = Console(width=width, file=io.StringIO(), force_terminal=False)
    print_report(profile(changes), path, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def row(text: str, label: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if line.strip().startswith(label)]
    return line.strip().removeprefix(label).split()


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize(
    ("changes", "label"), [({}, "fsd-coupled "), (UNCERTIFIED, "not certified "), (SPEED_MISSED, "lossless ")]
)
def test_table_fits_with_one_line_a_number(width: int, changes: dict[str, Any], label: str) -> None:
    text = printed(changes, width)
    assert max(map(len, text.splitlines())) <= width
    assert row(text, "target alone") == ["93.3%¹", "–", "–", "–", "20.0²"]
    assert row(text, "sd (lossless)") == ["93.3%¹", "100.0%¹", "–", "4.51¹", "51.0²"]
    (numbers,) = [line.split()[-5:] for line in text.splitlines() if line.strip().startswith(label) and "¹" in line]
    assert numbers == ["93.1%¹", "99.8%¹", "98.9%¹", "5.41¹", "61.5²"]


def test_marks_say_where_a_number_was_measured() -> None:
    text = printed()
    assert "¹ measured on the certification part: 700 problems" in text
    assert "² tokens a round over the median time of a round, of 50 tuning problems" in text


def test_certified_is_said_with_confidence_and_counts() -> None:
    said = verdict(profile())
    assert said.startswith("Certified at 95% confidence: fsd-coupled at T = 0.0625 (js, L = 5) keeps at least 98% of")
    assert "700 problems" in said
    assert "both right 650, lost 3, gained 2, both wrong 45." in said
    assert "lossless" not in said


def test_not_certified_names_the_lossless_rule_and_the_guess() -> None:
    said = verdict(profile(UNCERTIFIED))
    assert said.startswith("Not certified: at 95% confidence no threshold was shown to keep at least 99.5%")
    assert "run the lossless rule coupled" in said
    assert "The estimate is T = 0.0625: retention 99.8%, lower bound 98.9%." in said
    assert "both right 650" in said
    assert re.search(r"At these shares about [\d,]+ problems on the certification part would certify it", said)


def test_hopeless_wishes_are_called_so() -> None:
    said = verdict(profile(UNCERTIFIED | {"certificate.wanted": 1.1}))
    assert "At this retention no number of problems would certify it." in said


def test_a_wanted_speed_is_compared() -> None:
    reached = verdict(profile({"certificate.wanted": None, "speed.wanted": 60.0}))
    assert "keeps at least 98.9% of the target's accuracy" in reached
    assert "At least 60 tokens/s were asked for, reached: 61.5." in reached
    missed = verdict(profile(SPEED_MISSED))
    assert missed.startswith("Not certified")
    assert "At least 90 tokens/s were asked for, not reached: 61.5." in missed


def test_without_a_test_no_counts_are_said() -> None:
    nothing = {"both_right": 0, "lost": 0, "gained": 0, "both_wrong": 0, "problems": 0}
    untested: dict[str, Any] = {f"certificate.{key}": value for key, value in nothing.items()}
    untested |= {"certificate.retention": None, "certificate.lower_bound": None}
    said = verdict(profile(SPEED_MISSED | untested))
    assert "Nothing was decoded on the certification part." in said
    assert "both right" not in said


@pytest.mark.parametrize(("bound", "shown"), [(0.97999, "97.9%¹"), (0.98, "98.0%¹"), (0.983, "98.3%¹")])
def test_a_bound_is_never_rounded_up(bound: float, shown: str) -> None:
    text = printed({"certificate.lower_bound": bound, "certificate.wanted": None})
    assert shown in text
    assert f"keeps at least {shown[:-1]}" in " ".join(text.split())


def test_lines_to_copy_are_not_broken() -> None:
    path = Path("a rather long folder name that no table would leave in one line") / "profile.json"
    lines = printed(path=path).splitlines()
    assert f"fsd-generate --profile '{path}' 'your prompt'" in lines
    code = usage(profile(), path).split("\n\n")[1]
    assert set(code.splitlines()) <= set(lines)
    compile(code, "usage", "exec")


# Progress


def test_lines_say_start_progress_and_end() -> None:
    stream = io.StringIO()
    with Lines(stream, seconds=0.0).step("measuring the target", total=10) as advance:
        advance(4)
        advance(6)
    said = [re.sub(r"\d+(\.\d+)? s", "_ s", line) for line in stream.getvalue().splitlines()]
    assert said == [
        "measuring the target: 0 of 10",
        "measuring the target: 4 of 10, _ s",
        "measuring the target: 10 of 10, _ s",
        "measuring the target: done, _ s",
    ]


def test_lines_are_rare_and_a_broken_step_is_not_done() -> None:
    stream = io.StringIO()

    def broken() -> None:
        with Lines(stream).step("x", total=100) as advance:
            for _ in range(50):
                advance(1)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        broken()
    assert stream.getvalue() == "x: 0 of 100\n"


def test_bars_nest_and_can_be_used_again() -> None:
    console = Console(file=io.StringIO(), force_terminal=False, width=100)  # so only what stays is printed
    bars = Bars(console)
    for title in ("search", "speed"):
        with bars.step(title, total=2) as advance:
            with bars.step(f"{title} within", total=3) as advance_within:
                advance_within(3)
            advance(2)
    assert isinstance(console.file, io.StringIO)
    searched, timed = filter(None, console.file.getvalue().splitlines())
    assert searched.split()[0] == "search"
    assert timed.split()[0] == "speed"
    assert "2/2" in timed
    assert "within" not in searched + timed


def test_silent_is_a_progress_too(capsys: pytest.CaptureFixture[str]) -> None:
    with Silent().step("quiet", total=1) as advance:
        advance(1)
    captured = capsys.readouterr()
    assert captured.out + captured.err == ""
