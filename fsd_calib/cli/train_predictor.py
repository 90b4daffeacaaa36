"""`fsd-train-predictor`: trains an acceptance predictor on traces and writes it with a card of its quality.

Heavy imports are inside functions, so that `--help` prints at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from fsd_calib.cli.console import check_writable, interruptible, leave, load_libraries, reply, reply_json
from fsd_calib.cli.family import Family, ending
from fsd_calib.cli.options import check_found, check_sources, check_words
from fsd_calib.cli.output import OutputOptions
from fsd_calib.options.common import RULES_OVER_SCORES, SCORES, Limit
from fsd_calib.tasks.asking import PROBLEMS as DATA
from fsd_common.argument_checks import check_count
from fsd_common.option import Option, several

if TYPE_CHECKING:
    from fsd_predictors.predictor import Predictor

NAME = "fsd-train-predictor"
_EPILOG = ending(
    "Exit codes: 0 done · 2 bad input · 130 interrupted",
    "fsd train predictor --traces traces --out predictor",
    "fsd train predictor --traces traces --out predictor --score js,doubt",
    "fsd calibrate --task arithmetic --min-acc 0.98 --predictor predictor",
)
_MODEL = "Predictor"
_KINDS = ("boosted", "logistic", "head")

app = Family()


@app.command(epilog=_EPILOG, everyday="traces out score rule kind trials limit seed tokenizer as_json")
def command(
    traces: Annotated[Path, Option("The folder of traces along the target that fsd-collect wrote.", DATA)],
    out: Annotated[Path, Option("Folder to write the predictor to.", DATA)],
    limit: Limit = None,
    seed: Annotated[int, Option("Seed for picking rows, hyperparameter search and fitting.", DATA)] = 0,
    tokenizer: Annotated[
        str | None, Option("The target's tokenizer, if the traces do not say where it is: hub id or local path.", DATA)
    ] = None,
    kind: Annotated[
        str,
        Option("Kind of model: boosted (LightGBM), logistic, or head (a small neural network).", _MODEL, words=_KINDS),
    ] = "boosted",
    rule: Annotated[
        str, Option("Acceptance rule to predict for: fsd-coupled, fsd-sd or fsd.", _MODEL, words=RULES_OVER_SCORES)
    ] = "fsd-coupled",
    score: Annotated[
        tuple[str, ...],
        Option(
            "Score that T bounds, or several, separated by commas. One predictor serves them at every T.",
            _MODEL,
            words=SCORES,
            read=several,
            also="divergence",
        ),
    ] = ("js",),
    trials: Annotated[int, Option("Hyperparameter trials for each of the predictor's two models.", _MODEL)] = 8,
    *,
    output: OutputOptions,
) -> None:
    """Trains a model that predicts which drafted tokens will be accepted, so that drafting can stop early.

    Only problems of the tuning part are used, split by a hash into fitting, calibration and evaluation sets. Writes
    the models and card.md, which reports their quality; read it before use.
    """
    progress = output.begin()
    for option, number in (("--limit", limit), ("--trials", trials)):
        if number is not None:
            check_count(option, number)
    check_words(("--kind", [kind], _KINDS), ("--rule", [rule], RULES_OVER_SCORES))
    check_found("score", "--score", score, SCORES)
    check_sources({"--tokenizer": [tokenizer]}, configured=False)
    from fsd_collectors.store.listing import MANIFEST, content_of

    content_of(traces / MANIFEST)  # which loads nothing
    check_writable(out, ())

    from fsd_collectors.store.reading import load_traces

    loaded = load_traces(traces)
    load_libraries(progress)

    from fsd_decoding.loading import load_tokenizer
    from fsd_predictors.training.api import train

    with interruptible(lambda: f"nothing is kept: {out} holds no new predictor, and the same command begins anew"):
        predictor = train(
            loaded, out, kind, rule, score, trials=trials, seed=seed, limit=limit,
            tokenizer=None if tokenizer is None else load_tokenizer(tokenizer), progress=progress,
        )  # fmt: skip
    if output.as_json:
        reply_json(NAME, {"folder": out.absolute(), "facts": predictor.facts.model_dump(mode="json")})
        return
    _print(predictor)
    reply(f"{out} holds the predictor; see {out / 'card.md'}")


def main() -> None:
    leave(app, NAME)


def _print(predictor: Predictor) -> None:
    from fsd_collectors.report.description import print_sheets
    from fsd_common.console import LiteralConsole
    from fsd_predictors.training.card import by_threshold

    print_sheets([by_threshold(predictor.facts)], LiteralConsole())
