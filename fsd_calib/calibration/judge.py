"""The judge of a calibration: loads or trains the score that is learned; see docs/judge.md.

Labels are collected in `fsd_collectors.judging`, and a judge is trained in `fsd_predictors.judging`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from shutil import copyfile

import pandas as pd

from fsd_calib.calibration.session import Session
from fsd_calib.engines.own import OwnEngine
from fsd_calib.measuring.evaluator import Evaluator
from fsd_calib.options.common import AUTO, PathLike
from fsd_calib.options.search_space import SearchSpace
from fsd_calib.tasks.base import Problem
from fsd_calib.vllm_plugin.engine_checks import READS_CONTEXT
from fsd_collectors.judging.collect import collect_labels
from fsd_collectors.judging.labels import read_labels
from fsd_collectors.manifest import LabelManifest
from fsd_collectors.store.reading import Traces, load_traces
from fsd_common.argument_checks import named
from fsd_common.digests import facts_digest
from fsd_common.errors import UsageError
from fsd_common.settings import listed
from fsd_common.user_folders import default_cache
from fsd_decoding.judging.features import FEATURES
from fsd_decoding.judging.known import register
from fsd_decoding.judging.model import JudgeModel
from fsd_decoding.judging.score import Judge
from fsd_decoding.judging.token_classes import token_classes
from fsd_decoding.models.runner import vocabulary_size
from fsd_decoding.profile.parts import SamplingInfo
from fsd_decoding.scores import score_named
from fsd_predictors.judging.card import card_elsewhere, card_of
from fsd_predictors.judging.training import SHOWN, Origin, train_judge

FILE, CARD = "judge.json", "judge.md"
"""In the folder of a profile: a trained judge, and its card."""
KEPT, LABELS, CONTEXT = "judges-trained", "labels", "context"
"""In the cache: folders of judges, each named by all that its labels follow from; in each of them these, and a judge
that may read the text before a drafted token, too."""
LEAST = 64
"""Tuning problems that a search needs beside those that were read for a judge."""


def check(judge: JudgeModel, session: Session) -> None:
    """Says where a judge is of another task.

    Raises:
        UsageError: it is of other models than the session's, or of other sampling.
    """
    score = score_named(judge.name)
    assert isinstance(score, Judge)
    if session.engine.info is not None and score.reads_context:
        raise UsageError(f"score {judge.name} {READS_CONTEXT}")
    for engine in session.engines:
        pair, sampling = engine.pair, engine.decoding.sampling
        score.check(pair.target.fingerprint, pair.draft.fingerprint, pair.tokenizer, sampling)
    if judge.task != session.task.name:
        session.progress.note(
            f"{judge.name} was learned on task {judge.task!r}; what it keeps on {session.task.name!r} the certificate "
            "decides"
        )


def trained_here(session: Session, asked: SearchSpace, out: Path | None, train: bool) -> JudgeModel | None:
    """Returns a judge that was trained on the second half of the tuning part.

    Args:
        asked: how many mismatches to label, what the judge may read, and what its card tells of.
        out: folder of the profile, which has the judge and its card too; labels are in the cache.
        train: whether one may be trained; else it is that of an earlier run of the same.

    Returns:
        None: a run will train it.

    Raises:
        UsageError: it cannot be trained with this engine or draft, too few problems are left for the search, too few
            mismatches change an outcome, or the other labels are of other models or sampling.
    """
    if not isinstance(session.engine, OwnEngine) or session.drafts or session.engine.pair.draft.kind != "model":
        raise UsageError(
            f"{named('judge')} is {AUTO!r}, and a judge is trained by our own engine with one draft that is a model; "
            "train it so, and give its file"
        )
    problems = _training_problems(session)
    if (others := len(session.tuning.problems) - len(problems)) < LEAST:
        raise UsageError(
            f"there are {len(session.tuning.problems)} tuning problems, of which a judge would leave {others} for the "
            f"search, and that needs {LEAST}: give more problems ({named('limit')}), or do without a judge"
        )
    elsewhere = _labels_of(session, listed(asked.judge_others or ()))
    kept = _folder(session, problems, asked.judge_budget)
    folder = kept / CONTEXT if asked.judge_context else kept
    if train:
        session.tuned.mark(problems)
    if not (folder / FILE).exists():
        if not train:
            return None
        labels = _labelled(session, problems, asked.judge_budget, kept / LABELS)
        _train(session, labels, FEATURES if asked.judge_context else SHOWN, folder)
    judge = JudgeModel.load(folder / FILE)
    if train and out is not None:
        out.mkdir(parents=True, exist_ok=True)
        copyfile(folder / FILE, out / FILE)
        card = (folder / CARD).read_text(encoding="utf-8")
        more = f"\n{card_elsewhere(judge, elsewhere)}" if elsewhere else ""
        (out / CARD).write_text(card + more, encoding="utf-8")
    register(judge)
    return judge


def apart(session: Session, judge: JudgeModel) -> Session:
    """Returns the session whose search goes without the tuning problems that were read for the judge.

    Also without those that have no labels, as the target's answer is wrong: were they alone left in, the search would
    see too many of them.

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


def _labelled(session: Session, problems: Sequence[Problem], budget: int, folder: Path) -> Traces:
    decoder, sampling = session.decoder, session.decoder.sampling
    task = replace(session.task, problems=tuple(problems))
    return collect_labels(
        task, target=decoder.target, draft=decoder.draft, tokenizer=decoder.tokenizer, out=folder,
        budget=budget, temperature=sampling.temperature, top_k=sampling.top_k, top_p=sampling.top_p,
        min_p=sampling.min_p, seed=decoder.seed, batch_size=session.batch_size, progress=session.progress,
        workers=session.workers,
    )  # fmt: skip


def _train(session: Session, labels: Traces, features: Sequence[str], folder: Path) -> None:
    read = labels.to_pandas(["problem"], table="completions")["problem"].tolist()
    assert isinstance(labels.manifest, LabelManifest)
    origin, seed = _origin(session, labels.manifest), session.decoder.seed
    with session.progress.step("training the judge", 0):
        trained = train_judge(read_labels(labels.path), origin, features, seed=seed, read=read)
    folder.mkdir(exist_ok=True)
    (folder / CARD).write_text(card_of(trained), encoding="utf-8")
    trained.judge.save(folder / FILE)


def _labels_of(session: Session, folders: Sequence[PathLike]) -> Mapping[str, pd.DataFrame]:
    """Returns labels of other tasks by their names. UsageError: they are of other models or sampling."""
    own, found = session.engine.pair, dict[str, pd.DataFrame]()
    sampling = SamplingInfo.model_validate(session.decoder.sampling, from_attributes=True)
    for folder in folders:
        labels, about = read_labels(folder), load_traces(folder).manifest
        theirs = about.target.fingerprint, about.draft.fingerprint, about.tokenizer, about.sampling
        if theirs != (own.target.fingerprint, own.draft.fingerprint, own.tokenizer, sampling):
            raise UsageError(
                f"the labels in {str(folder)!r} are of other models or sampling than this calibration; label "
                "mismatches of these, or leave them out"
            )
        found[about.task.name] = labels
    return found


def _training_problems(session: Session) -> Sequence[Problem]:
    """The second half of the tuning part; the search has the first, so that what it finds is not what was fitted."""
    problems = session.tuning.problems
    return problems[len(problems) // 2 :]


def _origin(session: Session, labels: LabelManifest) -> Origin:
    decoder, pair = session.decoder, session.engine.pair
    vocabulary = max(vocabulary_size(model) for model in (decoder.target, decoder.draft))
    return Origin(
        pair.target.fingerprint, pair.draft.fingerprint, pair.tokenizer, decoder.sampling, session.task.name,
        token_classes(decoder.tokenizer, vocabulary), labels.phase,
    )  # fmt: skip


def _folder(session: Session, problems: Sequence[Problem], budget: int) -> Path:
    """Where a judge is kept for later runs of the same, and for those that were interrupted."""
    facts = [session.identity, [problem.id for problem in problems], budget, session.batch_size]
    return (session.cache or default_cache()) / KEPT / facts_digest(facts)[:16]
