"""Kinds of damage to files: of bytes, of values that JSON and YAML hold, and of what stands in a file's place."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import yaml

_BLOCK = 512  # bytes; a sector
_MARK = "replaced by hostile text"
_HOSTILE = {  # as JSON writes it
    "null": "null", "true": "true", "a text": '"x"', "an empty text": '""', "-1": "-1", "1e308": "1e308", "2.5": "2.5",
    "infinity": "1e999", "NaN": "NaN", "10**30": str(10**30), "5,000 digits": "7" * 5000, "a list": "[]",
    "an object": "{}", "depth": "[" * 5000 + "]" * 5000, "half a character": r'"\ud800"', "a null": r'"\u0000"',
    "colours": r'"\u001b[31mred"', "a long text": '"' + "x" * 100_000 + '"', "many": "[" + "0," * 50_000 + "0]",
}  # fmt: skip


def flip(path: Path, random: Random) -> str:
    """Flips one bit of a file, of a byte that is not zero: databases are mostly free space. Returns which."""
    content = bytearray(path.read_bytes())
    used = [place for place, byte in enumerate(content) if byte] or range(len(content))
    place, bit = random.choice(used), random.randrange(8)
    content[place] ^= 1 << bit
    path.write_bytes(content)
    return f"bit {bit} of byte {place} of {len(content)}"


def truncate(path: Path, random: Random) -> str:
    content = path.read_bytes()
    length = random.randrange(len(content)) if content else 0
    path.write_bytes(content[:length])
    return f"truncated to {length} of {len(content)} bytes"


def zero(path: Path, random: Random) -> str:
    content = path.read_bytes()
    start = _BLOCK * random.randrange(-(-len(content) // _BLOCK))
    block = len(content[start : start + _BLOCK])
    path.write_bytes(content[:start] + bytes(block) + content[start + block :])
    return f"{block} bytes from {start} zeroed"


def delete(path: Path, random: Random) -> str:
    path.unlink()
    return "deleted"


def append(path: Path, random: Random) -> str:
    garbage = random.randbytes(random.randint(1, 300))
    path.write_bytes(path.read_bytes() + garbage)
    return f"{len(garbage)} bytes appended"


def empty(path: Path, random: Random) -> str:
    path.write_bytes(b"")
    return "emptied"


def repeat(path: Path, random: Random) -> str:
    path.write_bytes(path.read_bytes() * 2)
    return "written twice"


def insert_null(path: Path, random: Random) -> str:
    content = path.read_bytes()
    place = random.randrange(len(content))
    path.write_bytes(content[:place] + b"\0" + content[place:])
    return f"a null before byte {place}"


def exchange_blocks(path: Path, random: Random) -> str:
    """Exchanges two blocks of a file, as a write that went to the wrong place does."""
    content = path.read_bytes()
    blocks = [content[start : start + _BLOCK] for start in range(0, len(content), _BLOCK)]
    one, other = random.choices(range(len(blocks)), k=2)
    blocks[one], blocks[other] = blocks[other], blocks[one]
    path.write_bytes(b"".join(blocks))
    return f"blocks {one} and {other} exchanged"


def exchange_files(path: Path, other: Path) -> str:
    content = path.read_bytes()
    path.write_bytes(other.read_bytes())
    other.write_bytes(content)
    return f"exchanged with {other.name}"


# --- what stands in a file's place ------------------------------------------------------------------------


def as_pipe(path: Path, random: Random) -> str:
    path.unlink()
    os.mkfifo(path)
    return "a pipe"


def as_device(path: Path, random: Random) -> str:
    path.unlink()
    path.symlink_to("/dev/zero")
    return "/dev/zero"


def as_folder(path: Path, random: Random) -> str:
    path.unlink()
    path.mkdir()
    return "a folder"


def as_ring(path: Path, random: Random) -> str:
    path.unlink()
    path.symlink_to(path.name)
    return "a link to itself"


def as_terabyte(path: Path, random: Random) -> str:
    os.truncate(path, 1 << 40)
    return "followed by zeros up to a terabyte"


# --- values -----------------------------------------------------------------------------------------------


def change_value(path: Path, random: Random) -> str:
    """Puts a hostile value in the place of one in a file of JSON, JSON Lines or YAML."""
    name = random.choice(list(_HOSTILE))
    return _edited(path, random, lambda holder, key: _put(holder, key, _MARK), _HOSTILE[name], f"{name} for")


def drop_value(path: Path, random: Random) -> str:
    return _edited(path, random, lambda holder, key: holder.pop(key), "", "without")


def duplicate_value(path: Path, random: Random) -> str:
    """Repeats the items of a list, or adds a name to an object."""

    def repeat(holder: Any, key: Any) -> None:
        holder.append(holder[key]) if isinstance(holder, list) else holder.update({f"{key}_": holder[key]})

    return _edited(path, random, repeat, "", "another")


def _edited(path: Path, random: Random, edit: Callable[[Any, Any], object], text: str, what: str) -> str:
    """Edits one place of a file's values; `text` is written where the edit has put `_MARK`."""
    content = path.read_text()
    lines = content.splitlines() if path.suffix == ".jsonl" else [content]
    number = random.randrange(len(lines))
    values = yaml.safe_load(content) if path.suffix == ".yaml" else json.loads(lines[number])
    places = list(_places(values, ""))
    if not places:
        return flip(path, random)
    holder, key, where = random.choice(places)
    edit(holder, key)
    indent = 1 if len(lines) == 1 else None
    lines[number] = json.dumps(values, indent=indent, default=str).replace(json.dumps(_MARK), text)
    path.write_text("\n".join(lines) + "\n")
    return f"{what} {where}" + f" in line {number + 1}" * (len(lines) > 1)


def _places(values: Any, where: str) -> Iterator[tuple[Any, Any, str]]:
    """Yields all places of values: what holds one, by what key, and where."""
    keys = values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else ()
    for key, value in list(keys):
        yield values, key, f"{where}.{key}".lstrip(".")
        yield from _places(value, f"{where}.{key}")


def _put(holder: Any, key: Any, value: Any) -> None:
    holder[key] = value


# Flips thrice: they are the smallest damage, and the hardest to see. Values too: there are many.
_BYTES: dict[str, tuple[int, Callable[[Path, Random], str]]] = {
    "flip": (3, flip), "truncate": (1, truncate), "zero": (1, zero), "delete": (1, delete),
    "exchange": (1, exchange_blocks), "append": (1, append), "empty": (1, empty), "repeat": (1, repeat),
    "null": (1, insert_null), "pipe": (1, as_pipe), "device": (1, as_device), "folder": (1, as_folder),
    "ring": (1, as_ring), "terabyte": (1, as_terabyte),
}  # fmt: skip
_VALUES: dict[str, tuple[int, Callable[[Path, Random], str]]] = {
    "change": (5, change_value), "drop": (2, drop_value), "duplicate": (1, duplicate_value),
}  # fmt: skip
VALUES = tuple(name for name, (times, _) in _VALUES.items() for _ in range(times))
KINDS = (*(name for name, (times, _) in _BYTES.items() for _ in range(times)), *VALUES)
_WITH_VALUES = {".json", ".jsonl", ".yaml"}


def damage_one(kind: str, files: Sequence[Path], random: Random) -> str:
    """Damages one of the files; returns what was done to which."""
    candidates = [file for file in files if file.stat().st_size]
    if kind in _VALUES:
        candidates = [file for file in candidates if file.suffix in _WITH_VALUES]
        if not candidates:
            return damage_one("flip", files, random)
    path = random.choice(candidates)
    others = [file for file in files if file != path and file.suffix == path.suffix]
    if kind == "exchange" and others:
        return f"{path.name}: {exchange_files(path, random.choice(others))}"
    return f"{path.name}: {(_BYTES | _VALUES)[kind][1](path, random)}"
