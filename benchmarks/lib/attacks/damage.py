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


# --- bytes ------------------------------------------------------------------------------------------------


def flip(content: bytes, random: Random) -> bytes:
    """Flips one bit, of a byte that is not zero: databases are mostly free space."""
    used = [place for place, byte in enumerate(content) if byte] or range(len(content))
    place, bit = random.choice(used), random.randrange(8)
    return content[:place] + bytes([content[place] ^ 1 << bit]) + content[place + 1 :]


def _zero(content: bytes, random: Random) -> bytes:
    start = _BLOCK * random.randrange(-(-len(content) // _BLOCK))
    return content[:start] + bytes(len(content[start : start + _BLOCK])) + content[start + _BLOCK :]


def _exchange(content: bytes, random: Random) -> bytes:
    """Exchanges two blocks, as a write that went to the wrong place does."""
    blocks = [content[start : start + _BLOCK] for start in range(0, len(content), _BLOCK)]
    one, other = random.choices(range(len(blocks)), k=2)
    blocks[one], blocks[other] = blocks[other], blocks[one]
    return b"".join(blocks)


def _insert(content: bytes, random: Random) -> bytes:
    place = random.randrange(len(content))
    return content[:place] + b"\0" + content[place:]


_BYTES: dict[str, Callable[[bytes, Random], bytes]] = {
    "flip": flip,
    "truncate": lambda content, random: content[: random.randrange(len(content))],
    "zero": _zero,
    "exchange": _exchange,
    "append": lambda content, random: content + random.randbytes(random.randint(1, 300)),
    "empty": lambda content, random: b"",
    "repeat": lambda content, random: content * 2,
    "null": _insert,
}

# --- what stands in a file's place ------------------------------------------------------------------------


def _replaced(by: Callable[[Path], None]) -> Callable[[Path], None]:
    def replace(path: Path) -> None:
        path.unlink()
        by(path)

    return replace


_PLACES: dict[str, Callable[[Path], None]] = {
    "delete": Path.unlink,
    "pipe": _replaced(os.mkfifo),
    "device": _replaced(lambda path: path.symlink_to("/dev/zero")),
    "folder": _replaced(Path.mkdir),
    "ring": _replaced(lambda path: path.symlink_to(path.name)),
    "terabyte": lambda path: os.truncate(path, 1 << 40),
}

# --- values -----------------------------------------------------------------------------------------------


def _change(holder: Any, key: Any) -> None:
    holder[key] = _MARK


def _duplicate(holder: Any, key: Any) -> None:
    """Repeats an item of a list, or adds a name to an object."""
    holder.append(holder[key]) if isinstance(holder, list) else holder.update({f"{key}_": holder[key]})


_VALUES: dict[str, Callable[[Any, Any], object]] = {
    "change": _change, "drop": lambda holder, key: holder.pop(key), "duplicate": _duplicate,
}  # fmt: skip
_WITH_VALUES = {".json", ".jsonl", ".yaml"}


def _edit(path: Path, kind: str, random: Random) -> str:
    """Edits one value of a file of JSON, JSON Lines or YAML; returns which, and what hostile one is in its place."""
    name = random.choice(list(_HOSTILE))
    content = path.read_text()
    lines = content.splitlines() if path.suffix == ".jsonl" else [content]
    number = random.randrange(len(lines))
    values = yaml.safe_load(content) if path.suffix == ".yaml" else json.loads(lines[number])
    places = list(_places(values, ""))
    if not places:
        path.write_bytes(flip(path.read_bytes(), random))
        return "flip"
    holder, key, where = random.choice(places)
    _VALUES[kind](holder, key)
    indent = 1 if len(lines) == 1 else None
    written = json.dumps(values, indent=indent, default=str)
    lines[number] = written.replace(json.dumps(_MARK), _HOSTILE[name])
    path.write_text("\n".join(lines) + "\n")
    return f"{kind} {where}{f' to {name}' if kind == 'change' else ''} in line {number + 1}"


def _places(values: Any, where: str) -> Iterator[tuple[Any, Any, str]]:
    """Yields all places of values: what holds one, by what key, and where."""
    keys = values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else ()
    for key, value in list(keys):
        yield values, key, f"{where}.{key}".lstrip(".")
        yield from _places(value, f"{where}.{key}")


# --- one of them ------------------------------------------------------------------------------------------

VALUES = (*("change",) * 5, *("drop",) * 2, "duplicate")  # there are many values
KINDS = (*("flip",) * 2, *_BYTES, *_PLACES, *VALUES)  # flips thrice: the smallest damage, and the hardest to see


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
        other, content = random.choice(others), path.read_bytes()
        path.write_bytes(other.read_bytes())
        other.write_bytes(content)
        return f"{path.name}: exchanged with {other.name}"
    if kind in _VALUES:
        return f"{path.name}: {_edit(path, kind, random)}"
    if kind in _PLACES:
        _PLACES[kind](path)
        return f"{path.name}: {kind}"
    before, after = path.read_bytes(), _BYTES[kind](path.read_bytes(), random)
    path.write_bytes(after)
    place = next((n for n, (one, other) in enumerate(zip(before, after, strict=False)) if one != other), len(after))
    return f"{path.name}: {kind}, from byte {place} of {len(before)}"
