"""A trial of a task's templates in a process with limits: they may loop for ever, or fill the memory."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress

from fsd_calib.tasks.base import Example
from fsd_calib.tasks.grading.apart import Apart
from fsd_common.errors import UsageError
from fsd_decoding.profile.parts import PromptForm
from fsd_decoding.profile.rendering import FormTemplates


def check_renders(form: PromptForm, example: Example, where: str) -> None:
    """Raises UsageError where the templates of a form take too long, or too much memory, for an example.

    Args:
        where: whose templates they are, for messages.
    """
    renders = Apart(f"{__name__}:renderer", (form.model_dump_json(),))
    if why := renders.broken_by(example.question, json.dumps(example.row, default=str)):
        raise UsageError(f"{where}: its prompts cannot be rendered ({why}); simplify the template")


def renderer(form: str) -> Callable[[str, str], None]:
    """Returns what renders a question with its columns, and leaves all other faults to who renders it again."""
    templates = FormTemplates(PromptForm.model_validate_json(form), "")

    def render(question: str, columns: str) -> None:
        with suppress(UsageError):
            (templates.text if templates.form.text is not None else templates.chat)(question, json.loads(columns))

    return render
