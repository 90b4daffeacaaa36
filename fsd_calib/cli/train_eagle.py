"""`fsd-train-eagle`: trains an EAGLE head on the target's own texts and writes it with a card of its quality.

Heavy imports are inside functions, so that `--help` prints at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from fsd_calib.cli.console import check_writable, interruptible, leave, load_libraries, reply, reply_json
from fsd_calib.cli.drafters import default_pair
from fsd_calib.cli.family import Family, Given, Options, ending
from fsd_calib.cli.options import SubjectsOption, check_data, check_place, check_sources, named_task
from fsd_calib.cli.output import OutputOptions
from fsd_calib.options.common import MODELS, TASK_NAMES, Target
from fsd_calib.options.run_config import RunConfig
from fsd_calib.tasks.asking import PROBLEMS as DATA
from fsd_calib.tasks.asking import PromptOptions
from fsd_calib.tasks.registry import completed_tasks, task_kind
from fsd_common.errors import UsageError
from fsd_common.option import Option, several
from fsd_predictors.heads.recipe import HeadRecipe

NAME = "fsd-train-eagle"
_EPILOG = ending(
    "Exit codes: 0 done · 2 bad input · 130 interrupted (the same command continues where this one stopped)",
    "fsd train eagle --task arithmetic --out head",
    "fsd train eagle --task gsm8k --target BIG --vocabulary 32000 --out head",
    "fsd calibrate --task gsm8k --min-acc 0.98 --target BIG --head head",
)
_TRAINING = "Training"
_OF_RUN = ("device", "dtype", "data", "limit", "group", *PromptOptions.model_fields)

app = Family()


@app.command(epilog=_EPILOG, everyday="task out target layers vocabulary epochs data limit device as_json")
def command(
    task: Annotated[
        str,
        Option(f"Task whose problems the target answers: {TASK_NAMES}.", DATA, words=completed_tasks),
    ],
    out: Annotated[Path, Option("Folder to write the head to.", DATA)],
    target: Target = None,
    layers: Annotated[
        str | None,
        Option(
            "The target's hidden states that the head reads, such as 2,7,11: what goes into these layers. By "
            "default 2, the middle one and the last but two, as in EAGLE-3; of fewer than 6 layers the first, the "
            "middle one and the last.",
            MODELS,
        ),
    ] = None,
    vocabulary: Annotated[
        int | None, Option("Draft this many tokens alone, the most frequent ones. By default all.", MODELS)
    ] = None,
    subjects: SubjectsOption = None,
    seed: Annotated[int, Option("Seed for picking problems, the first weights and the order of texts.", DATA)] = 0,
    epochs: Annotated[int, Option("Passes over the texts.", _TRAINING)] = 4,
    steps: Annotated[int, Option("Tokens that it learns to draft after one another.", _TRAINING)] = 3,
    batch_size: Annotated[int, Option("Texts per step of the optimiser.", _TRAINING)] = 8,
    learning_rate: Annotated[
        float | None,
        Option("The highest learning rate. By default 0.512 over the size of the hidden states.", _TRAINING),
    ] = None,
    *,
    run: Annotated[Given, Options(RunConfig, only=_OF_RUN)],
    output: OutputOptions,
) -> None:
    """Trains an EAGLE-3 head for a target: a small layer that drafts from the target's own hidden states.

    The target answers the tuning problems of a task, and the head learns from these texts. Problems that calibrations
    certify on are not used. Writes the head, for `Eagle(folder)`, and card.md, which reports how well it drafts.
    """
    progress = output.begin()
    name = named_task(task, subjects)
    kind = task_kind(name)
    config = RunConfig(**run)
    device, dtype, data = config.device, config.dtype, config.path("data")
    read = None if layers is None else _numbers(layers)
    recipe = HeadRecipe(epochs, steps, read, vocabulary, batch_size, learning_rate, seed)
    check_place(device, dtype)
    check_sources({"--target": [target]})
    check_data(kind, data)
    check_writable(out, ())
    load_libraries(progress)

    from fsd_calib.certification.marking import mark
    from fsd_calib.tasks.registry import load_task
    from fsd_calib.tasks.split import tuning_of
    from fsd_decoding.loading import check_device, default_device, load_model, load_tokenizer
    from fsd_predictors.heads.recipe import Source
    from fsd_predictors.heads.training import train_head

    place = device or default_device()
    check_device(place)
    large = target or default_pair(name)[0]
    with interruptible(lambda: f"{out} keeps the texts and epochs so far; the same command continues there"):
        tokenizer = load_tokenizer(large)
        loaded = load_task(name, seed, config.limit, data, tokenizer, config.group, **dict(config.prompts))
        problems, model = tuning_of(loaded), load_model(large, place, dtype, progress=progress)
        mark(model, problems)
        prompts, keys = tuple(each.prompt for each in problems), frozenset().union(*(each.keys for each in problems))
        source = Source(name, prompts, loaded.max_new_tokens, loaded.stop, keys)
        record = train_head(model, tokenizer, source, out, recipe, progress)
    if output.as_json:
        reply_json(NAME, {"folder": out.absolute(), **record})
        return
    _print(record)
    reply(f"{out} holds the head; see {out / 'card.md'}")


def main() -> None:
    leave(app, NAME)


def _numbers(layers: str) -> tuple[int, ...]:
    try:
        return tuple(map(int, several("--layers", layers)))
    except ValueError as error:
        raise UsageError(f"--layers is {layers!r:.60}; give numbers, separated by commas, such as 2,7,11") from error


def _print(record: dict[str, Any]) -> None:
    from fsd_collectors.report.description import print_sheets
    from fsd_common.console import LiteralConsole
    from fsd_predictors.heads.training import by_draft, by_epoch

    print_sheets([by_epoch(record), by_draft(record)], LiteralConsole())
