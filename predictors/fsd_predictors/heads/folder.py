"""The folder of a head in training, which the same command continues.

config.json, model.safetensors   the head, once it is finished
training.json, card.md           how it was trained, and how well it drafts
unfinished/facts.json            what the training is of
unfinished/texts.jsonl           the target's texts so far, one a line
unfinished/checkpoint.pt         head and optimiser after the last whole epoch
unfinished/.lock                 held by the process that trains
unfinished.tmp                   what a finished training did not come to remove
"""

from __future__ import annotations

import json
import pickle
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from fsd_collectors.store.folder import TEMPORARY, atomic_write, sync
from fsd_decoding.errors import UsageError
from fsd_predictors.output_folder import check_own

UNFINISHED, FACTS, TEXTS, CHECKPOINT, LOCK = "unfinished", "facts.json", "texts.jsonl", "checkpoint.pt", ".lock"
CARD, TRAINING = "card.md", "training.json"
_HEAD = ("config.json", "model.safetensors")
_OWN = "|".join(map(re.escape, (*_HEAD, TRAINING, CARD, UNFINISHED)))

Text = tuple[list[int], list[int]]
"""Tokens of a prompt and of the target's completion."""


class HeadFolder:
    """A folder that one process trains a head in.

    Args:
        path: the folder.
        facts: what the training is of. An unfinished one is continued only where they are the same.
    """

    def __init__(self, path: Path, facts: Mapping[str, Any]) -> None:
        self.path, self._facts = path, json.loads(json.dumps(facts))
        self._unfinished, self._left = path / UNFINISHED, path / (UNFINISHED + TEMPORARY)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Inside, the folder is this process's own.

        Raises:
            UsageError: it holds other files, a head of another origin or an unfinished training of something else, is
                in use, or cannot be written.
        """
        check_own(self.path, _OWN, "a head")
        self._check_origin()
        with self._writing():
            self._unfinished.mkdir(parents=True, exist_ok=True)
            lock = self._lock()
        with lock:
            with self._writing():
                shutil.rmtree(self._left, ignore_errors=True)
                self._begin_or_check()
            yield

    def texts(self) -> list[Text]:
        """Returns the texts that were kept; a last line that was cut off is dropped. UsageError: they are damaged."""
        path = self._unfinished / TEXTS
        with self._reading(path), self._writing():
            lines = path.read_text().splitlines(keepends=True) if path.exists() else []
            whole = [line for line in lines if line.endswith("\n")]
            if len(whole) < len(lines):
                with atomic_write(path) as file:
                    file.write("".join(whole).encode())
            return [(prompt, completion) for prompt, completion in map(json.loads, whole)]

    def add(self, texts: Sequence[Text]) -> None:
        """Keeps further texts."""
        with self._writing(), open(self._unfinished / TEXTS, "ab") as file:
            file.write("".join(json.dumps(text) + "\n" for text in texts).encode())
            sync(file)

    def restore(self, load: Callable[[dict[str, Any]], None]) -> None:
        """Calls `load` with the state after the last whole epoch, if there is one. UsageError: it is damaged."""
        path = self._unfinished / CHECKPOINT
        if path.exists():
            with self._reading(path):
                load(torch.load(path, weights_only=True, map_location="cpu"))

    def keep(self, checkpoint: dict[str, Any]) -> None:
        """Keeps the state after an epoch."""
        with self._writing(), atomic_write(self._unfinished / CHECKPOINT) as file:
            torch.save(checkpoint, file)

    def finish(self, files: Mapping[str, bytes]) -> None:
        """Writes the head, replacing an earlier one, and removes what continued its training."""
        with self._writing():
            for name, content in files.items():
                with atomic_write(self.path / name) as file:
                    file.write(content)
            # A rename is all or nothing: a kill cannot leave texts without the facts that they are of.
            self._unfinished.rename(self._left)
            shutil.rmtree(self._left)

    def _lock(self) -> AbstractContextManager[Any]:
        try:
            return FileLock(self._unfinished / LOCK).acquire(timeout=0)
        except Timeout as error:
            raise UsageError(
                f"--out {str(self.path)!r} is in use by another training; wait, or choose another"
            ) from error

    def _check_origin(self) -> None:
        """UsageError: it holds a model or a head that was not trained here, which a training would replace."""
        made = any((self.path / name).exists() for name in (TRAINING, UNFINISHED))
        if not made and (there := [name for name in _HEAD if (self.path / name).exists()]):
            raise UsageError(
                f"--out {str(self.path)!r} holds {there[0]!r} of a model or head that was not trained here; choose "
                "another"
            )

    def _begin_or_check(self) -> None:
        path = self._unfinished / FACTS
        if not path.exists():
            for name in (TEXTS, CHECKPOINT):  # of what, nothing says
                (self._unfinished / name).unlink(missing_ok=True)
            with atomic_write(path) as file:
                file.write(json.dumps(self._facts, indent=2).encode())
            return
        with self._reading(path):
            found = dict(json.loads(path.read_text()))
        if differing := _difference("", found, self._facts):
            raise UsageError(
                f"--out {str(self.path)!r} holds an unfinished training whose {differing}; choose another folder, or "
                f"remove {str(self._unfinished)!r}"
            )

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = error.strerror or error
            raise UsageError(f"--out {str(self.path)!r} cannot be written: {reason}; choose another") from error

    @contextmanager
    def _reading(self, path: Path) -> Iterator[None]:
        """Inside, whatever a damaged file raises is a UsageError."""
        try:
            yield
        except (ValueError, TypeError, LookupError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
            raise UsageError(f"{str(path)!r} is damaged; remove {str(self._unfinished)!r} to begin anew") from error


def _difference(name: str, found: Any, wanted: Any) -> str:
    """Returns the first value that differs, by its dotted name, and what it is in both; empty where none does."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        inner = (_difference(f"{name}.{key}".strip("."), found.get(key), wanted[key]) for key in wanted)
        return next(filter(None, inner), "")
    return "" if found == wanted else f"{name} is {found!r:.40}, not {wanted!r:.40}"
