"""Going on from a decided attempt: the settings that it froze, tested on its problems and more.

That is another attempt, with a level of its own. But what it sees is correlated with what the first one saw, so that it
is less strict than a test at the same level which knows of no other, see `looks`. How many more problems there are may
follow from what the first attempt showed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Self

from fsd_calib.certification.attempt_ledger import Entry
from fsd_calib.certification.certificate import graded_in, passed_of
from fsd_calib.certification.claim import Claim
from fsd_calib.certification.dropped import Dropped
from fsd_calib.certification.looks import Looks, Stage
from fsd_calib.certification.outcomes import Counts, Paired
from fsd_calib.measuring.measurement import groups_of
from fsd_calib.tasks.base import Problem
from fsd_common.digests import facts_digest
from fsd_decoding.profile.setting import Setting

_THE_SAME = ("identity", "engines", "problems", "claim", "confidence", "tests")  # in an attempt that goes on
TESTS_VERSION = 1  # raised where the same outcomes may lead to another verdict: that is then another attempt


class Before(NamedTuple):
    """An attempt that another one goes on from.

    Attributes:
        place: Its row in the ledger.
        number: See `Attempt`.
        end: The number of problems up to its last.
        dropped: How many others counted as lost in it, beside those of the attempts before.
    """

    place: int
    number: int
    end: int
    dropped: int


@dataclass(frozen=True)
class Frozen:
    """What an attempt froze, as its text in the ledger has it.

    Attributes:
        identity: All that determines outcomes besides settings and problems.
        engines: Those that certify in turn; "": this one alone does.
        problems: A hash of prompts, references and groups, in any order: other groups are another test of the same.
        claim: Without its looks.
        looks: Numbers of problems.
        before: The attempts that it goes on from, see `Before`.
        settings: The values of each, safest first.
    """

    identity: str
    engines: str
    problems: str
    claim: dict[str, Any]
    looks: list[int]
    before: list[list[int]]
    confidence: float
    settings: list[dict[str, Any]]
    tests: int = TESTS_VERSION

    @classmethod
    def of(
        cls, identity: str, engines: str, problems: Iterable[Problem], claim: Claim, confidence: float,
        settings: Iterable[Setting] = (), before: Iterable[Before] = (),
    ) -> Self:  # fmt: skip
        facts = {name: value for name, value in asdict(claim).items() if name != "looks"}
        looks = [] if claim.looks is None else [*claim.looks.problems]
        values = [setting.values for setting in settings]
        return cls(identity, engines, _fingerprint(problems), facts, looks, [[*b] for b in before], confidence, values)

    @classmethod
    def of_text(cls, text: str) -> Self:
        return cls(**json.loads(text))

    @property
    def text(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)


def _fingerprint(problems: Iterable[Problem]) -> str:
    return facts_digest(sorted([p.id, p.prompt, p.reference, str(p.group)] for p in problems))


@dataclass(frozen=True)
class Extension:
    """What an attempt goes on from, and with.

    Attributes:
        before: The attempts before it, in their order.
        settings: What they froze, safest first.
        looks: Theirs.
        problems: Ids of their problems, in the order in which they were decoded.
        more: Ids of the others; those that share a group with one of then are left out, as each stage is a sample of
            its own.
        failed: Outcomes of the first setting that did not pass, as far as it was decoded; None: all passed.
    """

    before: tuple[Before, ...]
    settings: tuple[Setting, ...]
    looks: Looks
    problems: tuple[int, ...]
    more: tuple[int, ...]
    failed: Paired | None

    @property
    def attempts(self) -> tuple[int, ...]:
        """The numbers of the attempts before it."""
        return tuple(each.number for each in self.before)

    @classmethod
    def of(cls, entry: Entry, problems: Sequence[Problem], claim: Claim, identity: str) -> Self | None:
        """Returns what goes on from a decided attempt; None: it is of another claim or identity, or has problems that
        are not among these, or there are no others."""
        frozen, by_id = Frozen.of_text(entry.frozen), {problem.id: problem for problem in problems}
        ours = [by_id[number] for number in entry.problems[:, 0].tolist() if number in by_id]
        ids, groups = {problem.id for problem in ours}, {problem.group for problem in ours} - {None}
        more = tuple(p.id for p in problems if p.id not in ids and p.group not in groups)
        same = Frozen.of(identity, "", ours, claim, claim.confidence)
        if not more or any(getattr(frozen, name) != getattr(same, name) for name in _THE_SAME):
            return None
        before = tuple(Before(*each) for each in frozen.before)
        gone = Dropped.of_text(entry.dropped)
        last = Before(entry.place, entry.number, len(ours), gone.counted if gone else 0)
        looks = Looks(tuple(frozen.looks), tuple(Stage(each.end, each.dropped) for each in before))
        settings = tuple(map(Setting.of, frozen.settings))
        return cls((*before, last), settings, looks, tuple(p.id for p in ours), more, _failed(entry, ours, settings))

    def of_more(self, number: int, groups: Counts | None) -> Looks:
        """Returns its looks, followed by up to `number` looks at the new problems.

        Args:
            groups: (problems,): of all problems, see `Looks.evenly`.
        """
        first = len(self.problems)
        more = Looks.evenly(len(self.more), number, None if groups is None else groups[first:])
        return self.looks.extended(more, self.before[-1].dropped)


def _failed(entry: Entry, problems: Sequence[Problem], settings: Sequence[Setting]) -> Paired | None:
    assert entry.verdict is not None
    if passed_of(entry.verdict) == len(settings) - 1:
        return None
    (*_, last), groups = graded_in(entry.verdict), groups_of(problems)
    return Paired(last.target, last.fuzzy, None if groups is None else groups[: last.problems])
