"""Replicas of vLLM in worker processes: the texts of one engine, whatever is killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace

import pytest

from fsd_calib.engines.base import DecodingRequest, KeyedPrompt
from fsd_calib.engines.configuration import Configuration
from fsd_calib.engines.vllm.engine import VllmEngine
from fsd_calib.engines.vllm.source import VllmEngineSource
from fsd_calib.engines.workers import EngineWorkers
from fsd_calib.tasks.base import Task
from fsd_decoding.engine.result import Result
from fsd_decoding.workers.model_workers import ModelWorkers, open_workers
from fsd_decoding.workers.planning import Capacity
from fsd_decoding.workers.sources import Sources
from support.vllm_engine import DRAFT, TARGET, arithmetic, engine_source
from support.worker_processes import worker_processes

pytestmark = pytest.mark.slow

COUNT = 24
FUZZY = Configuration("fsd-coupled", "js", 4, 0.1)
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


@pytest.fixture(scope="module")
def workers() -> Iterator[ModelWorkers]:
    with open_workers(2, None, Sources(TARGET, (DRAFT,)), Capacity(COUNT, 4), died.append) as opened:
        assert opened is not None
        yield opened


def request(task: Task, configuration: Configuration) -> DecodingRequest:
    return DecodingRequest(configuration, 0, [KeyedPrompt(p.id, p.prompt) for p in task.problems], 4)


def decoded(engine: VllmEngine, source: VllmEngineSource, workers: ModelWorkers, task: Task) -> Iterator[Result]:
    over = EngineWorkers(workers, replace(source, intervals_hold=engine.intervals_hold))
    asked = request(task, FUZZY)
    results = dict(over.results(asked, engine.key(FUZZY, 0), False, iter(range(COUNT))))
    return (results[place] for place in range(COUNT))


def test_replicas_decode_what_one_engine_does_though_one_is_killed(
    engine: VllmEngine, source: VllmEngineSource, workers: ModelWorkers, task: Task
) -> None:
    assert engine.intervals_hold  # greedily in fp32 rounding changes nothing
    alone = engine.decode(request(task, FUZZY))
    assert list(decoded(engine, source, workers, task)) == alone
    first, *_ = worker_processes()
    os.kill(first, signal.SIGKILL)
    assert list(decoded(engine, source, workers, task)) == alone
    assert any("a worker process was killed" in line for line in died)
