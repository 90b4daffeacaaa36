"""The verdict: what it says of each outcome, with which evidence, and what it does not say."""

from __future__ import annotations

import re
from typing import Any

import pytest

from fsd_calib.report.rows import rows
from fsd_calib.report.run_folder import Run
from fsd_calib.report.verdict import verdict
from support.calibration.profiles import (
    ANSWERS,
    FAST_ENOUGH,
    FRONT,
    LOSSLESS,
    NO_COUNTS,
    NOT_TIMED,
    SLOWER,
    TOO_SLOW,
    UNCERTIFIED,
    UNKNOWN,
    UNTESTED,
    VALUES,
    at,
    profile,
)
from support.calibration.reports import HARM, one_line, printed, printed_details, row


def test_certified_is_said_with_confidence_counts_and_both_bounds() -> None:
    said = verdict(profile())
    assert said.startswith(
        "Certified at 95% confidence: fsd-coupled at T = 0.0625 (js, L = 5) keeps at least 98% of the target's "
        "accuracy on problems like these."
    )
    speeds = (
        "1.21x (1.18–1.23 within this run) the tokens/s of sd and 3.08x (2.98–3.17) the tokens/s of the target alone."
    )
    assert speeds in said
    assert "(700 problems that the search never saw): both right 650, lost 3, gained 2, both wrong 45." in said
    assert "a retention of 99.8% (at least 98.9%) and an accuracy of 93.1% (at least 91.1%)" in said
    assert (
        "This is certificate 1 asked for this claim of this target. It is attempt 1 at this claim or on these "
        "problems, tested at level 0.045. The ledger is new: attempts elsewhere before are not known."
    ) in said
    assert (
        "changed 1 of 700 texts and flipped 0 outcomes, so it flips at most 0.43% of outcomes (95% confidence)." in said
    )
    assert "lossless rule coupled" not in said


def test_a_ledger_that_knows_another_target_is_not_new() -> None:
    said = verdict(profile({"certificate.history.first": False}))
    assert "The ledger has 1 attempt of this target since 2026-11-28; others elsewhere are not known." in said
    assert "The ledger is new" not in said


def test_what_is_not_known_is_not_said() -> None:
    unknown = UNKNOWN | {"certificate.attempt": None, "certificate.accuracy": None, "numerical_churn": None,
               "speed.intervals": None, "effort": None}  # fmt: skip
    said = verdict(profile(unknown))
    assert "It is attempt" not in said
    assert "Rounding" not in said
    assert "That is a retention of 99.8% (at least 98.9%)." in said
    assert "1.21x the tokens/s of sd and" in said
    assert "decoded" not in printed(unknown).replace("each decoded", "")


def test_harm_and_difference_stand_beside_the_number() -> None:
    said = verdict(profile(HARM))
    assert (
        "Of the target's right answers, 0.5% were lost (at most 1.3%). Accuracy changed by -0.1 percentage points "
        "(-0.9 to +0.6 at 95% confidence)."
    ) in said


def test_harm_is_said_once() -> None:
    """Beside the claim where its bound holds with it."""
    said = verdict(profile(HARM | {"certificate.given_passing": True}))
    assert "It lost 0.5% of the target's right answers (at most 1.3%) before what it gained elsewhere." in said
    assert "were lost" not in said
    assert "Accuracy changed by -0.1 percentage points (-0.9 to +0.6 at 95% confidence)." in said


def test_guards_name_the_setting_that_decoded_them() -> None:
    guard = {
        "task": "mmlu", "source": "a file", "problems": 100, "retention": 1.0, "interval": [0.9, 1.1],
        "confidence": 0.95, "counts": {"both_right": 60, "lost": 5, "gained": 5, "both_wrong": 30},
    }  # fmt: skip
    assert "Guard mmlu: an estimated retention of 100.0% (90.0% to 110.0% at" in verdict(profile({"guards": [guard]}))
    assert "100.0% by the setting of the estimate (" in verdict(profile(UNCERTIFIED | {"guards": [guard]}))
    shown = one_line(printed_details(HARM))
    assert "0.5% of the target's right answers lost, at most 1.3%" in shown
    assert "-0.1 percentage points of accuracy, -0.9 to +0.6" in shown
    early = verdict(profile(HARM | {"certificate.difference_interval": None}))
    assert "changed by -0.1 percentage points. " in early


def test_a_bound_of_what_was_chosen_says_what_it_leaves_out() -> None:
    caveat = "holds individually at 95.5% confidence and is not corrected for the choice among"
    assert f"{caveat} the 4 frozen settings." in verdict(profile({"certificate.frozen": 4}))
    assert "the several frozen settings" in verdict(profile())  # of a file that does not say how many
    for plain in ({"certificate.frozen": 1}, UNCERTIFIED | {"certificate.frozen": 4}):
        assert "not corrected" not in printed(plain)  # no other could have been chosen; the first one failed
        assert "(at least 98.9%)" in verdict(profile(plain))


def test_a_bound_below_the_claim_that_passed_is_not_set_beside_it() -> None:
    narrow = {"certificate.given_passing": True, "certificate.lower_bound": 0.95, "certificate.frozen": 4,
              "curve": [*VALUES["curve"][:-1], {**VALUES["curve"][-1], "lower_bound": 0.95}]}  # fmt: skip
    said = verdict(profile(narrow))
    assert "That is a retention of 99.8% and an accuracy of 93.1%. The outcomes show the claim, and no more" in said
    assert "not corrected" not in said
    harmed = verdict(profile(HARM | narrow))
    assert (
        "The bounds (at most, interval) hold together at 95% confidence and are not corrected for the choice" in harmed
    )
    assert "changed by -0.1 percentage points (-0.9 to +0.6 at" in harmed
    wide = verdict(profile(HARM | narrow | {"certificate.difference_interval": [-0.05, 0.006]}))
    assert "(-1.9 to +0.6 at" in wide  # the claim leaves 2 % of 93.3 %
    for shown in (said, printed(narrow), printed_details(narrow), str(rows(Run("x", profile(narrow))))):
        assert "95.0%" not in shown
        assert "0.95)" not in shown
    assert "≥ 98.0%" in printed(narrow)


def test_the_certificate_is_of_one_task_and_grader() -> None:
    scope = "one task and one grader, on problems like these; they say nothing about others"
    for tested in ({}, UNCERTIFIED, FRONT):
        assert scope in verdict(profile(tested))
    assert "one grader, on these very problems" in verdict(profile({"certificate.guarantee": "dataset"}))
    assert "one task" not in verdict(profile(UNTESTED))


def test_texts_cut_short_are_told_of() -> None:
    cut = {"truncation": {"max_new_tokens": 256, "texts": 700, "target": 0, "chosen": 7}}
    assert (
        "The limit of 256 new tokens, or the end of the context, was reached by 0.0% of the target's texts and 1.0% of "
        "the fuzzy setting's (700 texts each), which may be cut short."
    ) in verdict(profile(cut))
    assert "1.0% of sd's" in verdict(profile(cut | LOSSLESS))
    assert "limit" not in verdict(profile(cut | {"truncation.chosen": 0}))


CERTIFIED = (
    "Certified at 95% confidence: fsd-coupled at T = 0.0625 (js, L = 5) keeps at least 98% of the target's accuracy on "
    "problems like these. It makes 1.20x the tokens per round of sd, "
)


def test_whatever_the_clock_shows_what_is_certified_is_called_that_first() -> None:
    fast, unknown, untimed, slow = (verdict(profile(made)) for made in ({}, UNKNOWN, NOT_TIMED, SLOWER))
    assert all(said.startswith(CERTIFIED) for said in (fast, unknown, untimed, slow))
    assert "follow" not in fast
    again = "decoders that follow this profile run it, and fsd-profile retime PROFILE times it again"
    assert f"It was not shown to be faster than sd, nor slower: {again}" in unknown
    assert f"Nothing was timed: {again}" in untimed
    assert (
        "It was shown to be slower than sd, so decoders that follow this profile run sd, which loses nothing." in slow
    )
    assert row(printed(SLOWER), "certified, slower")[0] == ["93.1%¹", "99.8%¹", "5.41¹", "43.0²"]


def test_what_keeps_more_than_lossless_decoding_is_followed_though_it_is_slower() -> None:
    needed = SLOWER | {"threshold": 0.0625, "lossy": True, "estimate": None}
    said = verdict(profile(needed))
    assert "It was shown to be slower than sd, which was not shown to do what was requested; decoders" in said
    slow = {name: value for name, value in SLOWER.items() if name.startswith("speed")}
    explored = verdict(profile(UNTESTED | slow))
    assert "It was shown to be slower than sd; decoders that follow this profile run it all the same." in explored
    below = verdict(profile(UNTESTED | {"speed.wanted": 90.0}))
    assert "may be below" not in below
    assert "The requested 90 tokens/s were not reached: 61.5" in below


def test_what_was_too_slow_by_the_clock_can_be_timed_again() -> None:
    again = "fsd-profile retime PROFILE times it again, without an attempt."
    certified = {"certificate.certified": True, "threshold": 0.0625, "lossy": True}
    said = verdict(profile(TOO_SLOW | certified))
    assert said.startswith("Too slow: the setting that was chosen")
    assert "Certified at 95% confidence: fsd-coupled at T = 0.0625" in said
    assert f"Decoders that follow this profile run it. {again}" in said
    assert again not in verdict(profile(TOO_SLOW))


def test_seconds_per_answer_and_lengths_stand_beside_speeds() -> None:
    said = verdict(profile(ANSWERS))
    took = "An answer takes 1.15 s, with sd 1.37 s and with the target alone 3.5 s; its texts are 1.01 times as long as"
    assert took in said
    assert "answer" not in verdict(profile())
    text = printed(ANSWERS)
    assert max(map(len, text.splitlines())) <= 80
    assert row(text, "fsd-coupled")[0] == ["93.1%¹", "99.8%¹", "5.41¹", "61.5²", "1.15²"]
    assert row(text, "sd (lossless)")[0][-1] == "1.37²"
    shown = one_line(printed_details(ANSWERS))
    assert "3.5 of the target, 1.37 of sd, 1.15 of the chosen setting" in shown
    assert "70.0 per text of the target, 70.7 of the chosen setting: 1.01 times as long" in shown


def test_a_gain_that_longer_texts_use_up_is_told() -> None:
    longer = ANSWERS | {"speed.answer.chosen": 1.5, "lengths.chosen": 98.0}
    assert (
        "Its texts are 1.40 times as long as the target's, so its answers take no less time than those of sd: 1.5 s "
        "each, against 1.37 s, and 3.5 s of the target alone."
    ) in verdict(profile(longer))
    assert "no less time" not in verdict(profile(ANSWERS))


def test_texts_that_end_in_a_loop_are_told_of() -> None:
    loops = "three times or more in a row, is the end of 0.0% of the target's texts and 2.0% of the fuzzy setting's"
    assert loops in verdict(profile(ANSWERS))
    assert "loop" not in verdict(profile(ANSWERS | {"repetition.chosen": 0}))
    assert "0 of the target's 700 texts and 14 of the chosen setting's" in one_line(printed_details(ANSWERS))


def test_a_certificate_of_lossless_decoding_is_called_that() -> None:
    own = {"certificate.lossless": True, "certificate.acc": "absolute", "certificate.wanted": 0.9,
           "certificate.counts": {"both_right": 652, "lost": 0, "gained": 0, "both_wrong": 48},
           "certificate.retention": 1.0}  # fmt: skip
    said = verdict(profile(LOSSLESS | own))
    assert said.startswith("At 95% confidence lossless decoding reaches at least 90% accuracy on problems like these. ")
    assert "the target alone solved 93.1% (at least 91.1%)" in said
    assert "both right" not in said
    numbers, below = row(printed(LOSSLESS | own), "target alone")
    assert (numbers[0], below.split()[1]) == ("93.1%¹", "91.1%")
    failed = verdict(profile(UNCERTIFIED | own | {"estimate": None, "certificate.wanted": 0.92}))
    assert "not even the target alone, and so no lossless decoding, was shown to reach at least 92% accuracy" in failed


def test_a_front_is_of_the_part_its_target_was_decoded_on() -> None:
    none: dict[str, Any] = {"certificate.problems": 0, "certificate.counts": NO_COUNTS}
    none |= {f"certificate.{name}": None for name in ("retention", "lower_bound", "accuracy", "accuracy_lower_bound")}
    alone = {**at(3, rule="target", draft_length=1), "problems": 650, "accuracy": 0.925}
    text = printed(FRONT | none | {"curve": [*FRONT["curve"], alone]})
    assert "¹ measured on the certification part: 650 problems, unseen by the search; sd on 700, " in one_line(text)
    assert row(text, "target alone")[0][0] == "92.5%¹"


def test_guarantees_and_absolute_accuracy_are_named() -> None:
    said = verdict(profile({"certificate.guarantee": "dataset"}))
    assert "98% of the target's accuracy on these very problems." in said
    absolute = {"certificate.acc": "absolute", "certificate.wanted": 0.91}
    assert "reaches at least 91% accuracy on problems like these" in verdict(profile(absolute))
    missed = verdict(profile(UNCERTIFIED | {"certificate.acc": "absolute"}))
    assert "no threshold was shown to reach at least 99.5% accuracy." in missed
    seeds = {"certificate.seeds": 2, "certificate.problems": 350}
    assert "(350 problems that the search never saw, 2 seeds each)" in verdict(profile(seeds))


def test_not_certified_names_the_lossless_rule_the_guess_and_the_frontier() -> None:
    said = verdict(profile(UNCERTIFIED))
    assert said.startswith("Not certified: at 95% confidence no threshold was shown to keep at least 99.5% of the")
    assert "run the lossless rule coupled" in said
    assert "The estimate is T = 0.0625: retention 99.8%, lower bound 98.9%." in said
    assert re.search(r"If these shares hold, about [\d,]+ certification problems would certify it", said)
    text = printed(UNCERTIFIED)
    assert "measured points that no other beats in retention and speed" in text
    assert "measured points" not in printed()


def test_a_later_attempt_needs_more_problems() -> None:
    needed = []
    for attempt in (1, 2):
        delta = {"certificate.attempt": attempt, "certificate.delta": 0.003}
        said = verdict(profile(UNCERTIFIED | delta))
        found = re.search(r"about ([\d,]+) certification problems", said)
        assert found is not None
        needed.append(int(found[1].replace(",", "")))
    assert needed[0] < needed[1]


def test_hopeless_goals_are_called_so() -> None:
    said = verdict(profile(UNCERTIFIED | {"certificate.wanted": 1.1}))
    assert "At this retention no number of problems would certify it." in said
    absolute = UNCERTIFIED | {"certificate.acc": "absolute", "certificate.wanted": 0.94}
    assert "At this accuracy no number of problems would certify it." in verdict(profile(absolute))
    absolute["certificate.wanted"] = 0.92
    assert re.search(r"If these shares hold, about [\d,]+ certification problems", verdict(profile(absolute)))


def test_a_wanted_speed_is_compared() -> None:
    reached = verdict(profile({"certificate.wanted": None, "speed.wanted": 60.0}))
    assert "keeps at least 98.9% of the target's accuracy" in reached
    assert "The requested 60 tokens/s were reached: 61.5 (60.2–62.8 within this run)." in reached
    open = verdict(profile(UNKNOWN | {"certificate.wanted": None, "speed.wanted": 61.0}))
    assert "Whether the requested 61 tokens/s are reached was not shown: 61.5 (60.2–62.8 within this run)." in open
    missed = verdict(profile(TOO_SLOW))
    assert missed.startswith(
        "Too slow: the setting that was chosen by its forecast did not reach the requested speed when"
    )
    assert "The requested 90 tokens/s were not reached: 61.5 (60.2–62.8 within this run)." in missed
    assert "measured points that no other beats" in printed(TOO_SLOW)


def test_where_sd_suffices_nothing_need_be_lost() -> None:
    said = verdict(profile(FAST_ENOUGH))
    assert said.startswith("Plain sd already makes 51.0 tokens/s (L = 4), so there is no need to lose accuracy.")
    assert "The requested 50 tokens/s were reached: 51.0 (50.1–51.9 within this run)." in said
    other = verdict(profile(LOSSLESS))
    assert other.startswith(
        "No fuzzy setting that keeps the requested accuracy is expected to be faster than plain sd, which makes 51.0"
    )
    assert "run sd" in other


def test_what_was_not_tested_is_called_explored() -> None:
    said = verdict(profile(UNTESTED))
    assert said.startswith("Explored: fsd-coupled at T = 0.0625")
    assert "Nothing is certified (--explore), and no attempt was spent." in said
    assert "Certified" not in said
    assert "certification part" not in said


def test_without_decodings_no_counts_are_said() -> None:
    untested: dict[str, Any] = {"certificate.problems": 0, "certificate.counts": NO_COUNTS}
    untested |= {f"certificate.{name}": None for name in ("retention", "lower_bound", "accuracy", "attempt")}
    said = verdict(profile(TOO_SLOW | untested))
    assert "Nothing was decoded on the certification part: no setting was worth an attempt." in said
    assert "both right" not in said


@pytest.mark.parametrize(("bound", "shown"), [(0.97999, "97.9%"), (0.98, "98.0%"), (0.983, "98.3%")])
def test_a_bound_is_never_rounded_up(bound: float, shown: str) -> None:
    text = printed({"certificate.lower_bound": bound, "certificate.wanted": None})
    assert f"≥ {shown}" in text
    assert f"keeps at least {shown}" in " ".join(text.split())
