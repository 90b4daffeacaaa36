"""Replicas of vLLM in processes of this machine and in actors of Ray: the texts of one engine, whatever is killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace

import pytest

from fsd_calib.engines.base import DecodingRequest, KeyedPrompt
from fsd_calib.engines.vllm.engine import VllmEngine, VllmEngineSource
from fsd_calib.engines.workers import EngineWorkers
from fsd_calib.tasks.base import Task
from fsd_decoding.engine.result import Result
from fsd_decoding.profile.setting import Setting
from fsd_decoding.workers.model_workers import Capacity, ModelWorkers, Sources, open_workers
from support.ray_clusters import local_cluster
from support.vllm_engine import DRAFT, TARGET, arithmetic, engine_source
from support.worker_tasks import pid_after

pytestmark = pytest.mark.slow

COUNT = 24
FUZZY = Setting("fsd-coupled", "js", 4, 0.1)
died: list[str] = []  # notes of this module's workers


@pytest.fixture(scope="module")
def task() -> Task:
    return arithmetic(COUNT)


@pytest.fixture(scope="module")
def source(task: Task) -> VllmEngineSource:
    return engine_source(task)


@pytest.fixture(scope="module")
def engine(source: VllmEngineSource, task: Task) -> VllmEngine:
    made = source.engine(None)
    made.check_intervals([KeyedPrompt(problem.id, problem.prompt) for problem in task.problems])
    return made


@pytest.fixture(scope="module", params=[None, "auto"], ids=["processes", "actors"])
def workers(request: pytest.FixtureRequest) -> Iterator[ModelWorkers]:
    with local_cluster(2) if request.param else nullcontext():
        opening = open_workers(2, request.param, Sources(TARGET, (DRAFT,)), Capacity(COUNT, 4), died.append)
        with opening as opened:
            assert opened is not None
            yield opened


def asked_of(task: Task, configuration: Setting) -> DecodingRequest:
    return DecodingRequest(configuration, 0, [KeyedPrompt(p.id, p.prompt) for p in task.problems], 4)


def decoded(engine: VllmEngine, source: VllmEngineSource, workers: ModelWorkers, task: Task) -> Iterator[Result]:
    over = EngineWorkers(workers, replace(source, intervals_hold=engine.intervals_hold))
    results = dict(over.results(asked_of(task, FUZZY), engine.key(FUZZY, 0), False, iter(range(COUNT))))
    return (results[place] for place in range(COUNT))


def test_replicas_decode_what_one_engine_does_though_one_is_killed(
    engine: VllmEngine, source: VllmEngineSource, workers: ModelWorkers, task: Task
) -> None:
    assert engine.intervals_hold  # greedily in fp32 rounding changes nothing
    alone = engine.decode(asked_of(task, FUZZY))
    assert list(decoded(engine, source, workers, task)) == alone
    died.clear()
    os.kill(next(process for _, process in workers.pool.run(pid_after, [0.2])), signal.SIGKILL)
    assert list(decoded(engine, source, workers, task)) == alone
    assert [line for line in died if "a worker process was killed" in line]
