"""Commands on tiny models whose files all go to one folder, run as programs: calibrate, collect, train or plot.

They run as the installed commands do (`leave`): their exit codes and lines are the same.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import typer

from fsd_calib.cli.console import leave, reply
from fsd_calib.report.console import print_report
from fsd_collectors.report.plot import plot
from fsd_collectors.store.reading import load_traces
from fsd_common.progress.chosen import Lines
from fsd_predictors.training.api import train as train_predictor
from support.models.tiny_calibration import far_apart, run
from support.traces.tiny_traces import TOKENIZER, tiny_traces

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def calibrate(folder: Path, storage: str = "") -> None:
    profile = run(
        folder / "out", folder / "cache", problems=160, pair=far_apart(), min_acc=0.5, draft_length=4, score="js",
        trials=3, timing="none", progress=Lines(), storage=storage or None,
    )  # fmt: skip
    print_report(profile, folder / "out" / "profile.json")


@app.command()
def collect(folder: Path) -> None:
    reply(f"{len(tiny_traces(folder / 'traces', problems=128, batch_size=16).shards)} portions")


@app.command()
def train(folder: Path, traces: Path) -> None:
    train_predictor(load_traces(traces), folder / "predictor", "logistic", trials=1, tokenizer=TOKENIZER)
    reply("trained")


@app.command(name="plot")
def draw(folder: Path, traces: Path) -> None:
    reply(f"{len(plot(load_traces(traces), folder / 'pictures'))} files")


if __name__ == "__main__":
    warnings.simplefilter("ignore", DeprecationWarning)
    sys.argv[0] = "tiny"
    leave(app, "tiny")
