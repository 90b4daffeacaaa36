"""`fsd-check`: whether a server decodes losslessly.

Heavy imports are inside functions, so that `--help` prints at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fsd_calib.cli.console import NOT_MET, interruptible, leave, load_libraries, reply, reply_json
from fsd_calib.cli.family import Family, Given, Options, ending
from fsd_calib.cli.output import OutputOptions
from fsd_calib.options.common import Drawing
from fsd_calib.tasks.registry import completed_tasks
from fsd_common.argument_checks import amount
from fsd_common.errors import UsageError
from fsd_common.option import Option

if TYPE_CHECKING:
    from fsd_calib.options.server import ServerDescription
    from fsd_calib.servers.check import Verdict
    from fsd_common.progress.base import Progress

NAME = "fsd-check"
_EPILOG = ending(
    "Exit codes: 0 lossless, as far as the server's own noise lets tell · 2 bad input · 3 not lossless · 130 "
    "interrupted",
    "fsd check --config server.yaml",
    "fsd check --config server.yaml --value 0.4",
    "fsd check --url http://a:8000/v1 --reference http://b:8000/v1 --model M",
)
_SERVER = "Server"

app = Family()


@app.command(epilog=_EPILOG, everyday="config url reference model value task prompts temperature level as_json")
def command(
    given: Annotated[Given, Options(Drawing)],
    config: Annotated[
        Path | None,
        Option("A file in YAML that describes the server, with its reference (docs/servers.md).", _SERVER),
    ] = None,
    url: Annotated[str | None, Option("The server, up to /v1, in place of --config.", _SERVER)] = None,
    reference: Annotated[str | None, Option("A lossless server of the same model, with --url.", _SERVER)] = None,
    model: Annotated[str | None, Option("What requests call the model, with --url.", _SERVER)] = None,
    value: Annotated[
        float | None,
        Option("The knob's value to check, with --config. By default the server as it answers by itself.", _SERVER),
    ] = None,
    task: Annotated[
        str, Option("The task whose prompts are asked: a name, or a file in YAML.", words=completed_tasks)
    ] = "arithmetic",
    data: Annotated[Path | None, Option("A file of problems, for tasks that take one.")] = None,
    prompts: Annotated[int, Option("How many prompts are asked.")] = 100,
    times: Annotated[int, Option("How often each is asked from each side: twice or more.")] = 3,
    level: Annotated[float, Option("The probability, at most, that a lossless server is called lossy.")] = 0.01,
    seed: Annotated[int, Option("Chooses the prompts.")] = 0,
    *,
    output: OutputOptions,
) -> None:
    """Checks whether a server decodes losslessly: asks it and a lossless reference the same, several times each, and
    tests whether their answers differ more than each side's own do.

    Greedy texts are compared whole. With --temperature above 0, first tokens and outcomes are compared.
    """
    progress = output.begin()
    if prompts < 1 or times < 2:
        raise UsageError(
            f"--prompts is {prompts} and --times {times}; it takes at least one prompt, asked twice from each side"
        )
    if not 0 < level < 1:
        raise UsageError(f"--level is {level}; it must be above 0 and below 1, such as 0.01")
    server = _described(config, url, reference, model)
    if value is not None:
        amount("--value", value)
    load_libraries(progress, "fsd_calib.servers.check")

    from fsd_calib.servers.check_report import facts, report

    with interruptible(lambda: "nothing was written"):
        verdict = _check(server, given, task, data, prompts, times, level, seed, value, progress)
    reply_json(NAME, facts(verdict)) if output.as_json else reply(report(verdict))
    if not verdict.lossless:
        raise typer.Exit(NOT_MET)


def main() -> None:
    leave(app, NAME)


def _described(config: Path | None, url: str | None, reference: str | None, model: str | None) -> ServerDescription:
    """The server of the file, or of the options. UsageError: neither is whole."""
    if (config is None) == (url is None):
        raise UsageError("give either --config, or --url with --reference and --model")
    if url is None:
        assert config is not None
        from fsd_calib.calibration.run_file import read_run_file

        server: ServerDescription | None = read_run_file(config).job.get("server")
        if server is None or server.reference is None:
            raise UsageError(f"{config} describes no server with a reference; write it there (docs/servers.md)")
        return server
    if reference is None or model is None:
        raise UsageError("--url takes --reference, a lossless server of the same model, and --model")
    from pydantic import ValidationError

    from fsd_calib.options.server import Reference, ServerDescription

    try:
        return ServerDescription(url=url, model=model, reference=Reference(url=reference))
    except ValidationError as error:
        raise UsageError(str(error.errors()[0]["msg"]).removeprefix("Value error, ")) from None


def _check(
    server: ServerDescription, given: Given, task: str, data: Path | None, prompts: int, times: int, level: float,
    seed: int, value: float | None, progress: Progress,
) -> Verdict:  # fmt: skip
    from tempfile import TemporaryDirectory

    from fsd_calib.servers.check import Check, checked_task
    from fsd_calib.servers.prompting import engine_and_task
    from fsd_calib.servers.served import Served, Way

    knob, reference = server.knob, server.reference
    if value is not None and knob is None:
        raise UsageError("--value is of a knob, and none is described; describe it in a file, and give --config")
    if knob is not None and (knob.way == "restart" or (knob.way == "live" and reference and reference.url is None)):
        raise UsageError(
            f"knob {knob.name} holds for all requests, and both sides are asked in turn; check two servers: --url and "
            "--reference"
        )
    with TemporaryDirectory() as folder, Served(server, Path(folder, "server.log"), progress) as served:
        engine, loaded = engine_and_task(served, task, Drawing(**given), seed=seed, data=data)
        other = Way(served.client, {}) if value is None else served.at(value)
        return Check(engine, checked_task(loaded, prompts), served.at(None), other, times, level, progress).run()
