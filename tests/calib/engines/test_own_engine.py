"""Our own engine passes what calibrations rely on."""

from __future__ import annotations

from typing import cast

import pytest

from conformance.engines import EngineConformance
from fsd_calib.engines.own.engine import OwnEngine
from fsd_calib.tasks.base import Task
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
