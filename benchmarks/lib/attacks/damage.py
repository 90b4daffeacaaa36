"""Kinds of damage to files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

from lib.attacks.flips import flip

_BLOCK = 512  # bytes; a sector


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


# Flips thrice: they are the smallest damage, and the hardest to see.
_KINDS: dict[str, tuple[int, Callable[[Path, Random], str]]] = {
    "flip": (3, flip), "truncate": (1, truncate), "zero": (1, zero), "delete": (1, delete),
    "exchange": (1, exchange_blocks), "append": (1, append),
}  # fmt: skip
KINDS = tuple(name for name, (times, _) in _KINDS.items() for _ in range(times))


def damage_one(kind: str, files: Sequence[Path], random: Random) -> str:
    """Damages one of the files; returns what was done to which."""
    path = random.choice([file for file in files if file.stat().st_size])
    others = [file for file in files if file != path and file.suffix == path.suffix]
    if kind == "exchange" and others:
        return f"{path.name}: {exchange_files(path, random.choice(others))}"
    return f"{path.name}: {_KINDS[kind][1](path, random)}"
