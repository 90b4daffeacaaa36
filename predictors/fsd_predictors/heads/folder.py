"""The folder of a head in training, which the same command continues.

config.json, model.safetensors   the head, once it is finished
training.json, card.md           how it was trained, and how well it drafts
unfinished/facts.json            what the training is of
unfinished/texts.jsonl           the target's texts so far, one a line
unfinished/checkpoint.pt         head and optimiser after the last whole epoch
unfinished/.lock                 held by the process that trains
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from fsd_collectors.store.folder import atomic_write, sync
from fsd_decoding.errors import UsageError

UNFINISHED, FACTS, TEXTS, CHECKPOINT, LOCK = "unfinished", "facts.json", "texts.jsonl", "checkpoint.pt", ".lock"
CARD, TRAINING = "card.md", "training.json"
_OURS = {"config.json", "model.safetensors", TRAINING, CARD, UNFINISHED}

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

    @contextmanager
    def held(self) -> Iterator[None]:
        """Inside, the folder is this process's own.

        Raises:
            UsageError: it holds other files or an unfinished training of something else, is in use, or cannot be
                written.
        """
        try:
            if others := sorted(each.name for each in self.path.glob("*") if each.name not in _OURS):
                raise UsageError(f"--out {str(self.path)!r} holds {others[0]!r}, which is no head's; choose another")
            self._unfinished.mkdir(parents=True, exist_ok=True)
            with FileLock(self._unfinished / LOCK, timeout=0):
                self._check()
                yield
        except Timeout as error:
            raise UsageError(
                f"--out {str(self.path)!r} is in use by another training; wait, or choose another"
            ) from error
        except OSError as error:
            raise UsageError(f"--out {str(self.path)!r} cannot be written: {error.strerror}; choose another") from error

    def texts(self) -> list[Text]:
        """Returns the texts that were kept; a last line that was cut off is dropped."""
        path = self._unfinished / TEXTS
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        whole = [line for line in lines if line.endswith("\n")]
        if len(whole) < len(lines):
            with atomic_write(path) as file:
                file.write("".join(whole).encode())
        return [tuple(json.loads(line)) for line in whole]

    def add(self, texts: Sequence[Text]) -> None:
        """Keeps further texts."""
        with open(self._unfinished / TEXTS, "ab") as file:
            file.write("".join(json.dumps(text) + "\n" for text in texts).encode())
            sync(file)

    def checkpoint(self) -> dict[str, Any] | None:
        """Returns the state after the last whole epoch; None: there is none."""
        path = self._unfinished / CHECKPOINT
        return torch.load(path, weights_only=True) if path.exists() else None

    def keep(self, checkpoint: dict[str, Any]) -> None:
        """Keeps the state after an epoch."""
        with atomic_write(self._unfinished / CHECKPOINT) as file:
            torch.save(checkpoint, file)

    def finish(self, files: Mapping[str, bytes]) -> None:
        """Writes the head, replacing an earlier one, and removes what continued its training."""
        for name, content in files.items():
            with atomic_write(self.path / name) as file:
                file.write(content)
        shutil.rmtree(self._unfinished)

    def _check(self) -> None:
        path = self._unfinished / FACTS
        if not path.exists():
            with atomic_write(path) as file:
                file.write(json.dumps(self._facts, indent=2).encode())
            return
        found = json.loads(path.read_text())
        if differing := [name for name in self._facts if found.get(name) != self._facts[name]]:
            name = differing[0]
            raise UsageError(
                f"--out {str(self.path)!r} holds an unfinished training whose {name} is {_short(found.get(name))}, not "
                f"{_short(self._facts[name])}; choose another folder, or remove {str(self._unfinished)!r}"
            )


def _short(value: Any) -> str:
    return f"{value!r:.40}"
