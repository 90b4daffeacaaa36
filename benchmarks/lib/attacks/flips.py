"""Single bits of a profile flipped: a reader refuses the file, or returns what was written."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from fsd_calib import ThresholdProfile
from fsd_decoding.errors import UsageError
from lib.attacks.cases import Case, random_of
from lib.attacks.commands import Ended, control_character, run

ATTACK = "flips"
_SHOWN_AS_EDITED = "edited: not certified"
_PROMPT = "Ann has 3 boxes of 12 pens. How many?"

Load = Callable[[Path], Any]


def flip(path: Path, random: Random) -> str:
    """Flips one bit of a file, of a byte that is not zero: databases are mostly free space. Returns which."""
    content = bytearray(path.read_bytes())
    used = [place for place, byte in enumerate(content) if byte] or range(len(content))
    place, bit = random.choice(used), random.randrange(8)
    content[place] ^= 1 << bit
    path.write_bytes(content)
    return f"bit {bit} of byte {place} of {len(content)}"


def attack_reader(
    profile: Path, numbers: Iterable[int], seed: int, scratch: Path, load: Load = ThresholdProfile.load
) -> Iterator[Case]:
    """Flips a bit per case and loads the profile in this process."""
    original = _read(load, profile)
    for number in numbers:
        copy = Path(shutil.copy(profile, scratch / "flipped.json"))
        damage = flip(copy, random_of(seed, ATTACK, number))
        yield Case(ATTACK, number, "profile.json", damage, *judge(partial(_read, load, copy), original))


def judge(read: Callable[[], str], original: str) -> tuple[str, str]:
    """Returns the verdict on one reading, with its evidence."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            content = read()
    except UsageError as error:
        found = control_character(str(error))
        return ("refused", str(error)) if found is None else ("unclear", f"{found!r} is in the message {error!s:.200}")
    except Exception as error:
        return "traceback", f"{type(error).__name__}: {error!s:.200}"
    differing = [line for line in content.splitlines() if line not in original]
    return ("equal", "") if content == original else ("silent", f"read as {' '.join(differing).strip()[:200]}")


def attack_commands(profile: Path, numbers: Iterable[int], seed: int, scratch: Path) -> Iterator[Case]:
    """Flips a bit per case and gives the profile to a command."""
    undisturbed: dict[str, Ended] = {}
    for number in numbers:
        name = ("profile", "generate")[number % 2]
        copy = scratch / "profile.json"
        if name not in undisturbed:
            shutil.copy(profile, copy)
            undisturbed[name] = run(name, _arguments(name, copy))
        shutil.copy(profile, copy)
        damage = flip(copy, random_of(seed, ATTACK, number))
        ended = run(name, _arguments(name, copy))
        yield Case(ATTACK, number, f"profile.json by fsd-{name}", damage, *_judge_command(ended, undisturbed[name]))


def _arguments(name: str, profile: Path) -> list[str | Path]:
    if name == "profile":
        return ["show", profile]
    return ["--profile", profile, "--device", "cpu", _PROMPT]


def _judge_command(ended: Ended, undisturbed: Ended) -> tuple[str, str]:
    if (complaint := ended.complaint()) is not None:
        return complaint
    if ended.refused:
        return "refused", ended.last_line
    if ended.code == undisturbed.code and ended.out == undisturbed.out:
        return "equal", ""
    if ended.out.startswith(_SHOWN_AS_EDITED):
        return "refused", "shown, as edited and not certified"
    return "silent", f"exit code {ended.code}, another output than the whole profile's"


def _read(load: Load, path: Path) -> str:
    return str(load(path).model_dump_json(indent=1))
