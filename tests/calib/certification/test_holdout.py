"""The holdout: measurements at the wrong time, or a second decision, are refused.

Real evaluators and a real ledger; decoding is a table of grades.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fsd_calib.certification.attempt_ledger import AttemptLedger, Run
from fsd_calib.certification.certificate import SequenceVerdict
from fsd_calib.certification.claim import Claim
from fsd_calib.certification.holdout import EngineSequence, Holdout, TuningRecord
from fsd_calib.certification.looks import Looks
from fsd_calib.measuring.evaluator import Evaluator
from fsd_calib.measuring.measurement import Decoding, Seeds
from fsd_calib.tasks import Problem
from fsd_common.errors import UsageError
from fsd_common.progress.base import Silent
from fsd_decoding.profile.setting import Setting

ALONE = Setting("target", "js", 1)
SAFER, SAFE, LOOSE, LOOSER = (Setting("fsd-coupled", "js", 5, t) for t in (0.05, 0.1, 0.2, 0.3))
PROBLEMS = [Problem(i, f"question {i}", f"question {i}", "1", None) for i in range(400)]
TUNED = [
    PROBLEMS[7],
    dataclasses.replace(PROBLEMS[8], id=PROBLEMS[8].key),
    dataclasses.replace(PROBLEMS[9], question="a question of another task"),
]
"""Two of the problems, one with another id, and another one."""
CLAIM = Claim(0.98, looks=Looks.evenly(len(PROBLEMS), 8))


class Table:
    """Decodes by a table: the target is right on 9 of 10, a threshold loses every n-th problem. Counts decodings."""

    def __init__(self) -> None:
        self.decoded: dict[Setting, int] = {}
        self.decoded_ids: set[int] = set()

    def __call__(self, setting: Setting, problems: Sequence[Problem]) -> list[Seeds]:
        self.decoded[setting] = self.decoded.get(setting, 0) + len(problems)
        self.decoded_ids.update(problem.id for problem in problems)
        lost_every = {ALONE: 0, SAFER: 0, SAFE: 0, LOOSE: 4, LOOSER: 3}[setting]
        right = [p.id % 10 != 0 and not (lost_every and p.id % lost_every == 1) for p in problems]
        return [(Decoding(r, "", 10, 2, 10, 8),) for r in right]


def holdout(ledger: AttemptLedger, table: Table | None = None, problems: Sequence[Problem] = PROBLEMS) -> Holdout:
    return Holdout(Evaluator(table or Table(), problems, "certification"), ledger, "family", "claim", "these models")


def test_a_sequence_is_decided_once(tmp_path: Path) -> None:
    with AttemptLedger(tmp_path / "attempts.sqlite") as ledger:
        opened = holdout(ledger).open([SAFE, LOOSE], ALONE, CLAIM, 0.95)
        assert opened.decide().passed == 0
        with pytest.raises(UsageError, match="attempt 1 is decided already"):
            opened.decide()


def test_only_frozen_configurations_may_be_measured() -> None:
    with AttemptLedger(None) as ledger:
        opened = holdout(ledger).open([SAFE], ALONE, CLAIM, 0.95)
        assert opened.measure(ALONE).problems == len(PROBLEMS)
        with pytest.raises(ValueError, match="not among the frozen settings"):
            opened.measure(LOOSE)


def test_the_same_sequence_is_the_same_attempt_and_another_is_the_next(tmp_path: Path) -> None:
    path = tmp_path / "attempts.sqlite"
    numbers = []
    for frozen in ([SAFE], [SAFE], [SAFE, LOOSE], [SAFE]):
        with AttemptLedger(path) as ledger:
            part = holdout(ledger)
            expected = part.next_attempt
            opened = part.open(frozen, ALONE, CLAIM, 0.95)
            numbers.append((opened.attempt.number, expected))
    assert [number for number, _ in numbers] == [1, 1, 2, 1]
    assert [expected for _, expected in numbers] == [1, 2, 2, 3]
    assert opened.delta == pytest.approx(0.045)


def test_other_prompts_or_models_are_another_attempt() -> None:
    others = [dataclasses.replace(problem, prompt=f"{problem.prompt}!") for problem in PROBLEMS]
    with AttemptLedger(None) as ledger:
        parts = [holdout(ledger), holdout(ledger, problems=others), holdout(ledger).decoded_by(Table(), "shy")]
        parts += [holdout(ledger, problems=PROBLEMS[::-1])]
        numbers = [part.open([SAFE], ALONE, CLAIM, 0.95).attempt.number for part in parts]
    assert numbers == [1, 2, 3, 1]


def test_other_groups_are_another_attempt() -> None:
    """Else who groups by one column after the other, until one passes, would have one level for all of them."""
    by_two, by_five = ([dataclasses.replace(p, group=p.id // each) for p in PROBLEMS] for each in (2, 5))
    with AttemptLedger(None) as ledger:
        parts = [holdout(ledger, problems=problems) for problems in (PROBLEMS, by_two, by_five, by_two)]
        numbers = [part.open([SAFE], ALONE, CLAIM, 0.95).attempt.number for part in parts]
    assert numbers == [1, 2, 3, 2]


def test_engines_in_turn_are_one_attempt() -> None:
    """Each is tested at the level of the first, and a later attempt counts them once."""

    def part(ledger: AttemptLedger, sequence: EngineSequence | None) -> Holdout:
        name = "these models" if sequence is None else sequence.engines[sequence.place][0]
        return Holdout(Evaluator(Table(), PROBLEMS, "certification"), ledger, "family", "claim", name, sequence)

    both = EngineSequence((("fsd-calib", "{}"), ("vllm", "{}")))
    with AttemptLedger(None) as ledger:
        part(ledger, None).open([LOOSE], ALONE, CLAIM, 0.95)
        first = part(ledger, both).open([SAFE], ALONE, CLAIM, 0.95)
        assert first.decide().passed == 0
        continued = part(ledger, dataclasses.replace(both, place=1, attempt=first.attempt.number))
        assert continued.next_attempt == 2
        assert continued.best_case(0.95) == (len(PROBLEMS), first.delta)
        second = continued.open([SAFE], ALONE, CLAIM, 0.95)
        assert second.decide().passed == 0
        assert [(one.attempt.number, one.delta) for one in (first, second)] == [(2, first.delta)] * 2
        assert second.history == first.history  # the first's success is not an earlier one
        assert (first.history.asked, first.history.passed, first.history.attempts) == (2, 0, 2)
        assert continued.open([SAFE], ALONE, CLAIM, 0.95).attempt.verdict is not None  # the same command again
        assert part(ledger, None).next_attempt == 3
        other = Holdout(
            Evaluator(Table(), PROBLEMS, "certification"), ledger, "family", "claim", "vllm, another version",
            dataclasses.replace(both, place=1, attempt=2),
        )  # fmt: skip
        assert other.next_attempt == 3  # it goes on once
        assert other.open([SAFE], ALONE, CLAIM, 0.95).attempt.number == 3
        assert part(ledger, None).next_attempt == 4


def test_a_sequence_goes_on_from_a_decided_attempt_only() -> None:
    both = EngineSequence((("fsd-calib", "{}"), ("vllm", "{}")), place=1, attempt=1)
    with AttemptLedger(None) as ledger:
        part = Holdout(Evaluator(Table(), PROBLEMS, "certification"), ledger, "family", "claim", "models", both)
        holdout(ledger).open([SAFE], ALONE, CLAIM, 0.95)
        with pytest.raises(UsageError, match="attempt 1 is not decided on these problems"):
            part.open([SAFE], ALONE, CLAIM, 0.95)


def test_another_sequence_of_engines_is_another_attempt() -> None:
    numbers = []
    with AttemptLedger(None) as ledger:
        for engines in ((("fsd-calib", "{}"), ("vllm", "{}")), (("fsd-calib", "{}"), ("vllm", '{"seed": 1}')), None):
            sequence = None if engines is None else EngineSequence(engines)
            part = Holdout(Evaluator(Table(), PROBLEMS, "certification"), ledger, "family", "claim", "models", sequence)
            numbers.append(part.open([SAFE], ALONE, CLAIM, 0.95).attempt.number)
    assert numbers == [1, 2, 3]


def test_problems_that_were_tuned_on_cannot_be_certified_on(tmp_path: Path) -> None:
    with AttemptLedger(tmp_path / "attempts.sqlite") as ledger:
        ledger.tuned_on("family", TUNED)
        with pytest.raises(UsageError, match="2 of 400 certification problems were tuned on"):
            holdout(ledger).open([SAFE], ALONE, CLAIM, 0.95)


def test_problems_that_were_tuned_on_are_left_out_and_the_rest_certifies() -> None:
    table = Table()
    with AttemptLedger(None) as ledger:
        ledger.tuned_on("family", TUNED)
        part = holdout(ledger, table).of_run("run", trained=frozenset({9, PROBLEMS[10].key}))
        opened = part.open([SAFE], ALONE, Claim(0.98, looks=Looks((part.problems,))), 0.95)
        assert (part.problems, part.whole, opened.decide().passed) == (396, 400, 0)
    assert not {7, 8, 9, 10} & table.decoded_ids


def test_too_few_remaining_problems_are_refused() -> None:
    with AttemptLedger(None) as ledger:
        ledger.tuned_on("family", PROBLEMS[1:])
        with pytest.raises(
            UsageError, match="399 of 400 certification problems were tuned or trained on before, which"
        ):
            holdout(ledger).of_run("run")


def test_what_shares_a_group_with_what_was_tuned_on_is_left_out() -> None:
    """As where somebody names the groups only after a run without them; a problem in no group is left out by itself."""
    problems = [dataclasses.replace(p, group=p.id // 5 if p.id < 300 else None) for p in PROBLEMS]
    left_out = {*range(5, 10), *range(20, 25), 399}
    with AttemptLedger(None) as ledger:
        ledger.tuned_on("family", [PROBLEMS[7], PROBLEMS[399]])
        part = holdout(ledger, problems=problems).of_run("run", trained=frozenset({PROBLEMS[20].key}))
        assert {problem.id for problem in part.part} == {*range(400)} - left_out
        opened = part.open([SAFE], ALONE, Claim(0.98, looks=Looks((part.problems,))), 0.95, Run("run", "facts"))
        opened.decide()
        ledger.tuned_on("family", [PROBLEMS[50]])  # what is decided has its problems again
        again = holdout(ledger, problems=problems).of_run("run", trained=frozenset({PROBLEMS[20].key}))
        assert again.part == part.part
        ledger.tuned_on("family", [PROBLEMS[5 * group] for group in range(60)])
        with pytest.raises(
            UsageError, match="tuned or trained on before, or share a group with one, which leaves 0 to"
        ):
            holdout(ledger, problems=problems[:300]).of_run("another")


def test_a_decided_attempt_can_be_repeated_after_tuning_on_its_problems() -> None:
    def decide(ledger: AttemptLedger, run: str) -> tuple[int, int, int | None]:
        part = holdout(ledger).of_run(run)
        opened = part.open([SAFE], ALONE, Claim(0.98, looks=Looks((part.problems,))), 0.95, Run(run, "facts"))
        return opened.attempt.number, part.problems, opened.decide().passed

    with AttemptLedger(None) as ledger:
        assert decide(ledger, "run") == (1, 400, 0)
        ledger.tuned_on("family", PROBLEMS[:2])
        assert decide(ledger, "run") == (1, 400, 0)
        assert decide(ledger, "another") == (2, 398, 0)


def test_a_futile_candidate_is_not_decoded_to_the_end() -> None:
    table = Table()
    with AttemptLedger(None) as ledger:
        verdict = holdout(ledger, table).open([LOOSE, LOOSER], ALONE, CLAIM, 0.95).decide()
    assert verdict.passed is None
    assert table.decoded[LOOSE] < len(PROBLEMS)
    assert LOOSER not in table.decoded


def test_a_success_does_not_raise_the_level_of_the_next_attempt() -> None:
    """A user who raises the goal after a success has seen its result, and with a level handed on the second claim would
    err too often."""
    with AttemptLedger(None) as ledger:
        assert holdout(ledger).open([SAFE], ALONE, CLAIM, 0.95).decide().passed == 0
        second = holdout(ledger).open([SAFER], ALONE, CLAIM, 0.95)
    assert second.delta == pytest.approx(0.005 * 6 / np.pi**2)


def test_problems_decoded_under_a_threshold_are_marked_before() -> None:
    table = Table()
    with AttemptLedger(None) as ledger:

        def decode(setting: Setting, problems: Sequence[Problem]) -> list[Seeds]:
            if setting.threshold is not None:
                assert not ledger.usable("family", problems, "").any()
            return table(setting, problems)

        tuning = Evaluator(TuningRecord(ledger, "family").before(decode), PROBLEMS, "tuning")
        tuning.measure(ALONE)
        for measured, marked in ((0, 0), (64, 64), (128, 128), (64, 128)):
            tuning.measure(SAFE, measured)
            free = [True] * (len(PROBLEMS) - marked)
            assert ledger.usable("family", PROBLEMS, "").tolist() == [False] * marked + free


def test_a_whole_front_is_bounded_simultaneously() -> None:
    with AttemptLedger(None) as ledger:
        part = holdout(ledger)
        opened = part.open([SAFE, LOOSE], ALONE, Claim(None, looks=Looks((len(PROBLEMS),))), 0.95)
        bounded = opened.bound_all()
    with AttemptLedger(None) as ledger:
        alone = (
            holdout(ledger).open([LOOSE], ALONE, Claim(None, looks=Looks((len(PROBLEMS),))), 0.95).decide().tested[0]
        )
    assert bounded[1].lower_bound < alone.lower_bound  # shared by two


class Rounded(Table):
    """The same models in another process, where rounding changed the outcomes of some problems."""

    def __init__(self, setting: Setting, flipped: Callable[[int], bool]) -> None:
        super().__init__()
        self._setting, self._flipped = setting, flipped

    def __call__(self, setting: Setting, problems: Sequence[Problem]) -> list[Seeds]:
        found = super().__call__(setting, problems)
        if setting != self._setting:
            return found
        return [
            (dataclasses.replace(seeds[0], correct=seeds[0].correct != self._flipped(problem.id)),)
            for problem, seeds in zip(problems, found, strict=True)
        ]


SAME, A_LOT, ONE = (lambda n: False), (lambda n: n % 12 == 5), (lambda n: n == 7)


@pytest.mark.thinned(every=3)
@pytest.mark.parametrize(
    ("first", "second", "passed"),
    [(SAME, A_LOT, 0), (A_LOT, SAME, None), (SAME, ONE, 0), (ONE, SAME, 0)],
    ids=["fails later", "failed first", "one less later", "one less first"],
)
def test_a_process_with_other_outcomes_takes_over_the_first_verdict_with_its_numbers(
    first: Callable[[int], bool], second: Callable[[int], bool], passed: int | None, tmp_path: Path
) -> None:
    notes = []

    class Notes(Silent):
        def note(self, line: str) -> None:
            notes.append(line)

    path = tmp_path / "ledger.sqlite"
    with AttemptLedger(path) as one, AttemptLedger(path) as other:
        tables = [Rounded(SAFE, first), Rounded(SAFE, second)]
        both = [
            holdout(ledger, table).open([SAFE, LOOSE], ALONE, CLAIM, 0.95)
            for ledger, table in zip((one, other), tables, strict=True)
        ]
        verdicts = [opened.decide(Notes()) for opened in both]
        resumed = holdout(other, tables[1]).open([SAFE, LOOSE], ALONE, CLAIM, 0.95).decide()
    own = certify_alone(Rounded(SAFE, second))
    for verdict in (*verdicts, resumed):
        assert verdict.passed == passed
        assert evidence_of(verdict) == evidence_of(verdicts[0]) != evidence_of(own)
    assert len(notes) == 1
    assert "attempt 1 was decided by another process" in notes[0]
    assert all(table.decoded[SAFE] >= verdicts[0].tested[0].paired.problems for table in tables)


def test_a_whole_front_takes_over_the_first_bounds(tmp_path: Path) -> None:
    path, claim = tmp_path / "ledger.sqlite", Claim(None, looks=Looks((len(PROBLEMS),)))
    with AttemptLedger(path) as ledger:
        bounds = [
            holdout(ledger, table).open([SAFE, LOOSE], ALONE, claim, 0.95).bound_all()
            for table in (Table(), Rounded(LOOSE, ONE), Table())
        ]
    assert bounds[0][1].lower_bound == bounds[1][1].lower_bound == bounds[2][1].lower_bound
    assert bounds[1][1].outcomes == bounds[0][1].outcomes


def test_a_verdict_on_another_question_is_no_answer() -> None:
    with AttemptLedger(None) as ledger:
        holdout(ledger).open([SAFE], ALONE, CLAIM, 0.95).attempt.decide('{"bounded": []}')
        with pytest.raises(UsageError, match="attempt 1 was decided before as"):
            holdout(ledger).open([SAFE], ALONE, CLAIM, 0.95).decide()


def certify_alone(table: Table, frozen: Sequence[Setting] = (SAFE, LOOSE)) -> SequenceVerdict:
    with AttemptLedger(None) as ledger:
        return holdout(ledger, table).open(frozen, ALONE, CLAIM, 0.95).decide()


def evidence_of(verdict: SequenceVerdict) -> list[Any]:
    return [(e.outcomes, e.p_value, e.lower_bound, e.accuracy_bound) for e in verdict.tested]
