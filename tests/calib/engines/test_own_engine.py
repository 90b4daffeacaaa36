"""Our own engine passes what calibrations rely on."""

from __future__ import annotations

from typing import cast

import pytest

from conformance.engines import EngineConformance
from fsd_calib.engines.base import DecodingRequest, KeyedPrompt
from fsd_calib.engines.own import OwnEngine
from fsd_calib.tasks.base import Task
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.drafters.ngram import NGram
from fsd_decoding.profile.setting import Setting
from support.models.tiny_pair import tiny_decoder
from support.models.tiny_task import tiny_task


@pytest.fixture(scope="module")
def task() -> Task:
    return cast(Task, tiny_task(20))


@pytest.fixture(scope="module")
def engine(task: Task) -> OwnEngine:
    return OwnEngine(tiny_decoder(), task)


class TestOwnEngine(EngineConformance):
    """On the tiny pair in float64."""


def test_the_draft_alone_writes_what_it_would_write_as_a_target(engine: OwnEngine, task: Task) -> None:
    own = engine.decoder
    as_target = OwnEngine(SpeculativeDecoder(own.draft, NGram(), own.tokenizer, own.decoding), task)
    prompts = [KeyedPrompt(problem.id, problem.prompt) for problem in task.problems]
    alone, target = Setting.draft_alone("js", None), Setting.alone("js")

    def texts(engine: OwnEngine, setting: Setting) -> list[str]:
        return [result.text for result in engine.decode(DecodingRequest(setting, 0, prompts, 7))]

    assert engine.runs_draft_alone
    assert texts(engine, alone) == texts(as_target, target) != texts(engine, target)
    assert engine.key(alone, 0) != engine.key(target, 0)


def test_a_draft_that_is_no_model_writes_nothing_alone(engine: OwnEngine, task: Task) -> None:
    own = engine.decoder
    assert not OwnEngine(SpeculativeDecoder(own.target, NGram(), own.tokenizer, own.decoding), task).runs_draft_alone
