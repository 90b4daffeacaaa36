"""The ledger of certification attempts: what was claimed how often, on which problems, and which were tuned on.

It is not a cache: deleting it voids the certificates issued afterwards. Several processes may use one file at the same
time: an SQLite file of rows with a digest of their values, changed in one transaction at a time.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from fsd_calib.storage import DamageError, Schema, VersionError, open_database, translate_errors
from fsd_common.errors import UsageError
from fsd_decoding.profile.certificate import attempt_level

Numbers = NDArray[np.int64]  # (n, 4): id, key, row and answer of each problem
_KEY, _ROW, _ANSWER = 1, 2, 3


class Numbered(Protocol):
    """A problem with its numbers.

    Attributes:
        id: Hash of the raw content.
        key: Hash of the normalised content.
        row_key: Hash of the row of the source, whatever is asked about it and however.
        answer_key: Hash of the reference answer.
        question: Its text, by which others may be found to resemble it; "": it is not kept.
    """

    @property
    def id(self) -> int: ...

    @property
    def key(self) -> int: ...

    @property
    def row_key(self) -> int: ...

    @property
    def answer_key(self) -> int: ...

    @property
    def question(self) -> str: ...


def numbers(problems: Iterable[Numbered]) -> Numbers:
    """Returns the numbers of problems, (n, 4), in their order."""
    return np.array([(p.id, p.key, p.row_key, p.answer_key) for p in problems], np.int64).reshape(-1, 4)


def as_set(of: Numbers) -> Numbers:
    """Returns each problem once, sorted, so that equal sets are equal arrays."""
    return np.unique(of, axis=0)


def known(requested: Numbers, recorded: Numbers) -> NDArray[np.bool_]:
    """Returns, (n,), whether each problem is among the recorded ones: by its content, or by its row, which another
    task may ask about in other words.

    Ids identify nothing, since another task may number its problems from 0 as well.
    """
    return np.isin(requested[:, _KEY], recorded[:, _KEY]) | np.isin(requested[:, _ROW], recorded[:, _ROW])


def recorded_whole(requested: Numbers, recorded: Numbers) -> NDArray[np.bool_]:
    """Returns, (n,), whether each problem's content and row are both recorded.

    One that is known by its row alone has a content that is not, by which others may be known.
    """
    return np.isin(requested[:, _KEY], recorded[:, _KEY]) & np.isin(requested[:, _ROW], recorded[:, _ROW])


def key_and_row(problem: NDArray[np.int64]) -> tuple[tuple[str, int], tuple[str, int]]:
    """Returns the two numbers that a problem (4,) is known by, each with what it is."""
    return ("key", int(problem[_KEY])), ("row", int(problem[_ROW]))


def unchanged(recorded: Numbers, requested: Numbers) -> NDArray[np.bool_]:
    """Returns, (n,), whether each recorded problem is among those that are requested, with the answer that it had."""
    here = {(name, int(row[_ANSWER])) for row in requested for name in key_and_row(row)}
    return np.array([any((name, int(row[_ANSWER])) in here for name in key_and_row(row)) for row in recorded], bool)


_COLUMNS = {
    "tuned": {"family": "TEXT", "problems": "BLOB", "texts": "BLOB", "time": "TEXT"},
    "attempts": {
        "family": "TEXT", "claim": "TEXT", "problems": "BLOB", "texts": "BLOB", "frozen": "TEXT",
        "number": "INTEGER", "verdict": "TEXT", "time": "TEXT", "dropped": "TEXT",
    },
    "runs": {"name": "TEXT", "facts": "TEXT", "attempt": "INTEGER"},
}  # fmt: skip


def _table(name: str) -> str:
    columns = ", ".join(f"{column} {kind}" for column, kind in _COLUMNS[name].items())
    return f"CREATE TABLE {name} (place INTEGER PRIMARY KEY, {columns}, digest BLOB);"


_TIMED = ("tuned", "attempts")
_CONTINUES = "continues "

_SCHEMA = Schema(
    "ledger of attempts",
    0x6673646C,  # "fsdl"
    2,
    "".join(map(_table, _COLUMNS)),
    "PRAGMA journal_mode = DELETE; PRAGMA synchronous = FULL;",  # safe from a loss of power too
    "integrity_check",
)


@dataclass(frozen=True)
class Entry:
    """A row of the table of attempts.

    Args:
        claim: Name of what is claimed, such as "gsm8k, retention": attempts at it share one budget of errors.
        problems: (n, 4), in the order in which a verdict grades them.
        texts: Their questions, packed by `_packed`.
        frozen: Text of the sequence, the claim and all else that identifies the attempt.
        time: When it was opened, in UTC.
        dropped: Text of what it owes to earlier attempts, see `dropped.Dropped`; "": nothing.
        place: Row number, from 1, in the order in which attempts were opened.
    """

    family: str
    claim: str
    problems: Numbers
    texts: bytes
    frozen: str
    number: int
    verdict: str | None = None
    time: str = ""
    dropped: str = ""
    place: int = 0

    @property
    def beginning(self) -> str:
        """Begins `frozen` of the row that tests what this row's sequence goes on with."""
        return f"{_CONTINUES}{self.place}: "

    @property
    def continues(self) -> bool:
        """Whether it tests what an earlier row's sequence goes on with, and so is no attempt of its own."""
        return self.frozen.startswith(_CONTINUES)

    def stored(self) -> tuple[Any, ...]:
        """Returns the values in the order of the columns."""
        return (
            self.family, self.claim, self.problems.tobytes(), self.texts, self.frozen, self.number, self.verdict,
            self.time, self.dropped,
        )  # fmt: skip


class Run(NamedTuple):
    """A calibration by its name, with the facts it needs to come to the same result again."""

    name: str
    facts: str


class LedgerFile:
    """The rows of a ledger in a file, or in memory; to be used within `naming_errors` or `transaction`.

    Raises:
        UsageError: The file is damaged or of another version, or cannot be read or written.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        with self.naming_errors():
            self._connection = open_database(path, _SCHEMA)
        try:
            with self.naming_errors():
                for table in _COLUMNS:  # verifies all digests; takes milliseconds, since the file is small
                    self._rows(table)
        except BaseException:
            self.close()
            raise

    def tuned(self, family: str) -> Numbers:
        """Returns all problems of a family that were tuned on."""
        parts = [_stored_numbers(problems) for _, _, problems, *_ in self._rows("tuned", family=family)]
        return np.concatenate([np.empty((0, 4), np.int64), *parts])

    def add_tuned(self, family: str, problems: Numbers, texts: Sequence[str]) -> None:
        self._add("tuned", (family, problems.tobytes(), _packed(texts), _now()))

    def texts(self, family: str) -> dict[int, str]:
        """Returns the questions of all problems of a family, tuned or certified on, by their keys."""
        found = dict[int, str]()
        for table, problems_at, texts_at in (("tuned", 2, 3), ("attempts", 3, 4)):
            for row in self._rows(table, family=family):
                keys = _stored_numbers(row[problems_at])[:, _KEY].tolist()
                found |= zip(keys, json.loads(zlib.decompress(row[texts_at])), strict=True)
        return found

    def since(self) -> str:
        """Returns the time of the first row, of which there must be one."""
        times = (self._connection.execute(f"SELECT min(time) FROM {table}").fetchone()[0] for table in _TIMED)
        first: str = min(filter(None, times))
        return first

    def began_with(self, entry: Entry) -> bool:
        """Whether there was no attempt before this one, and nothing of another family, when it was opened."""
        found = (
            ("SELECT 1 FROM attempts WHERE place < ? LIMIT 1", (entry.place,)),
            ("SELECT 1 FROM tuned WHERE family != ? AND time <= ? LIMIT 1", (entry.family, entry.time)),
        )
        return all(self._connection.execute(*each).fetchone() is None for each in found)

    def attempts(self, family: str) -> list[Entry]:
        columns = ("place", *_COLUMNS["attempts"])
        rows = (dict(zip(columns, row, strict=True)) for row in self._rows("attempts", family=family))
        return [Entry(**row | {"problems": _stored_numbers(row["problems"])}) for row in rows]

    def add_attempt(self, entry: Entry) -> Entry:
        """Adds the entry, and returns it with its place."""
        return replace(entry, place=self._add("attempts", entry.stored()))

    def change_attempt(self, entry: Entry) -> None:
        """Replaces the entry at its place."""
        values, settings = entry.stored(), "".join(f"{name} = ?, " for name in _COLUMNS["attempts"])
        digest = _row_digest(entry.place, *values)
        self._connection.execute(
            f"UPDATE attempts SET {settings}digest = ? WHERE place = ?", (*values, digest, entry.place)
        )

    def runs(self, name: str) -> dict[int, Run]:
        """Returns the runs of that name by the places of their attempts, in the order in which they were added."""
        return {attempt: Run(name, facts) for _, _, facts, attempt in self._rows("runs", name=name)}

    def facts_at(self, attempt: int) -> list[str]:
        """Returns the facts of the runs that made the attempt at a place."""
        return [facts for _, _, facts, _ in self._rows("runs", attempt=attempt)]

    def add_run(self, run: Run, attempt: int) -> None:
        self._add("runs", (*run, attempt))

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Opens an exclusive transaction: no other process reads or writes in between."""
        with self.naming_errors():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")

    @contextmanager
    def naming_errors(self) -> Iterator[None]:
        """Turns damage into a UsageError: a new ledger would not know what existing certificates rest on."""
        try:
            with translate_errors(self._path, _SCHEMA.what):
                yield
        except VersionError as other:
            raise self._refused(f"is of another version ({other}); use the fsd-calib that wrote it, or") from other
        except DamageError as damage:
            raise self._refused(f"is damaged ({damage}); restore it from a copy or, where there is none,") from damage

    def _refused(self, why: str) -> UsageError:
        return UsageError(
            f"{_SCHEMA.what} {str(self._path)!r} {why} certify on problems that were never used before, with another "
            "--state"
        )

    def close(self) -> None:
        self._connection.close()

    def _rows(self, table: str, **where: str | int) -> list[list[Any]]:
        """Returns verified rows in the order of their places: the place first, without the digest."""
        condition = "".join(f" WHERE {column} = ?" for column in where)
        rows = self._connection.execute(f"SELECT * FROM {table}{condition} ORDER BY place", tuple(where.values()))
        return [_verified_values(row) for row in rows]

    def _add(self, table: str, values: tuple[Any, ...]) -> int:
        ((place,),) = self._connection.execute(f"SELECT coalesce(max(place), 0) + 1 FROM {table}")
        row = (place, *values, _row_digest(place, *values))
        self._connection.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)
        return int(place)


def _verified_values(row: tuple[Any, ...]) -> list[Any]:
    """Returns the row without its digest.

    Raises:
        DamageError: The digest is not that of the other values.
    """
    *values, digest = row
    if digest != _row_digest(*values):
        raise DamageError("an entry's digest is not that of its values")
    return values


def _row_digest(*values: Any) -> bytes:
    return hashlib.blake2b(repr(values).encode(), digest_size=16).digest()


def _stored_numbers(stored: bytes) -> Numbers:
    return np.frombuffer(stored, np.int64).reshape(-1, 4)


def _packed(texts: Sequence[str]) -> bytes:
    return zlib.compress(json.dumps(list(texts)).encode())


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def next_number(entries: Sequence[Entry], requested: Numbers, claim: str) -> int:
    """Returns the number of a further attempt: one more than the attempts at the same claim, on whatever problems, and
    those that share a problem, whatever they claimed."""
    own = (entry for entry in entries if not entry.continues)
    return 1 + sum(entry.claim == claim or bool(known(requested, entry.problems).any()) for entry in own)


class AttemptLedger:
    """The ledger in a file, or in memory.

    Attempts are grouped by family, see `fsd_decoding.models.fingerprint.family_id` of a target. Drafts, scores, T
    and the name of the task are choices within a family.

    Raises:
        UsageError: The file is damaged or of another version, or cannot be read or written.
    """

    def __init__(self, path: Path | None) -> None:
        self._file = LedgerFile(path)

    def tuned_on(self, family: str, problems: Iterable[Numbered]) -> None:
        """Records problems that influenced a choice: no later attempt of the family may certify on them."""
        problems = tuple(problems)
        questions = {tuple(row): p.question for row, p in zip(numbers(problems).tolist(), problems, strict=True)}
        with self._file.transaction():
            requested = as_set(numbers(problems))
            new = requested[~recorded_whole(requested, self._file.tuned(family))]
            if len(new):
                self._file.add_tuned(family, new, [questions[tuple(row)] for row in new.tolist()])

    def other_questions(self, family: str, problems: Iterable[Numbered]) -> list[str]:
        """Returns the questions that the ledger knows of the family, and that are not among these problems."""
        with self._file.naming_errors():
            known_texts = self._file.texts(family)
        for problem in problems:
            known_texts.pop(problem.key, None)
        return [text for text in known_texts.values() if text]

    def open(
        self, family: str, claim: str, problems: Iterable[Numbered], frozen: str, run: Run | None = None,
        continued: int | None = None, dropped: Callable[[Sequence[Entry]], str] = lambda earlier: "",
    ) -> Attempt:  # fmt: skip
        """Returns the attempt to certify `frozen`, a text of the whole sequence, the claim and its confidence.

        The same family, problems and `frozen` are the same attempt, with the same number. Problems are the same where
        all their numbers are.

        Args:
            claim: See `Entry`.
            run: Recorded with the attempt.
            continued: Number of the attempt that this is a part of, whose own text says what it goes on with. It goes
                on once: with another text, of another version of a library for instance, this is an attempt of its own,
                as it is where this is None.
            dropped: Returns what a new attempt owes to earlier ones of the family, see `Entry`; one that was opened
                before owes what it did then.

        Raises:
            UsageError: There are no problems, or some were tuned on before a verdict was recorded.
        """
        problems = tuple(problems)
        requested = numbers(problems)
        if not len(requested):
            raise UsageError("an attempt has 0 problems; it needs at least 1 to certify on")
        distinct = as_set(requested)
        with self._file.transaction():
            entries = self._file.attempts(family)
            begun = None if continued is None else _begun(entries, requested, continued)
            part = _as_part(entries, begun, frozen)
            frozen, number = part or (frozen, next_number(entries, requested, claim))
            same = [e for e in entries if e.frozen == frozen and np.array_equal(as_set(e.problems), distinct)]
            entry = _decided_first(same)
            if entry is None or entry.verdict is None:
                self._require_untuned(family, requested)
            if entry is None:
                texts = _packed([problem.question for problem in problems])
                entry = self._file.add_attempt(
                    Entry(family, claim, requested, texts, frozen, number, time=_now(), dropped=dropped(entries))
                )
            first = entry if begun is None or part is None else begun
            if run is not None and entry.place not in self._file.runs(run.name):
                self._file.add_run(run, entry.place)
            since, is_first = self._file.since(), self._file.began_with(first)
        return Attempt(self, entry, [e for e in entries if e.place < first.place], since, is_first)

    def next_number(self, family: str, claim: str, problems: Iterable[Numbered], continued: int | None = None) -> int:
        """Returns the number that a further attempt would have; for `continued` see `open`."""
        requested = numbers(problems)
        with self._file.naming_errors():
            entries = self._file.attempts(family)
        begun = None if continued is None else _begun(entries, requested, continued)
        went_on = begun is not None and any(entry.frozen.startswith(begun.beginning) for entry in entries)
        return next_number(entries, requested, claim) if begun is None or went_on else begun.number

    def facts_of(self, family: str, run: str) -> str | None:
        """Returns the facts recorded of the run of that name; None: it made no attempt."""
        with self._file.naming_errors():
            entry = self._entry_of_run(family, run)
            return None if entry is None else self._file.runs(run)[entry.place].facts

    def decided(self, family: str) -> list[tuple[Entry, list[str]]]:
        """Returns the family's decided attempts, in their order, each with the facts of the runs that made it."""
        with self._file.naming_errors():
            entries = [e for e in self._file.attempts(family) if e.verdict is not None and not e.continues]
            return [(entry, self._file.facts_at(entry.place)) for entry in entries]

    def usable(self, family: str, problems: Iterable[Numbered], run: str) -> NDArray[np.bool_]:
        """Returns, (n,), which of the problems the run may certify on.

        These are the problems of its attempt where that is decided, else those that were never tuned on.
        """
        requested = numbers(problems)
        with self._file.naming_errors():
            entry = self._entry_of_run(family, run)
            if entry is not None and entry.verdict is not None:
                return known(requested, entry.problems)
            return ~known(requested, self._file.tuned(family))

    def best_case(self, family: str, claim: str, problems: Iterable[Numbered], confidence: float) -> tuple[int, float]:
        """Returns the most problems and the highest level that an attempt on these problems can have.

        It may be a new attempt, or a decided one that is repeated.
        """
        requested = numbers(problems)
        with self._file.naming_errors():
            entries, untuned = self._file.attempts(family), requested[~known(requested, self._file.tuned(family))]
        repeatable = [e for e in entries if e.verdict is not None and known(e.problems, requested).all()]
        number = min([next_number(entries, untuned, claim), *(e.number for e in repeatable)])
        return max([len(untuned), *(len(e.problems) for e in repeatable)]), attempt_level(confidence, number)

    def _entry_of_run(self, family: str, run: str) -> Entry | None:
        """Returns the attempt that the run of that name made; of several, a decided one."""
        places = self._file.runs(run)  # read first: another process may be adding an attempt and its run
        entries = {e.place: e for e in self._file.attempts(family)}
        if not entries.keys() >= places.keys():
            raise DamageError(f"an attempt of run {run} is gone")
        return _decided_first([entries[place] for place in places])

    def _decide(self, attempt: Entry, verdict: str) -> str:
        """Records the verdict, unless there is one; returns the one that stands."""
        with self._file.transaction():
            entry = next((e for e in self._file.attempts(attempt.family) if e.place == attempt.place), None)
            if entry is None:
                raise DamageError(f"attempt {attempt.place} is gone")
            if entry.verdict is not None:
                return entry.verdict
            self._require_untuned(entry.family, entry.problems)
            self._file.change_attempt(replace(entry, verdict=verdict))
            return verdict

    def _require_untuned(self, family: str, requested: Numbers) -> None:
        tuned = int(known(requested, self._file.tuned(family)).sum())
        if tuned:
            raise UsageError(
                f"{tuned} of {len(requested)} certification problems were tuned on before and cannot be certified "
                "on; leave them out, or use others"
            )

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Attempt:
    """One attempt on a certification part, decided once.

    Attributes:
        number: 1 for the first attempt at its claim and on its problems.
        verdict: None until it is decided.
        dropped: See `Entry`.
        earlier: The family's rows before it, in their order. Where it is a part of an attempt, those before that.
        since: Time of the ledger's first row.
        is_first: Whether the ledger knew no attempt before it, of any family.
    """

    def __init__(
        self, ledger: AttemptLedger, entry: Entry, earlier: Sequence[Entry], since: str, is_first: bool
    ) -> None:
        self.number, self.verdict, self.dropped = entry.number, entry.verdict, entry.dropped
        self.earlier, self.since, self.is_first = tuple(earlier), since, is_first
        self._ledger, self._entry = ledger, entry
        self._decided = False

    @property
    def attempts_before(self) -> list[Entry]:
        """The family's attempts before it."""
        return [entry for entry in self.earlier if not entry.continues]

    @property
    def at_same_claim(self) -> list[Entry]:
        """Those of them that claimed the same."""
        return [entry for entry in self.attempts_before if entry.claim == self._entry.claim]

    def decide(self, verdict: str) -> str:
        """Records the verdict, unless another process or an earlier run has; returns the one that stands, the first.

        Raises:
            UsageError: The attempt was decided before by this object, or its problems were tuned on meanwhile.
        """
        if self._decided:
            raise UsageError(f"attempt {self.number} is decided already; another decision needs a new attempt")
        self.verdict = self._ledger._decide(self._entry, verdict)
        self._decided = True
        return self.verdict


def _begun(entries: Sequence[Entry], requested: Numbers, number: int) -> Entry:
    """Returns the attempt that goes on with these problems. UsageError: there is none that is decided."""
    for entry in entries:
        whole = not entry.continues and entry.number == number and bool(known(requested, entry.problems).all())
        if whole and entry.verdict is not None:
            return entry
    raise UsageError(
        f"attempt {number} is not decided on these problems, so nothing can go on from it; certify it first"
    )


def _as_part(entries: Sequence[Entry], begun: Entry | None, frozen: str) -> tuple[str, int] | None:
    """Returns text and number of a row that goes on from an attempt; None: it does not, or went on otherwise."""
    if begun is None:
        return None
    text = begun.beginning + frozen
    parts = {entry.frozen for entry in entries if entry.frozen.startswith(begun.beginning)}
    return (text, begun.number) if parts <= {text} else None


def _decided_first(entries: Sequence[Entry]) -> Entry | None:
    return min(entries, key=lambda entry: entry.verdict is None, default=None)
