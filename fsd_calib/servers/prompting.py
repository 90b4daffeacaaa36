"""The task that a server is asked, and the engine that asks it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fsd_calib.options.common import Drawing
from fsd_calib.options.server import ServerDescription
from fsd_calib.servers.identity import identity_of
from fsd_calib.servers.messages import ServersTemplate
from fsd_calib.servers.requests import ServerEngine, body_of, prompts_of
from fsd_calib.servers.served import Served
from fsd_calib.tasks.base import Problem, Task
from fsd_calib.tasks.registry import load_task
from fsd_decoding.config import DecodingConfig
from fsd_decoding.sampling import Sampling


def task_for(server: ServerDescription, name: str, **options: Any) -> Task:
    """Returns a task with prompts as the server is asked. options: of `load_task`."""
    tokenizer: Any = ServersTemplate() if server.endpoint == "chat" else None
    if server.tokenizer is not None:
        from fsd_decoding.loading import load_tokenizer

        tokenizer = load_tokenizer(server.tokenizer)
    return load_task(name, tokenizer=tokenizer, **options)


def bodies_of(
    server: ServerDescription, task: Task, sampling: Sampling, problems: Sequence[Problem]
) -> list[dict[str, Any]]:
    """Returns the bodies of requests for a task's problems."""
    arguments = {} if task.prompt is None else dict(task.prompt.template_arguments)
    return [body_of(server, prompt, sampling, task, arguments, 0) for prompt in prompts_of(problems)]


def engine_for(served: Served, task: Task, sampling: Sampling, seed: int) -> ServerEngine:
    """Returns the engine that asks a server the task's prompts."""
    arguments = {} if task.prompt is None else dict(task.prompt.template_arguments)
    decoding = DecodingConfig(sampling=sampling, seed=seed)
    identity = identity_of(served.client)
    if served.lossless is not served.client:
        identity = replace(identity, reference=identity_of(served.lossless))
    return ServerEngine(served, identity, decoding, task, arguments)


def engine_and_task(
    served: Served, name: str, drawing: Drawing, seed: int, data: Path | None
) -> tuple[ServerEngine, Task]:
    """Returns both, of a command that names a task."""
    task = task_for(served.description, name, seed=seed, data=data)
    return engine_for(served, task, sampling_of(drawing), seed), task


def sampling_of(drawing: Drawing) -> Sampling:
    """Returns how tokens are drawn."""
    return Sampling(drawing.temperature, drawing.top_k, drawing.top_p, drawing.min_p)
