"""The judge of a calibration: loads or trains the score that is learned; see docs/judge.md.

Labels are collected in `fsd_collectors.judging`, and a judge is trained in `fsd_predictors.judging`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from fsd_calib.calibration.session import Session
from fsd_calib.common_options import AUTO
from fsd_calib.engines.own import OwnEngine
from fsd_calib.measuring.evaluator import Evaluator
from fsd_calib.tasks.base import Problem
from fsd_calib.vllm_plugin.engine_checks import READS_CONTEXT
from fsd_collectors.judging.collect import collect_labels
from fsd_collectors.judging.labels import read_labels
from fsd_common.argument_checks import named
from fsd_common.errors import UsageError
from fsd_decoding.judging.known import register
from fsd_decoding.judging.model import JudgeModel
from fsd_decoding.judging.score import Judge
from fsd_decoding.judging.token_classes import token_classes
from fsd_decoding.models.runner import vocabulary_size
from fsd_decoding.scores import score_named
from fsd_predictors.judging.card import card_of
from fsd_predictors.judging.training import Origin, train_judge

FILE, LABELS, CARD = "judge.json", "judge-labels", "judge.md"
"""In the folder of a profile: a trained judge, what it was trained on, and its card."""
LEAST = 64
"""Tuning problems that a search needs beside those that a judge was trained on."""


def check(judge: JudgeModel, session: Session) -> None:
    """Raises UsageError where a judge is of other models than the session's, or of another temperature."""
    score = score_named(judge.name)
    assert isinstance(score, Judge)
    if session.engine.info is not None and score.reads_context:
        raise UsageError(f"score {judge.name} {READS_CONTEXT}")
    for engine in session.engines:
        pair = engine.pair
        sampling = engine.decoding.sampling
        score.check(pair.target.fingerprint, pair.draft.fingerprint, pair.tokenizer, sampling.temperature)


def trained_here(session: Session, budget: int, out: Path | None, train: bool) -> JudgeModel | None:
    """Returns a judge that was trained on the second half of the tuning part.

    Args:
        budget: mismatches to label.
        out: folder of the profile, where labels, judge and card are; None: they are in the cache, or temporary.
        train: whether one may be trained; else it is that of an earlier run of the same.

    Returns:
        None: a run will train it.

    Raises:
        UsageError: it cannot be trained with this engine or draft, or too few mismatches change an outcome.
    """
    if not isinstance(session.engine, OwnEngine) or session.drafts or session.engine.pair.draft.kind != "model":
        raise UsageError(
            f"{named('judge')} is {AUTO!r}, and a judge is trained by our own engine with one draft that is a model; "
            "train it so, and give its file"
        )
    with _folder(session, out) as folder:
        if not train:
            return _registered(JudgeModel.load(folder / FILE)) if (folder / FILE).exists() else None
        return _trained(session, budget, folder)


def apart(session: Session, judge: JudgeModel) -> Session:
    """Returns the session whose search goes without the tuning problems that the judge was trained on.

    Raises:
        UsageError: too few are left.
    """
    trained, every = judge.trained_ids, session.tuning.problems
    problems = [problem for problem in every if problem.id not in trained]
    if len(problems) < LEAST:
        raise UsageError(
            f"the judge was trained on {len(every) - len(problems)} of {len(every)} tuning problems, and a search "
            f"needs {LEAST} others: give more problems"
        )
    return replace(session, tuning=Evaluator(session.tuned.before(session.decode), problems, session.tuning.part))


def _registered(judge: JudgeModel) -> JudgeModel:
    register(judge)
    return judge


def _trained(session: Session, budget: int, folder: Path) -> JudgeModel:
    decoder, problems = session.decoder, _training_problems(session)
    session.tuned.mark(problems)
    task = replace(session.task, problems=tuple(problems))
    collect_labels(
        task, target=decoder.target, draft=decoder.draft, tokenizer=decoder.tokenizer, out=folder / LABELS,
        budget=budget, temperature=decoder.sampling.temperature, seed=decoder.seed, batch_size=session.batch_size,
        progress=session.progress, workers=session.workers,
    )  # fmt: skip
    labels = read_labels(folder / LABELS)
    with session.progress.step("training the judge", 0):
        trained = train_judge(labels, _origin(session), seed=decoder.seed)
    trained.judge.save(folder / FILE)
    (folder / CARD).write_text(card_of(trained), encoding="utf-8")
    return _registered(trained.judge)


def _training_problems(session: Session) -> Sequence[Problem]:
    """The second half of the tuning part; the search has the first, so that what it finds is not what was fitted."""
    problems = session.tuning.problems
    return problems[len(problems) // 2 :]


def _origin(session: Session) -> Origin:
    decoder, pair = session.decoder, session.engine.pair
    vocabulary = max(vocabulary_size(model) for model in (decoder.target, decoder.draft))
    return Origin(
        pair.target.fingerprint, pair.draft.fingerprint, pair.tokenizer, decoder.sampling.temperature,
        session.task.name, token_classes(decoder.tokenizer, vocabulary),
    )  # fmt: skip


@contextmanager
def _folder(session: Session, out: Path | None) -> Iterator[Path]:
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        yield out
        return
    with TemporaryDirectory() as temporary:
        yield Path(temporary)
