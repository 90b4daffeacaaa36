"""Grade-school word problems with worked solutions, generated in the format of GSM8K.

    for problem in generate(seed=0, part="held-out"): print(problem.question, problem.answer)
    python -m fsd_data.problems --count 1000 --seed 7 > problems.jsonl

A hash of a question's text decides whether it belongs to the part that the bundled models were trained on or to the
held-out part. The wording is in `stories.toml`.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from random import Random
from typing import Literal, NamedTuple

Part = Literal["train", "held-out"]
Mix = Literal["target", "draft", "even", "sure-target", "sure-draft"]
"""Whose wording: that of one of the models, which may be sure of it, or all alternatives alike."""

# Weights of the alternatives, by their number. The draft's are in reverse order: the two models then disagree on the
# most likely word though both know every word, a harmless disagreement of small divergence (js .03 and .07).
_TARGET_WEIGHTS: dict[int, tuple[float, ...]] = {1: (1.0,), 2: (0.62, 0.38), 3: (0.52, 0.28, 0.20)}
_SURE_WEIGHTS: dict[int, tuple[float, ...]] = {1: (1.0,), 2: (0.99, 0.01), 3: (0.985, 0.01, 0.005)}
_BRACKET = re.compile(r"\[([^\]]*)\]")


@cache
def _parts(template: str) -> tuple[tuple[str, ...], ...]:
    """`"a [b|c] d"` -> `(("a ",), ("b", "c"), (" d",))`."""
    pieces = _BRACKET.split(template)
    return tuple((piece,) if i % 2 == 0 else tuple(piece.split("|")) for i, piece in enumerate(pieces))


@cache
def weights(alternatives: int, mix: Mix) -> tuple[float, ...]:
    """Returns the probability of each alternative of a bracket under one model's wording."""
    if mix == "even":
        return (1.0 / alternatives,) * alternatives
    preferred = (_SURE_WEIGHTS if mix.startswith("sure-") else _TARGET_WEIGHTS)[alternatives]
    return preferred if mix.endswith("target") else preferred[::-1]


def say(template: str, rng: Random, names: Mapping[str, object], mix: Mix = "even") -> str:
    """Chooses one alternative in every bracket of `template`, then fills in the `{names}`."""
    chosen = []
    for options in _parts(template):
        if len(options) == 1:
            chosen.append(options[0])
        else:
            chosen.append(rng.choices(options, weights(len(options), mix))[0])
    return "".join(chosen).format_map(names)


NAMES = (
    "Ana", "Ben", "Carla", "Dev", "Elif", "Finn", "Grace", "Hugo", "Ines", "Jon", "Kira", "Liam", "Mia", "Noor", "Omar",
    "Priya", "Rosa", "Sam", "Tara", "Yusuf",
)  # fmt: skip
_LARGEST = 199  # largest result, so that a tiny model can learn to calculate
_HELD_OUT_SHARE = 0.25
_CLASSES = 10  # of the problems of seeds
_FIRST = 3000  # problems of seed 0 that no other seed has


class Event(NamedTuple):
    """An event that changes the running amount; `stories.toml` describes its fields."""

    op: str
    tell: str
    step: str


class Story(NamedTuple):
    name: str
    items: tuple[str, ...]
    start: Event
    events: tuple[Event, ...]
    ask: str


_WORDING = tomllib.loads(Path(__file__).with_name("stories.toml").read_text(encoding="utf-8"))
STORIES = tuple(
    Story(
        each["name"], tuple(each["items"]), Event(*each["start"]), tuple(Event(*e) for e in each["events"]), each["ask"]
    )
    for each in _WORDING["stories"]
)


class GeneratedProblem(NamedTuple):
    question: str
    answer: str  # worked solution, its last line `#### N`
    family: str
    steps: int


class _Step(NamedTuple):
    template: str
    sum: str
    result: int


def part_of(question: str) -> Part:
    """Returns the part that a question belongs to, whatever its origin."""
    return _part(_digest(question))


def _part(digest: bytes) -> Part:
    return "held-out" if digest[0] < 256 * _HELD_OUT_SHARE else "train"


def _digest(question: str) -> bytes:
    return hashlib.sha256(question.encode()).digest()[:12]


def generate(seed: int, part: Part = "held-out", mix: Mix = "target") -> Iterator[GeneratedProblem]:
    """Yields an endless stream of distinct problems of one part.

    Args:
        seed: seed of the stream.
        part: part that the problems belong to.
        mix: wording of the solutions.
    """
    rng = Random(f"fsd-data/{seed}")
    digests: set[bytes] = set()
    while True:
        problem = _problem(rng, mix)
        digest = _digest(problem.question)
        if _part(digest) == part and digest not in digests:
            digests.add(digest)
            yield problem


def fresh(seed: int) -> Iterator[GeneratedProblem]:
    """Yields an endless stream of distinct held-out problems, of which other seeds have none.

    A hash of the question deals the problems out to ten classes, and a seed has those of its last digit, without the
    first of seed 0, which takes all that it draws. So only seeds with the same last digit may share some.
    """
    if seed == 0:
        yield from generate(0)
    first = {problem.question for problem in itertools.islice(generate(0), _FIRST)}
    for problem in generate(seed):
        own = int.from_bytes(_digest(problem.question)[1:], "big") % _CLASSES == seed % _CLASSES
        if own and problem.question not in first:
            yield problem


def _problem(rng: Random, mix: Mix) -> GeneratedProblem:
    story = rng.choice(STORIES)
    names: dict[str, object] = {"who": rng.choice(NAMES), "items": rng.choice(story.items)}
    length = rng.choice((2, 2, 3, 3, 3, 4, 4, 5))
    sentences, steps = _open(story, rng, names)
    unused = list(story.events)
    while len(steps) < length and unused:
        event = unused.pop(rng.randrange(len(unused)))
        drawn = _draw_event(event, steps[-1].result, length - len(steps), rng)
        if drawn is not None:
            numbers, new_steps = drawn
            sentences.append(say(event.tell, rng, names | numbers))
            steps += new_steps
    sentences.append(say(story.ask, rng, names))
    return GeneratedProblem(" ".join(sentences), _solution(steps, rng, mix, names), story.name, len(steps))


def _open(story: Story, rng: Random, names: dict[str, object]) -> tuple[list[str], list[_Step]]:
    a, b = rng.randint(2, 12), rng.randint(2, 12)
    result = a * b if story.start.op == "*" else a + b
    sentence = say(story.start.tell, rng, names | {"a": a, "b": b})
    return [sentence], [_Step(story.start.step, f"{a}{story.start.op}{b}={result}", result)]


def _draw_event(event: Event, now: int, room: int, rng: Random) -> tuple[dict[str, int], list[_Step]] | None:
    """Returns numbers for `event` and its solution steps, or None where none fit the amount `now`.

    Args:
        room: largest number of steps.
    """
    if event.op == "+*":
        n, k = rng.randint(2, 9), rng.randint(2, 9)
        if room < 2 or now + n * k > _LARGEST:
            return None
        part = _Step(_WORDING["added_part"], f"{n}*{k}={n * k}", n * k)
        return {"n": n, "k": k}, [part, _Step(event.step, f"{now}+{n * k}={now + n * k}", now + n * k)]
    choices = _operands(event.op, now)
    if not choices:
        return None
    n = rng.choice(choices)
    result = {"+": now + n, "-": now - n, "*": now * n, "/": now // n}[event.op]
    return {"n": n}, [_Step(event.step, f"{now}{event.op}{n}={result}", result)]


def _operands(op: str, now: int) -> list[int]:
    if op == "+":
        return list(range(2, min(40, _LARGEST - now) + 1))
    if op == "-":
        return list(range(2, min(40, now - 2) + 1))
    if op == "*":
        return [n for n in (2, 3, 4, 5) if now * n <= _LARGEST]
    return [n for n in range(2, 10) if now % n == 0 and now // n > 1]


def _solution(steps: list[_Step], rng: Random, mix: Mix, names: dict[str, object]) -> str:
    lines = []
    for i, step in enumerate(steps):
        opener = say(_WORDING["later_opener" if i else "first_opener"], rng, {}, mix)
        lines.append(opener + say(step.template, rng, names | {"sum": step.sum}, mix) + ".")
    lines.append(say(_WORDING["closing"], rng, {"r": steps[-1].result}, mix))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Write held-out problems as GSM8K-style JSON lines.")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    for problem in itertools.islice(generate(options.seed), options.count):
        print(json.dumps({"question": problem.question, "answer": problem.answer}))


if __name__ == "__main__":
    main()
