"""`fsd-tune`: how many tokens a server should draft.

Heavy imports are inside functions, so that `--help` prints at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from fsd_calib.cli.console import interruptible, leave, load_libraries, reply, reply_json
from fsd_calib.cli.family import Family, Given, Options, ending
from fsd_calib.cli.output import OutputOptions
from fsd_calib.options.common import Drawing
from fsd_calib.tasks.registry import completed_tasks
from fsd_common.errors import UsageError
from fsd_common.option import Option, whole_numbers

if TYPE_CHECKING:
    from fsd_calib.options.server import Body, ServerDescription

NAME = "fsd-tune"
_EPILOG = ending(
    "Exit codes: 0 done · 2 bad input · 130 interrupted",
    "fsd tune --config server.yaml --batch 1,8,32",
    "fsd tune --config server.yaml --rate 4",
    "fsd tune --config server.yaml --profile fsd-profile/gsm8k-server",
)

app = Family()


@app.command(epilog=_EPILOG, everyday="config batch rate profile task temperature data out quiet as_json")
def command(
    given: Annotated[Given, Options(Drawing)],
    config: Annotated[
        Path, Option("A file in YAML that describes the server and how it is started (docs/servers.md).")
    ],
    batch: Annotated[
        tuple[int, ...] | None,
        Option("Streams at once: a number, or several such as 1,8,32. By default 1.", read=whole_numbers),
    ] = None,
    rate: Annotated[float | None, Option("Requests/s that arrive as a Poisson process, in place of --batch.")] = None,
    profile: Annotated[
        Path | None, Option("A server's profile: speeds at its value are measured, too, beside lossless ones.")
    ] = None,
    task: Annotated[
        str, Option("The task whose prompts are asked: a name, or a file in YAML.", words=completed_tasks)
    ] = "arithmetic",
    data: Annotated[Path | None, Option("A file of problems, for tasks that take one.")] = None,
    out: Annotated[Path, Option("Folder for the plot and the server's log.")] = Path("fsd-tune"),
    *,
    output: OutputOptions,
) -> None:
    """Finds how many tokens a server should draft, and by which method, at each load: starts it in each way that the
    file describes, and times the same requests in all of them until the fastest is known.

    A way that was shown to be slower is not started again.
    """
    progress = output.begin()
    if rate is not None and (batch is not None or not rate > 0):
        raise UsageError(
            f"--rate is {rate}, and it must be a number above 0" if batch is None
            else "--rate and --batch are both given, and requests come in one way; leave one of them out"
        )  # fmt: skip
    server = _described(config)
    modes = _modes(server, profile)
    load_libraries(progress, "fsd_calib.servers.tune")

    from fsd_calib.servers.client import Client
    from fsd_calib.servers.load import Load
    from fsd_calib.servers.prompting import sampling_of, task_for
    from fsd_calib.servers.tune import Tuning
    from fsd_calib.servers.tune_report import facts, flags, save_plot, tables
    from fsd_common.console import LiteralConsole

    assert server.launches is not None
    loads = [Load(1, rate)] if rate is not None else [Load(streams) for streams in batch or (1,)]
    out.mkdir(parents=True, exist_ok=True)
    with interruptible(lambda: "nothing was found yet"), Client(server) as client:
        loaded, sampling = task_for(server, task, data=data), sampling_of(Drawing(**given))
        log = out / "server.log"
        cells = Tuning(server.launches, client, loaded, sampling, loads, modes, log, progress).run()
    picture = save_plot(cells, out)
    if output.as_json:
        reply_json(NAME, facts(cells, server.launches) | {"plot": str(picture)})
        return
    console = LiteralConsole()
    for table in tables(cells):
        console.print(table)
    reply("\n".join([*flags(cells, server.launches), "", f"plot: {picture}"]))


def main() -> None:
    leave(app, NAME)


def _described(config: Path) -> ServerDescription:
    from fsd_calib.calibration.run_file import read_run_file

    server: ServerDescription | None = read_run_file(config).job.get("server")
    if server is None or server.launches is None:
        raise UsageError(f"{config} does not say how the server is started; write server.launches (docs/servers.md)")
    return server


def _modes(server: ServerDescription, profile: Path | None) -> dict[str, Body]:
    """Fields of requests: lossless, and at the profile's value. UsageError: it has none that requests can have."""
    from fsd_calib.options.server import plain, with_value

    reference: Any = None if server.reference is None else server.reference.request
    modes: dict[str, Body] = {"as it answers by itself": {}} if reference is None else {"lossless": reference}
    if profile is None:
        return modes
    from fsd_decoding.profile.server_profile import ServerProfile

    found = ServerProfile.load(profile)
    if found.value is None or found.knob.way != "request":
        raise UsageError(
            f"the profile of {found.task!r} has no value that requests can have; leave --profile out, and write the "
            "value into the commands of server.launches"
        )
    return modes | {f"{found.knob.name} = {plain(found.value)}": with_value(found.knob.written, found.value)}
