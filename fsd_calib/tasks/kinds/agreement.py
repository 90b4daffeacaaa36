"""The `agreement` task: your own prompts (--data) without keys, where right means to agree with the target's own text.

Chat and code traffic has no reference answers. What can still be certified is that FSD says what the target alone would
have said, with the same noise: a claim that is stricter than accuracy, as a rewording counts as lost, and different, as
the target's own mistakes count as right. `agreement` asks for the same text; `agreement:0.9` for an edit similarity, in
tokens, of at least that.

Prompts come from a file: one on each line of a .txt, or rows with a column `prompt` (a text) or `messages` (a chat of
several turns, each with a role and a content).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fsd_calib.tasks.asking import Asking, instructed
from fsd_calib.tasks.base import Example, Kind, Task, pick, problem_of, prompt_of, task_of
from fsd_calib.tasks.grading.graders import same_text, similar
from fsd_calib.tasks.rows import Row, examples_of, read_rows, shown
from fsd_common.argument_checks import named
from fsd_common.errors import UsageError
from fsd_decoding.profile.prompt_form import QUESTION, PromptForm, PromptInfo

if TYPE_CHECKING:
    from fsd_decoding.profile.rendering import PromptRenderer

NAME = "agreement"


def agreement(similarity: str) -> Kind:
    """Returns the task; `similarity` is empty for equal texts, or the least edit similarity."""
    if not similarity:
        return Agreement(None)
    try:
        least = float(similarity)
    except ValueError:
        least = 0.0
    if not 0 < least <= 1:
        raise UsageError(
            f"task {NAME}:{similarity}: the similarity must be a number above 0 and up to 1, such as {NAME}:0.9; "
            f"{NAME} alone asks for equal texts"
        )
    return Agreement(least)


@dataclass(frozen=True)
class Agreement:
    """Prompts whose right answer is the target's own; implements `Kind`.

    Attributes:
        least: Edit similarity of texts that agree; None: they are equal.
    """

    least: float | None
    max_new_tokens: int = 512

    @property
    def name(self) -> str:
        return NAME if self.least is None else f"{NAME}:{self.least:g}"

    def read(self, seed: int, limit: int | None, data: Path | None) -> tuple[Sequence[Example], str]:
        """See `TaskKind`. UsageError: there is no file, or it is malformed."""
        if data is None:
            raise UsageError(
                f"task {self.name}: it has no prompts of its own; give {named('data')}, such as prompts.jsonl or "
                "prompts.txt"
            )
        return pick(examples_of(read_rows(data, lines="prompt"), _example), seed, limit), str(data)

    def load(self, seed: int, limit: int | None, data: Path | None, asking: Asking) -> Task:
        """See `Kind.load`."""
        examples, source = self.read(seed, limit, data)
        info = self.prompts(asking)
        renderer = asking.renderer(info, f"prompts of task {self.name}")
        problems = [problem_of(each, _prompt(renderer, each)) for each in examples]
        grader = same_text if self.least is None else similar(self.least)
        return task_of(
            self.name, problems, info, source, grader, by_agreement=True, keys_are_texts=False, grading=self.name
        )

    def prompts(self, asking: Asking) -> PromptInfo:
        """See `Kind.prompts`. A prompt is a user's message of a chat model, and text to continue of another."""
        return asking.info(instructed("") if asking.chats else PromptForm(text=QUESTION), (), self.max_new_tokens)


def _example(row: Row) -> Example:
    messages = row.columns.get("messages")
    if messages is None:
        return Example(row.text("prompt"), "")
    turns = [_turn(message) for message in messages] if isinstance(messages, list) else []
    if not turns or None in turns:
        raise UsageError(
            f"{row.where}: column 'messages' is {shown(messages)}; it must be a list of objects with a role and a "
            "content that is a text"
        )
    if turns[-1] is not None and turns[-1][0] == "assistant":
        raise UsageError(f"{row.where}: the last message is the assistant's own; leave it out, it is what is decoded")
    return Example(row.whole("messages", json.dumps(turns, ensure_ascii=False)), "", row={"messages": turns})


def _turn(message: object) -> tuple[str, str] | None:
    """Role and text of a message; None: it has another content, such as images and calls of tools."""
    if not isinstance(message, Mapping) or message.get("tool_calls"):
        return None
    role, content = message.get("role"), message.get("content")
    if isinstance(content, list) and all(isinstance(part, Mapping) and part.get("type") == "text" for part in content):
        content = "".join(str(part.get("text", "")) for part in content)
    return (role, content) if isinstance(role, str) and isinstance(content, str) else None


def _prompt(renderer: PromptRenderer, example: Example) -> str:
    """A whole chat, where there is one, is rendered as it is."""
    turns = example.row.get("messages")
    if turns is None:
        return prompt_of(renderer, example)
    if renderer.info.template is None:
        raise UsageError(
            f"the chat {example.question[:40]}… has no prompt for a model without a chat template; give an instruction-"
            "tuned target, or a column 'prompt'"
        )
    return renderer.render(turns)  # type: ignore[arg-type]
