"""vLLM passes what calibrations rely on, on the bundled pair in float32."""

from __future__ import annotations

from dataclasses import replace

import pytest

from conformance.engines import EngineConformance
from fsd_calib.engines.base import KeyedPrompt
from fsd_calib.engines.vllm.engine import VllmEngine
from fsd_calib.tasks.base import Task
from fsd_data import head_path
from fsd_decoding.drafters.vllm_draft import VllmDraft
from support.vllm_engine import arithmetic, engine_source


@pytest.fixture(scope="module")
def task() -> Task:
    return arithmetic(20)


@pytest.fixture(scope="module")
def engine(task: Task) -> VllmEngine:
    made = engine_source(task).engine(None)
    made.check_intervals([KeyedPrompt(problem.id, problem.prompt) for problem in task.problems])
    return made


class TestVllmEngine(EngineConformance):
    """The prompt's own step emits the first token, for which nothing is drafted."""

    tokens_before_drafts = 1


class TestVllmEngineWithHead(TestVllmEngine):
    """A head of the target drafts, which goes by its own hidden states where the target's are not known."""

    drafts_anywhere = False

    @pytest.fixture(scope="class")
    def engine(self, task: Task) -> VllmEngine:
        head = VllmDraft.of({"method": "eagle3", "model": str(head_path())})
        made = replace(engine_source(task), draft=head).engine(None)
        made.check_intervals([KeyedPrompt(problem.id, problem.prompt) for problem in task.problems])
        return made
