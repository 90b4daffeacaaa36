"""Tuning problems that influence choices before the search are marked in the ledger."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from fsd_calib.calibration.baseline import TRACED, traces_along_target
from fsd_calib.calibration.policy_families import shapes
from fsd_calib.calibration.predictor import choose
from fsd_calib.calibration.session import Session, open_session
from fsd_calib.certification.attempt_ledger import AttemptLedger
from fsd_calib.certification.claim import Claim
from fsd_calib.engines.own import OwnEngine
from fsd_calib.options.run_config import RunConfig
from fsd_calib.search.space import Space
from fsd_calib.tasks.near_duplicates import held
from fsd_calib.tasks.split import parts_of
from fsd_common.progress.base import Silent
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.drafters.ngram import NGram, NGramCorpus
from fsd_decoding.models.fingerprint import family_id
from support.models import tiny_calibration
from support.models.tiny_models import word_tokenizer

STORY = "Ana has {} apples and gives {} of them to each of her {} friends at school. How many has she left over?"
SPACE = Space(("fsd-coupled",), ("js",), (4,))


@contextmanager
def session(folder: Path, problems: int) -> Iterator[Session]:
    decoder = SpeculativeDecoder(*tiny_calibration.far_apart(), word_tokenizer(), seed=0)
    with open_session(
        OwnEngine(decoder, tiny_calibration.task(problems)),
        tiny_calibration.task(problems),
        RunConfig(cache=folder, state=folder),
    ) as made:
        yield made


def marked(made: Session, folder: Path) -> list[bool]:
    """For each tuning problem whether it may not certify anything."""
    with AttemptLedger(folder / "ledger.sqlite") as ledger:
        usable = ledger.usable(family_id(made.decoder.target), made.tuning.problems, "none")
        return [not free for free in usable]


def test_traces_hold_no_outcome_and_mark_nothing(tmp_path: Path) -> None:
    with session(tmp_path, 60) as made, traces_along_target(made, ("js",), made.tuning.problems):
        made.tuning.measure(made.setting("target"))
        made.tuning.measure(made.setting("coupled", 4))
        assert not any(marked(made, tmp_path))


def test_problems_that_weigh_prompts_are_marked(tmp_path: Path) -> None:
    with session(tmp_path, 300) as made:
        with traces_along_target(made, ("js",), made.tuning.problems) as traces:
            shapes(["per-prompt"], made, SPACE, traces)
        assert all(marked(made, tmp_path))


def test_what_a_draft_was_trained_on_certifies_nothing_with_it(tmp_path: Path) -> None:
    task, target = tiny_calibration.task(100), tiny_calibration.far_apart()[0]
    seen = parts_of(task).certification[:9]
    keys = frozenset().union(*(problem.keys for problem in seen))
    corpus = NGramCorpus.of([[2, 3, 4]], 2, keys)
    decoder = SpeculativeDecoder(target, NGram(2, corpus), word_tokenizer(), seed=0)
    with open_session(OwnEngine(decoder, task), task, RunConfig(cache=tmp_path, state=tmp_path)) as made:
        left = made.certifying("run", frozenset()).holdout
        assert made.holdout.problems - left.problems == len(seen)
        assert not {problem.id for problem in left.part} & {problem.id for problem in seen}


def test_a_problem_that_was_seen_in_other_words_is_told_of(tmp_path: Path) -> None:
    """The ledger keeps the questions of calibrations, so that rewritten ones are found, if not left out."""
    stories = [STORY.format(f"w{i}", f"w{i + 1}", f"w{i + 2}") for i in range(2, 62)]

    class Notes(Silent):
        def note(self, text: str) -> None:
            lines.append(text)

    lines = list[str]()
    task = tiny_calibration.task(60)
    problems = [
        replace(p, id=i, question=q, prompt=p.prompt)
        for i, (p, q) in enumerate(zip(task.problems, stories, strict=True))
    ]
    retold = [replace(p, id=1000 + p.id, question=p.question.replace("Ana", "Now Ana")) for p in problems]
    decoder = SpeculativeDecoder(*tiny_calibration.far_apart(), word_tokenizer(), seed=0)
    config = RunConfig(cache=tmp_path, state=tmp_path, progress=Notes())
    for each, told in ((problems, False), (retold, True)):
        own = replace(task, problems=tuple(each))
        with open_session(OwnEngine(decoder, own), own, config) as made:
            made.tuned.mark(made.tuning.problems)
            lines.clear()
            made.certifying("run", frozenset())
            assert any("resemble one that was tuned or certified on before" in line for line in lines) == told


def test_a_tasks_own_tuning_problems_raise_no_alarm(tmp_path: Path) -> None:
    """A regression: every second run told of 50 certification problems that resembled its own tuning problems."""
    lines = list[str]()

    class Notes(Silent):
        def note(self, text: str) -> None:
            lines.append(text)

    stories = [STORY.format(f"w{i % 2}", f"w{i // 2}", "w9") for i in range(2, 122)]  # each is there twice, nearly
    problems = tuple(
        replace(p, id=i, question=q)
        for i, (p, q) in enumerate(zip(tiny_calibration.task(120).problems, stories, strict=True))
    )
    task = replace(tiny_calibration.task(120), problems=problems)
    decoder = SpeculativeDecoder(*tiny_calibration.far_apart(), word_tokenizer(), seed=0)
    with open_session(
        OwnEngine(decoder, task), task, RunConfig(cache=tmp_path, state=tmp_path, progress=Notes())
    ) as made:
        made.tuned.mark(made.tuning.problems)
        assert held([p.question for p in made.holdout.part], [p.question for p in made.tuning.problems]) is not None
        lines.clear()
        made.certifying("run", frozenset())
        assert not lines


@pytest.mark.slow
def test_problems_that_train_a_predictor_are_marked(tmp_path: Path) -> None:
    with session(tmp_path, 1050) as made:
        choose("auto", made, SPACE, tmp_path)
        assert marked(made, tmp_path) == [n >= TRACED for n in range(len(made.tuning.problems))]


def test_a_copy_of_a_description_with_other_problems_is_the_next_attempt(tmp_path: Path) -> None:
    whole, numbers = tiny_calibration.task(200), []
    new = {problem.key for problem in whole.problems} - {problem.key for problem in whole.problems[:100]}
    others = tuple(problem for problem in whole.problems if problem.key in new)
    decoder = SpeculativeDecoder(*tiny_calibration.far_apart(), word_tokenizer(), seed=0)
    for name, problems in (("jan.yaml", whole.problems[:100]), ("feb.yaml", others)):
        task = replace(whole, name=name, asks="a description", problems=problems)
        with open_session(OwnEngine(decoder, task), task, RunConfig(cache=tmp_path, state=tmp_path)) as made:
            fuzzy = replace(made.setting("fsd-coupled", 4), threshold=0.1)
            opened = made.holdout.open([fuzzy], made.setting("target"), Claim(0.9), 0.95)
            numbers.append(opened.attempt.number)
    assert numbers == [1, 2]
