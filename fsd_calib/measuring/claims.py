"""Claims on problems that a process is about to decode, so that processes which share a cache share the work.

Nothing depends on claims but time: where they are lost, or a process is wrongly taken for dead, a problem is decoded
twice.
"""

from __future__ import annotations

import json
import sqlite3
from typing import Any
from uuid import uuid4

from fsd_calib.storage.processes import Watch, is_alive, this_process

TABLE = """
    CREATE TABLE claims (
        number INTEGER PRIMARY KEY AUTOINCREMENT, key BLOB, problem INTEGER, prompt BLOB, owner BLOB,
        UNIQUE (key, problem, prompt)
    );
"""
_SILENT = 600.0  # seconds without a new claim or a finished text, of an owner that cannot be seen from here
_HUNG = 3600.0  # the same for one that is known to exist

Place = tuple[bytes, int, bytes]  # key, problem and prompt: T is left out, since a text is valid for many


class Claims:
    """This process's view of the table of claims."""

    def __init__(self) -> None:
        # With a number of its own, as two caches of one process may be used by two threads.
        self._own = json.dumps(this_process() | {"claims": uuid4().hex}, sort_keys=True).encode()
        self._watch = Watch()

    def is_free(self, connection: sqlite3.Connection, place: Place) -> bool:
        """Returns whether no other live process has claimed a problem."""
        found = connection.execute("SELECT owner FROM claims WHERE (key, problem, prompt) = (?, ?, ?)", place)
        return all(owner == self._own or not self._may_be_decoding(connection, owner) for (owner,) in found.fetchall())

    def take(self, connection: sqlite3.Connection, place: Place) -> None:
        """Claims a problem for this process."""
        connection.execute(
            "INSERT OR REPLACE INTO claims (key, problem, prompt, owner) VALUES (?, ?, ?, ?)", (*place, self._own)
        )

    def drop(self, connection: sqlite3.Connection, place: Place) -> None:
        """Drops the claim on a problem, whose text is cached now."""
        connection.execute("DELETE FROM claims WHERE (key, problem, prompt) = (?, ?, ?)", place)

    def drop_own(self, connection: sqlite3.Connection) -> None:
        connection.execute("DELETE FROM claims WHERE owner = ?", (self._own,))

    def _may_be_decoding(self, connection: sqlite3.Connection, owner: Any) -> bool:
        try:
            alive = is_alive(json.loads(owner))
        except (ValueError, TypeError, AttributeError, KeyError):  # a damaged row
            return False
        ((numbers,),) = connection.execute("SELECT sum(number) FROM claims WHERE owner = ?", (owner,))
        unchanged = self._watch.seconds_unchanged(owner, numbers)
        return alive is not False and unchanged < (_HUNG if alive else _SILENT)
