"""The report: every number is the profile's, marked with its part, and no bound is rounded up."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from fsd_calib.progress import Bars, Lines, Silent
from fsd_calib.report.console import print_details, print_report, usage
from fsd_calib.report.curve import nondominated
from fsd_calib.report.verdict import verdict
from fsd_decoding.profile.curve import CurvePoint
from support.profiles import FRONT, NOT_FASTER, SD_SUFFICES, TOO_SLOW, UNCERTIFIED, UNTESTED, profile, values

COUNTS = ("both_right", "lost", "gained", "both_wrong")
BESIDE: dict[str, Any] = {
    "certificate.harm": 3 / 653, "certificate.harm_upper_bound": 0.01251, "certificate.difference": -1 / 700,
    "certificate.difference_interval": [-0.0084, 0.0056],
}  # fmt: skip
OUTCOMES: tuple[dict[str, Any], ...] = ({}, BESIDE, UNCERTIFIED, TOO_SLOW, SD_SUFFICES, NOT_FASTER, UNTESTED, FRONT)


def one(text: str) -> str:
    """In one line."""
    return " ".join(text.split())


def text_of(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def console(width: int = 80) -> Console:
    return Console(width=width, file=io.StringIO(), force_terminal=False)


def printed(changes: dict[str, Any] | None = None, width: int = 80, path: Path | None = None) -> str:
    print_report(profile(changes), path, paper := console(width))
    return text_of(paper)


def printed_details(changes: dict[str, Any]) -> str:
    print_details(profile(changes), paper := console())
    return " ".join(text_of(paper).split())


def row(text: str, label: str) -> tuple[list[str], str]:
    """The numbers of a row of the summary, and the line below it, where bounds stand."""
    lines = text.splitlines()
    (at,) = [i for i, line in enumerate(lines) if line.strip().startswith(label) and "²" in line]
    return lines[at].strip().removeprefix(label).split(), " ".join(lines[at + 1].split())


# The summary


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("changes", OUTCOMES)
def test_everything_fits(width: int, changes: dict[str, Any]) -> None:
    print_details(profile(changes), paper := console(width))
    assert max(map(len, (printed(changes, width) + text_of(paper)).splitlines())) <= width


@pytest.mark.parametrize(
    ("changes", "label", "below"),
    [
        ({}, "fsd-coupled", "T = 0.0625, L = 5"),
        (UNCERTIFIED, "not certified", "T = 0.0625, L = 5"),
        (TOO_SLOW, "lossless", "(coupled), L = 4"),
    ],
)
def test_summary_has_a_number_a_cell_and_its_bound_below(changes: dict[str, Any], label: str, below: str) -> None:
    text = printed(changes)
    assert row(text, "target alone") == (["93.3%¹", "–", "–", "20.0²"], "19.5–20.5")
    assert row(text, "sd (lossless)") == (["93.3%¹", "100.0%¹", "4.51¹", "51.0²"], "L = 4 50.1–51.9")
    assert row(text, label) == (["93.1%¹", "99.8%¹", "5.41¹", "61.5²"], f"{below} ≥ 91.1% ≥ 98.9% 60.2–62.8")


def test_marks_say_where_a_number_was_measured() -> None:
    text = printed()
    assert "¹ measured on the certification part: 700 problems, unseen" in text
    assert "² on 50 tuning problems, each decoded in every way in turn; interval at 95% within this run" in one(text)
    assert "≥ lower bound at 96.9% confidence, by itself and not corrected for the choice" in text
    assert "interval" not in printed({"speed.intervals": None})


def test_without_a_test_numbers_are_the_tuning_parts() -> None:
    text = printed(UNTESTED)
    assert "¹ measured on the tuning part: 300 problems" in text
    assert row(text, "fsd-coupled")[0] == ["93.1%¹", "99.0%¹", "5.41¹", "61.5²"]
    assert "≥" not in text


def test_sd_is_shown_at_its_own_draft_length() -> None:
    own = {**values()["curve"][3], "draft_length": 4, "accuracy": 0.9}
    assert row(printed({"curve": [*values()["curve"], own]}), "sd (lossless)")[0][0] == "90.0%¹"


# How speeds were timed

SINGLE: dict[str, Any] = {
    "target": 1020.25, "sd": 1051.0, "chosen": 1262.5, "timed": 25,
    "intervals": {"target": [1019.5, 1020.5], "sd": [1050.1, 1051.9], "chosen": [1260.2, 1262.8],
                  "over_sd": [1.19, 1.25], "over_target": [1.2, 1.3], "confidence": 0.95},
}  # fmt: skip


def test_speeds_over_processes_say_so() -> None:
    careful = {"speed.processes": 5, "speed.part": "certification"}
    text = one(printed(careful))
    assert "² on 50 certification problems, each decoded in every way in turn, in each of 5 fresh processes;" in text
    assert "; interval at 95% over them" in text
    assert "1.21x (1.18–1.23 over 5 fresh processes) its tokens/s" in text
    assert "this run" not in text


@pytest.mark.parametrize("outcome", [{}, NOT_FASTER, UNCERTIFIED])
def test_what_was_not_timed_is_called_a_forecast(outcome: dict[str, Any]) -> None:
    text = one(printed({**outcome, "speed.timed": 0, "speed.intervals": None}))
    assert "² forecast from rounds decoded on tuning problems and what a round costs; no setting was timed" in text
    assert "this run" not in text
    assert ("by the cost model's forecast 1.21x its tokens/s" in text) == (outcome == {})
    assert ("plain sd, which is forecast to make 51.0 tokens/s" in text) == (outcome == NOT_FASTER)


def test_a_busy_machine_is_repeated() -> None:
    said = "the machine was busy as timing began (load 5.3 on 2 cores)"
    assert said in one(printed({"speed.load": 5.26, "speed.cores": 2}))
    assert "busy" not in printed({"speed.load": 2.0, "speed.cores": 2})
    assert "busy" not in printed()


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("changes", OUTCOMES)
def test_speeds_of_one_stream_stand_beside_those_of_several(width: int, changes: dict[str, Any]) -> None:
    text = printed({**changes, "speed.batch": 16, "speed.single": SINGLE}, width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    assert row(text, "sd (lossless)")[0][-2:] == ["51.0²", "1051.0²"]
    assert row(text, "sd (lossless)")[1] == "L = 4 50.1–51.9 1050.1–1051.9"
    assert "² on 50 tuning problems at batch 16 and 25 at batch 1, each decoded in every way in turn" in one(text)
    heading = text[: text.index("target alone")]
    assert re.search("at batch 16 +at batch 1 ", heading)
    gain = "1.20x (1.19–1.25) its tokens/s and 1.24x (1.20–1.30) those of the target alone."
    assert (f"; with one stream {gain}" in one(text)) == (profile(changes).threshold is not None)


FORECAST = {"speed.forecast": {"target": 1020.4, "sd": 1052.25, "chosen": 1063.5}}


def test_the_forecast_stands_beside_what_the_clock_said() -> None:
    text = printed(FORECAST, 80)
    assert row(text, "sd (lossless)")[0][-2:] == ["51.0²", "1052.2³"]
    assert row(text, "fsd-coupled")[0][-2:] == ["61.5²", "1063.5³"]
    assert "³" not in printed({**FORECAST, "speed.timed": 0, "speed.intervals": None})  # no clock said anything


@pytest.mark.parametrize("several", [{}, {"speed.batch": 16, "speed.single": SINGLE}])
def test_the_forecast_is_named_explained_and_fits(several: dict[str, Any]) -> None:
    text = printed(FORECAST | several, 80)
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    assert "forecast" in text[: text.index("target alone")]
    assert {"1020.4³", "1052.2³", "1063.5³"} < set(text.split())
    assert "³ tokens/s by the cost model: the rounds counted on tuning problems, and what a round costs" in one(text)


# The verdict


def test_certified_is_said_with_confidence_counts_and_both_bounds() -> None:
    said = verdict(profile())
    assert said.startswith(
        "Certified at 95% confidence: fsd-coupled at T = 0.0625 (js, L = 5) keeps at least 98% of the target's "
        "accuracy on problems like these."
    )
    assert "1.21x (1.18–1.23 within this run) its tokens/s and 3.08x (2.98–3.17) those of the target alone." in said
    assert "(700 problems that the search never saw): both right 650, lost 3, gained 2, both wrong 45." in said
    assert "retention 99.8% (at least 98.9%) and accuracy 93.1% (at least 91.1%)" in said
    assert "Attempt 1 to certify on these problems, tested at level 0.0304." in said
    assert (
        "changed 1 of 700 texts and flipped 0 outcomes, so of all outcomes it flips at most 0.43% (95% confidence)."
        in said
    )
    assert "lossless rule coupled" not in said


def test_what_is_not_known_is_not_said() -> None:
    unknown = {"certificate.attempt": None, "certificate.accuracy": None, "numerical_churn": None,
               "speed.intervals": None, "effort": None}  # fmt: skip
    said = verdict(profile(unknown))
    assert "Attempt" not in said
    assert "Rounding" not in said
    assert "That is retention 99.8% (at least 98.9%)." in said
    assert "1.21x its tokens/s and" in said
    assert "decoded" not in printed(unknown).replace("each decoded", "")


def test_harm_and_difference_stand_beside_the_number() -> None:
    said = verdict(profile(BESIDE))
    assert (
        "Of the target's right answers 0.5% were lost (at most 1.3%); accuracy changed by -0.1 percentage points "
        "(-0.9 to +0.6 at 95% confidence)."
    ) in said
    shown = printed_details(BESIDE)
    assert "0.5% of the target's right answers lost, at most 1.3%" in shown
    assert "-0.1 percentage points of accuracy, -0.9 to +0.6" in shown
    early = verdict(profile(BESIDE | {"certificate.difference_interval": None}))
    assert "changed by -0.1 percentage points. " in early


def test_a_bound_of_what_was_chosen_says_what_it_leaves_out() -> None:
    caveat = "Each bound (at least, at most) holds by itself at 96.9% confidence, not corrected for the choice among"
    assert f"{caveat} the 4 settings that were frozen." in verdict(profile({"certificate.frozen": 4}))
    assert "the several settings" in verdict(profile())  # of a file that does not say how many
    for plain in ({"certificate.frozen": 1}, UNCERTIFIED | {"certificate.frozen": 4}):
        assert "not corrected" not in printed(plain)  # no other could have been chosen; the first one failed
        assert "(at least 98.9%)" in verdict(profile(plain))


def test_the_certificate_is_of_one_task_and_grader() -> None:
    scope = "one task and one grader, on problems like these; they say nothing of others"
    for tested in ({}, UNCERTIFIED, FRONT):
        assert scope in verdict(profile(tested))
    assert "one grader, on these very problems" in verdict(profile({"certificate.guarantee": "dataset"}))
    assert "one task" not in verdict(profile(UNTESTED))


def test_texts_cut_short_are_told_of() -> None:
    cut = {"truncation": {"max_new_tokens": 256, "texts": 700, "target": 0, "chosen": 7}}
    assert (
        "The limit of 256 new tokens was reached by 0.0% of the target's texts and 1.0% of the fuzzy setting's, 700 "
        "each: these may be cut short."
    ) in verdict(profile(cut))
    assert "1.0% of sd's" in verdict(profile(cut | NOT_FASTER))
    assert "limit" not in verdict(profile(cut | {"truncation.chosen": 0}))


def test_a_setting_that_was_tested_and_is_no_faster_keeps_its_numbers() -> None:
    made = NOT_FASTER | {"estimate": UNCERTIFIED["estimate"], "speed.intervals.over_sd": [0.97, 1.04]}
    said = verdict(profile(made))
    assert said.startswith(
        "fsd-coupled at T = 0.0625 (js, L = 5) was tested and keeps at least 98% of the target's accuracy on problems "
        "like these (95% confidence), but was not shown to be faster than plain sd: it makes 1.21x (0.97–1.04) the "
        "tokens/s of sd, which makes 51.0 (L = 4). Nothing need be lost. Decoders that follow this profile run sd."
    )
    assert row(printed(made), "not shown faster")[0] == ["93.1%¹", "99.8%¹", "5.41¹", "61.5²"]


def test_what_is_chosen_for_its_accuracy_may_be_no_faster() -> None:
    assert "not shown to be faster" not in verdict(profile())
    slow = {"speed.intervals.over_sd": [0.97, 1.23]}
    assert "It was not shown to be faster than sd." in verdict(profile(slow))


def test_a_certificate_of_lossless_decoding_is_called_that() -> None:
    own = {"certificate.lossless": True, "certificate.acc": "absolute", "certificate.wanted": 0.9,
           "certificate.both_right": 652, "certificate.lost": 0, "certificate.gained": 0,
           "certificate.both_wrong": 48, "certificate.retention": 1.0}  # fmt: skip
    said = verdict(profile(NOT_FASTER | own))
    assert said.startswith("At 95% confidence lossless decoding solves at least 90% on problems like these. No fuzzy")
    assert "the target alone solved 93.1% (at least 91.1%)" in said
    assert "both right" not in said
    numbers, below = row(printed(NOT_FASTER | own), "target alone")
    assert (numbers[0], below.split()[1]) == ("93.1%¹", "91.1%")
    failed = verdict(profile(UNCERTIFIED | own | {"estimate": None, "certificate.wanted": 0.92}))
    assert "not even the target alone, and so no lossless decoding, was shown to solve at least 92%" in failed


def test_a_front_is_of_the_part_its_target_was_decoded_on() -> None:
    none: dict[str, Any] = {f"certificate.{name}": 0 for name in ("problems", *COUNTS)}
    none |= {f"certificate.{name}": None for name in ("retention", "lower_bound", "accuracy", "accuracy_lower_bound")}
    alone = {**values()["curve"][3], "rule": "target", "draft_length": 1, "problems": 650, "accuracy": 0.925}
    text = printed(FRONT | none | {"curve": [*FRONT["curve"], alone]})
    assert "¹ measured on the certification part: 650 problems, unseen by the search (sd on 700)" in " ".join(
        text.split()
    )
    assert row(text, "target alone")[0][0] == "92.5%¹"


def test_guarantees_and_absolute_accuracy_are_named() -> None:
    said = verdict(profile({"certificate.guarantee": "dataset"}))
    assert "98% of the target's accuracy on these very problems." in said
    absolute = {"certificate.acc": "absolute", "certificate.wanted": 0.91}
    assert "solves at least 91% on problems like these" in verdict(profile(absolute))
    missed = verdict(profile(UNCERTIFIED | {"certificate.acc": "absolute"}))
    assert "no threshold was shown to solve at least 99.5%." in missed
    seeds = {"certificate.seeds": 2, "certificate.problems": 350}
    assert "(350 problems that the search never saw, 2 seeds each)" in verdict(profile(seeds))


def test_not_certified_names_the_lossless_rule_the_guess_and_the_frontier() -> None:
    said = verdict(profile(UNCERTIFIED))
    assert said.startswith("Not certified: at 95% confidence no threshold was shown to keep at least 99.5% of the")
    assert "run the lossless rule coupled" in said
    assert "The estimate is T = 0.0625: retention 99.8%, lower bound 98.9%." in said
    assert re.search(r"At these shares about [\d,]+ problems on the certification part would certify it", said)
    text = printed(UNCERTIFIED)
    assert "measured: nothing else is both faster and keeps more" in text
    assert "measured: nothing" not in printed()


def test_a_later_attempt_needs_more_problems() -> None:
    needed = []
    for attempt in (1, 2):
        delta = {"certificate.attempt": attempt, "certificate.delta": 0.007}
        said = verdict(profile(UNCERTIFIED | delta))
        found = re.search(r"about ([\d,]+) problems", said)
        assert found is not None
        needed.append(int(found[1].replace(",", "")))
    assert needed[0] < needed[1]


def test_hopeless_wishes_are_called_so() -> None:
    said = verdict(profile(UNCERTIFIED | {"certificate.wanted": 1.1}))
    assert "At this retention no number of problems would certify it." in said
    absolute = UNCERTIFIED | {"certificate.acc": "absolute", "certificate.wanted": 0.94}
    assert "At this accuracy no number of problems would certify it." in verdict(profile(absolute))
    absolute["certificate.wanted"] = 0.92
    assert re.search(r"At these shares about [\d,]+ problems", verdict(profile(absolute)))


def test_a_wanted_speed_is_compared() -> None:
    reached = verdict(profile({"certificate.wanted": None, "speed.wanted": 60.0}))
    assert "keeps at least 98.9% of the target's accuracy" in reached
    assert "At least 60 tokens/s were asked for, reached: 61.5 (60.2–62.8 within this run)." in reached
    missed = verdict(profile(TOO_SLOW))
    assert missed.startswith("Too slow: what was chosen by its forecast is slower than was asked when it is")
    assert "At least 90 tokens/s were asked for, not reached: 61.5 (60.2–62.8 within this run)." in missed
    assert "nothing else is both faster" in printed(TOO_SLOW)


def test_where_sd_suffices_nothing_need_be_lost() -> None:
    said = verdict(profile(SD_SUFFICES))
    assert said.startswith("Plain sd already makes 51.0 tokens/s (L = 4): nothing need be lost.")
    assert "At least 50 tokens/s were asked for, reached: 51.0 (50.1–51.9 within this run)." in said
    other = verdict(profile(NOT_FASTER))
    assert other.startswith(
        "No fuzzy setting that keeps the accuracy asked for was found to be faster than plain sd, which makes 51.0"
    )
    assert "run sd" in other


def test_what_was_not_tested_is_called_untested() -> None:
    said = verdict(profile(UNTESTED))
    assert said.startswith("Untested: fsd-coupled at T = 0.0625")
    assert "Certified" not in said
    assert "certification part" not in said


def test_a_front_is_shown_with_its_bounds() -> None:
    text = printed(FRONT)
    assert "hold all at once at 95% confidence" in " ".join(text.split())
    lines = [line.split() for line in text.splitlines() if line.strip().startswith("fsd-coupled js")]
    assert [(line[3], line[5], line[6], line[8]) for line in lines] == [
        ("0.03", "100.0%", "98.5%", "57.0"),
        ("0.0625", "99.0%", "97.0%", "61.5"),
        ("0.25", "90.0%", "86.0%", "70.0"),
    ]
    measured = printed({**FRONT, "curve": values()["curve"][:3]})
    assert "hold all at once" not in " ".join(measured.split())
    assert "nothing else is both faster" in measured


def test_without_decodings_no_counts_are_said() -> None:
    untested: dict[str, Any] = {
        f"certificate.{name}": 0 for name in ("problems", "both_right", "lost", "gained", "both_wrong")
    }
    untested |= {f"certificate.{name}": None for name in ("retention", "lower_bound", "accuracy", "attempt")}
    said = verdict(profile(TOO_SLOW | untested))
    assert "Nothing was decoded on the certification part: nothing found was worth an attempt." in said
    assert "both right" not in said


@pytest.mark.parametrize(("bound", "shown"), [(0.97999, "97.9%"), (0.98, "98.0%"), (0.983, "98.3%")])
def test_a_bound_is_never_rounded_up(bound: float, shown: str) -> None:
    text = printed({"certificate.lower_bound": bound, "certificate.wanted": None})
    assert f"≥ {shown}" in text
    assert f"keeps at least {shown}" in " ".join(text.split())


def test_effort_is_one_line() -> None:
    assert "decoded 3,412 problems (0.21 M tokens), reused 9,120 decodings" in printed().splitlines()


def test_lines_to_copy_are_not_broken() -> None:
    path = Path("a rather long folder name that no table would leave in one line") / "profile.json"
    lines = printed(path=path).splitlines()
    assert f"fsd-generate --profile '{path}' 'your prompt'" in lines
    code = usage(profile(), path).split("\n\n")[1]
    assert set(code.splitlines()) <= set(lines)
    compile(code, "usage", "exec")


# The curve


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
