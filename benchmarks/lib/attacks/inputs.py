"""Inputs that are written to do harm: tasks in YAML, their templates and expressions, data, and draft heads."""

from __future__ import annotations

import gzip
import json
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from lib.attacks.cases import Case, Stage, Verdict
from lib.attacks.guarded import GuardedProcess, Reading, fault_of
from lib.attacks.hostile_yaml import HOSTILE
from lib.attacks.subjects import SUBJECTS, TASK, Asked, Content, read_data

ATTACK = "inputs"
_SUBJECTS = {subject.name: subject for subject in SUBJECTS}
_WEIGHTS = "model.safetensors"


def _written(name: str, content: str | bytes) -> Callable[[Path], object]:
    encoded = content.encode() if isinstance(content, str) else content
    return lambda folder: (folder / name).write_bytes(encoded)


def _bomb(folder: Path) -> None:
    """Writes a megabyte that unpacks to more than a gigabyte."""
    with gzip.open(folder / "rows.jsonl.gz", "wb", compresslevel=1) as file:
        for _ in range(1100):
            file.write(bytes(1 << 20))


def _entries(**changes: Any) -> Callable[[Path], object]:
    """Changes entries of a head's config.json."""

    def change(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


def _tensors(name: str, make: Callable[[torch.Tensor], Any], key: Any = None) -> Callable[[Path], object]:
    """Puts a pickle in the place of a head's weights, one of which is another.

    key: the name that it gets; None: its own.
    """

    def change(folder: Path) -> None:
        weights: dict[Any, Any] = load_file(folder / _WEIGHTS)
        (folder / _WEIGHTS).unlink()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch means to give up quantised tensors
            weights[name if key is None else key] = make(weights[name])
            torch.save(weights, folder / "pytorch_model.bin")

    return change


def _not_finite(folder: Path) -> None:
    weights = load_file(folder / _WEIGHTS)
    save_file(weights | {"fc.weight": weights["fc.weight"] * torch.nan}, folder / _WEIGHTS)


def _code(folder: Path) -> None:
    (folder / _WEIGHTS).unlink()
    torch.save(exec, folder / "pytorch_model.bin")


HEADS: dict[str, Callable[[Path], object]] = {
    "a layer of terabytes": _entries(intermediate_size=12_000_000), "a size of 10**30": _entries(hidden_size=10**30),
    "a size below 0": _entries(intermediate_size=-4), "positions without end": _entries(max_position_embeddings=10**15),
    "a size in words": _entries(num_attention_heads="four"), "a rotation": _entries(rope_scaling={"rope_type": None}),
    "not finite": _not_finite, "sparse": _tensors("fc.weight", torch.Tensor.to_sparse),
    "quantised": _tensors("fc.weight", lambda old: torch.quantize_per_tensor(old.float(), 1.0, 0, torch.qint8)),
    "without memory": _tensors("fc.weight", lambda old: old.to("meta")),
    "a number": _tensors("fc.weight", lambda old: 7), "numbered": _tensors("fc.weight", lambda old: old, key=1),
    "whole numbers": _tensors("fc.weight", torch.Tensor.long),
    "of code": _code,
}  # fmt: skip
DATA: dict[str, Callable[[Path], object]] = {
    "a bomb of gzip": _bomb, "depth": _written("rows.jsonl", "[" * 100_000 + "\n"),
    "depth of objects": _written("rows.json", '[{"a":' * 100_000),
    "5,000 digits": _written("rows.jsonl", '{"a": ' + "7" * 5000 + "}"),
    "quotes": _written("rows.csv", 'a,b\n"' + '""' * 500_000),
    "columns": _written("rows.csv", "a," * 200_000 + "b\n1\n"),
    "Parquet without an end": _written("rows.parquet", b"PAR1" * 1000),
    "UTF-16": _written("rows.jsonl", b"\xff\xfea\0"),
}  # fmt: skip
ACCEPTED = {"positions without end"}  # tables of positions are made as long as texts are, so any number will do


def _cases() -> list[tuple[str, str, Callable[[Path], object], str]]:
    """Returns subject, name, what writes the input, and a part of the line that refuses it."""
    tasks = [("task file", name, _written(TASK, text), said) for name, (text, said) in HOSTILE.items()]
    return [*tasks, *(("head", name, change, "") for name, change in HEADS.items()),
            *(("hostile data", name, write, "") for name, write in DATA.items())]  # fmt: skip


def attack(stage: Stage) -> Iterator[Case]:
    cases, folder = _cases(), stage.folder(ATTACK) / "inputs"
    with GuardedProcess() as process:
        for number in stage.chosen(range(len(cases)), [0]):
            name, what, write, said = cases[number]
            shutil.rmtree(folder, ignore_errors=True)
            read: Callable[[Path, Asked], Content] = read_data
            asked: Asked = {}
            if name == "hostile data":
                folder.mkdir()
                write(folder)
                asked["names"] = [path.name for path in folder.iterdir()]
            else:
                read = _SUBJECTS[name].read
                shutil.copytree(_SUBJECTS[name].made(stage)[0], folder)
                (folder / "mine.py").write_text("from os import system\n")
                write(folder)
            reading = process.call(read, folder, asked)
            verdict = _judge(reading, said, accepted=what in ACCEPTED)
            yield Case(ATTACK, number, name, what, *verdict, reading.seconds)


def _judge(reading: Reading, said: str, accepted: bool) -> Verdict:
    if (fault := fault_of(reading)) is not None:
        return fault
    if reading.refusal is None:
        return ("read", "") if accepted else ("silent", f"it is accepted: {reading.content!s:.200}")
    return ("refused" if said in reading.refusal else "unclear"), reading.refusal
