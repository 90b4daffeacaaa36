"""The folder of a head in training, which the same command continues.

config.json, model.safetensors   the head, once it is finished
training.json, card.md           how it was trained, and how well it drafts
unfinished/facts.json            what the training is of
unfinished/texts.jsonl           the target's texts so far, one a line, each with a digest of it and its place
unfinished/checkpoint.pt         head and optimiser after the last whole epoch, after a digest of them
unfinished/.lock                 held by the process that trains
unfinished.tmp                   the same, about to be removed, once the head is finished
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from fsd_common.argument_checks import named
from fsd_common.digests import difference, facts_digest
from fsd_common.errors import UsageError
from fsd_common.files import atomic_write, foreign_name, leftovers, open_to_append, sync
from fsd_decoding.drafters.eagle import TRAINING

UNFINISHED, DISCARDED, FACTS, TEXTS = "unfinished", "unfinished.tmp", "facts.json", "texts.jsonl"
CHECKPOINT, LOCK = "checkpoint.pt", ".lock"
_DIGEST_SIZE = hashlib.sha256().digest_size
CARD = "card.md"
_OURS = r"config\.json|model\.safetensors|training\.json|card\.md|unfinished(\.tmp)?"
_OURS_UNFINISHED = r"facts\.json|texts\.jsonl|checkpoint\.pt|\.lock"

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
        self._unfinished = path / UNFINISHED
        self._discarded = path / DISCARDED

    @contextmanager
    def held(self) -> Iterator[None]:
        """Inside, the folder is this process's own.

        Raises:
            UsageError: it holds other files or an unfinished training of something else, is in use, or cannot be
                written.
        """
        lock = FileLock(self._unfinished / LOCK, timeout=0)
        try:
            self._begin(lock)
            yield
        finally:
            lock.release()

    def texts(self) -> list[Text]:
        """Returns the texts that were kept; a last line that was cut off is dropped.

        Raises:
            UsageError: they are damaged.
        """
        path = self._unfinished / TEXTS
        with self._reading(TEXTS):
            lines = path.read_text().splitlines(keepends=True) if path.exists() else []
            whole = [line for line in lines if line.endswith("\n")]
            if len(whole) < len(lines):
                with atomic_write(path) as file:
                    file.write("".join(whole).encode())
            return [_text_of(number, line) for number, line in enumerate(whole)]

    def add(self, texts: Sequence[Text]) -> None:
        """Keeps further texts."""
        lines = enumerate(texts, len(self.texts()))
        with open_to_append(self._unfinished / TEXTS) as file:
            file.write("".join(json.dumps([*text, _digest(number, text)]) + "\n" for number, text in lines).encode())
            sync(file)

    def checkpoint(self) -> dict[str, Any] | None:
        """Returns the state after the last whole epoch, on the CPU; None: there is none.

        Raises:
            UsageError: it is damaged.
        """
        path = self._unfinished / CHECKPOINT
        with self._reading(CHECKPOINT):
            if not path.exists():
                return None
            content = path.read_bytes()
            digest, state = content[:_DIGEST_SIZE], content[_DIGEST_SIZE:]
            if digest != hashlib.sha256(state).digest():
                raise ValueError("it was changed")
            kept: dict[str, Any] = torch.load(io.BytesIO(state), map_location="cpu", weights_only=True)
            return kept

    @contextmanager
    def _reading(self, name: str) -> Iterator[None]:
        """Inside, an unfinished training's file is read.

        Raises:
            UsageError: it is damaged.
        """
        path = self._unfinished / name
        try:
            if path.exists() and not path.is_file():  # reading it may never end
                raise ValueError("it is not a regular file")
            yield
        except (torch.OutOfMemoryError, OSError):
            raise
        except Exception as error:  # what readers raise of damaged files is of all kinds
            reason = str(error).strip().split("\n")[0].rstrip(". ") or type(error).__name__
            raise UsageError(
                f"{str(path)!r} is damaged: {reason:.100}; remove {str(self._unfinished)!r} to begin anew"
            ) from error

    def keep(self, checkpoint: dict[str, Any]) -> None:
        """Keeps the state after an epoch."""
        torch.save(checkpoint, state := io.BytesIO())
        with atomic_write(self._unfinished / CHECKPOINT) as file:
            file.write(hashlib.sha256(state.getbuffer()).digest())
            file.write(state.getbuffer())

    def finish(self, files: Mapping[str, bytes]) -> None:
        """Writes the head, replacing an earlier one, and removes what continued its training."""
        for name, content in files.items():
            with atomic_write(self.path / name) as file:
                file.write(content)
        self._unfinished.rename(self._discarded)  # at once, so that no later training continues a part of it
        shutil.rmtree(self._discarded)

    def _begin(self, lock: FileLock) -> None:
        """Takes the folder; raises what `held` does."""
        try:
            self._check_place()
            self._unfinished.mkdir(parents=True, exist_ok=True)
            lock.acquire()
            if self._discarded.exists():
                shutil.rmtree(self._discarded)
            for unfinished in (*leftovers(self.path), *leftovers(self._unfinished)):
                unfinished.unlink()
            self._check_facts()
        except Timeout as error:
            raise UsageError(
                f"{named('out')} {str(self.path)!r} is in use by another training; wait, or choose another"
            ) from error
        except OSError as error:
            raise UsageError(
                f"{named('out')} {str(self.path)!r} cannot be written: {error.strerror}; choose another"
            ) from error

    def _check_place(self) -> None:
        """Raises UsageError where the folder is not one that a training wrote to, unless it is empty or missing."""
        for folder, ours in ((self.path, _OURS), (self._unfinished, _OURS_UNFINISHED)):
            if other := foreign_name(folder, ours):
                raise UsageError(f"{named('out')} {str(folder)!r} holds {other!r}, which is no head's; choose another")
        names = {path.name for path in self.path.glob("*")}
        if names and not names & {TRAINING, UNFINISHED}:
            raise UsageError(
                f"{named('out')} {str(self.path)!r} holds {min(names)!r} and no {TRAINING}, so it is no head that was "
                "trained here; choose another"
            )

    def _check_facts(self) -> None:
        """Raises UsageError where an unfinished training is of something else; without one, notes what this is of."""
        path = self._unfinished / FACTS
        if not path.exists():
            for name in (TEXTS, CHECKPOINT):  # of which nobody knows what they are of
                (self._unfinished / name).unlink(missing_ok=True)
            with atomic_write(path) as file:
                file.write(json.dumps(self._facts, indent=2).encode())
            return
        with self._reading(FACTS):
            differing = difference(self._facts, json.loads(path.read_text()))
        if differing:
            name, own, found = differing
            raise UsageError(
                f"{named('out')} {str(self.path)!r} holds an unfinished training whose {name} is {found!r:.80}, not "
                f"{own!r:.80}; choose another folder, or remove {str(self._unfinished)!r}"
            )


def _digest(number: int, text: Text) -> str:
    return facts_digest([number, *text])[:16]


def _text_of(number: int, line: str) -> Text:
    """The text in a line, which is counted from 0. ValueError: it was changed, or another is missing."""
    prompt, completion, digest = json.loads(line)
    if digest != _digest(number, (prompt, completion)):
        raise ValueError(f"line {number + 1} was changed")
    return prompt, completion
