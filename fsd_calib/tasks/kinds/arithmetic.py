"""The `arithmetic` task: word problems for the bundled pair, generated from a seed; another seed has others.

The pair was trained on the generator's other part, so every problem here is new to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from fsd_calib.tasks.asking import Asking, Exemplar, WorkedExamples, instructed
from fsd_calib.tasks.base import Example, TaskKind
from fsd_calib.tasks.grading.graders import same_number
from fsd_common.errors import UsageError
from fsd_data.problems import fresh, generate
from fsd_decoding.profile.prompt_form import PromptForm

_PROBLEMS = 3000  # without a limit; more than two thirds of them are certified on


def _read(seed: int, limit: int | None, data: Path | None) -> tuple[Sequence[Example], str]:
    if data is not None:
        raise UsageError(f"data file {data}: task arithmetic generates its problems and takes no file; use task gsm8k")
    problems = islice(fresh(seed), _PROBLEMS if limit is None else limit)
    return [Example(p.question, p.answer) for p in problems], f"fsd_data.problems.fresh(seed={seed})"


def _exemplars(asking: Asking) -> Sequence[Exemplar]:
    """Returns no examples without a tokenizer, which is the form the bundled pair was trained on; else four worked
    examples."""
    if asking.tokenizer is None:
        return ()
    return [(p.question, p.answer) for p in islice(generate(0, part="train"), 4)]


def _form(asking: Asking) -> tuple[PromptForm, Sequence[str]]:
    """The bundled pair, whose template takes nothing else, is asked as it was trained: by the problem alone."""
    from fsd_data.tokenizer import CHAT_TEMPLATE

    if asking.tokenizer is not None and asking.tokenizer.chat_template == CHAT_TEMPLATE:
        return instructed(""), ()
    return WorkedExamples(_exemplars)(asking)


# The longest solution, five steps and a closing line, is some 110 tokens with the bundled tokenizer.
ARITHMETIC = TaskKind("arithmetic", _read, _form, max_new_tokens=160, grader=same_number, phase=("Answer:", "####"))
