"""Grade-school word problems with worked solutions, generated in GSM8K's own form.

    for problem in generate(seed=0, part="held-out"): print(problem.question, problem.answer)
    python -m fsd_data.problems --count 1000 --seed 7 > problems.jsonl

Knows the numbers and how a problem is put together; the words are in `stories.py`. Every question
belongs, by a hash of its text, to the part models were trained on or to the part they never saw.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
from collections.abc import Iterator
from random import Random
from typing import Literal, NamedTuple

from fsd_data.stories import CLOSING, LATER, OPENERS, PART, STORIES, Event, Story
from fsd_data.wording import Mix, say

Part = Literal["train", "held-out"]

NAMES = (
    "Ana",
    "Ben",
    "Carla",
    "Dev",
    "Elif",
    "Finn",
    "Grace",
    "Hugo",
    "Ines",
    "Jon",
    "Kira",
    "Liam",
    "Mia",
    "Noor",
    "Omar",
    "Priya",
    "Rosa",
    "Sam",
    "Tara",
    "Yusuf",
)
_LARGEST = 199  # keeps every result within three digits, so that a tiny model can learn to calculate
_HELD_OUT_SHARE = 0.25


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
    """The part a question belongs to, whoever generated it and from whatever seed."""
    return _part(_digest(question))


def _part(digest: bytes) -> Part:
    return "held-out" if digest[0] < 256 * _HELD_OUT_SHARE else "train"


def _digest(question: str) -> bytes:
    return hashlib.sha256(question.encode()).digest()[:12]


def generate(seed: int, part: Part = "held-out", mix: Mix = "target") -> Iterator[GeneratedProblem]:
    """An endless stream of problems of one part, without repeats; `mix` words the solutions."""
    rng = Random(f"fsd-data/{seed}")
    seen: set[bytes] = set()
    while True:
        problem = _problem(rng, mix)
        digest = _digest(problem.question)
        if _part(digest) == part and digest not in seen:
            seen.add(digest)
            yield problem


def _problem(rng: Random, mix: Mix) -> GeneratedProblem:
    story = rng.choice(STORIES)
    names: dict[str, object] = {"who": rng.choice(NAMES), "items": rng.choice(story.items)}
    wanted = rng.choice((2, 2, 3, 3, 3, 4, 4, 5))
    told, steps = _open(story, rng, names)
    unused = list(story.events)
    while len(steps) < wanted and unused:
        event = unused.pop(rng.randrange(len(unused)))
        happened = _happen(event, steps[-1].result, wanted - len(steps), rng)
        if happened is not None:
            numbers, new_steps = happened
            told.append(say(event.tell, rng, names | numbers))
            steps += new_steps
    told.append(say(story.ask, rng, names))
    return GeneratedProblem(" ".join(told), _solution(steps, rng, mix, names), story.name, len(steps))


def _open(story: Story, rng: Random, names: dict[str, object]) -> tuple[list[str], list[_Step]]:
    a, b = rng.randint(2, 12), rng.randint(2, 12)
    result = a * b if story.start.op == "*" else a + b
    told = say(story.start.tell, rng, names | {"a": a, "b": b})
    return [told], [_Step(story.start.step, f"{a}{story.start.op}{b}={result}", result)]


def _happen(event: Event, now: int, room: int, rng: Random) -> tuple[dict[str, int], list[_Step]] | None:
    """Numbers for `event` and the solution steps it adds, or None when none fit the amount `now`."""
    if event.op == "+*":
        n, k = rng.randint(2, 9), rng.randint(2, 9)
        if room < 2 or now + n * k > _LARGEST:
            return None
        part = _Step(PART, f"{n}*{k}={n * k}", n * k)
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
        opener = say(OPENERS if i == 0 else LATER, rng, {}, mix)
        lines.append(opener + say(step.template, rng, names | {"sum": step.sum}, mix) + ".")
    lines.append(say(CLOSING, rng, {"r": steps[-1].result}, mix))
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
