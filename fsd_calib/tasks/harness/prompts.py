"""Prompts of a task of lm-evaluation-harness: its worked examples and chats, as `lm_eval` itself makes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from fsd_calib.tasks.base import Example
from fsd_calib.tasks.harness.chat import chat_renderer
from fsd_calib.tasks.harness.metric import reference
from fsd_collectors.split import Part

if TYPE_CHECKING:
    from fsd_calib.tasks.asking import Asking
    from fsd_decoding.profile.parts import PromptInfo

_SEED = 1234  # lm-eval's own for drawing worked examples


class Document(NamedTuple):
    """A document of a task, by its place among all of them."""

    number: int
    part: Part | None
    content: Mapping[str, Any]
    chosen: bool


class Prompts:
    """Makes the prompts of one task for one model.

    With a chat template they are those of `lm_eval --apply_chat_template`, where worked examples are earlier turns.
    """

    def __init__(self, task: Any, asking: Asking, info: PromptInfo) -> None:
        self._task, self._shots = task, task.config.num_fewshot or 0
        tokenizer = None if info.template is None else asking.tokenizer
        self._render = None if tokenizer is None else chat_renderer(tokenizer, info.template_arguments)
        task.set_fewshot_seed(_SEED)

    def of(self, documents: Iterable[Document]) -> Iterator[tuple[Example, str]]:
        """Yields the chosen documents with their prompts.

        lm-eval draws all worked examples from one generator, document by document; so those of the documents between
        are drawn too. It has no prompts for training documents: each is given a generator of its own.
        """
        for document in documents:
            if document.chosen:
                prompt = self._of_training(document) if document.part == "tuning" else self.prompt(document.content)
                yield self._example(document), prompt
            elif self._shots and document.part != "tuning":
                self._draw(document.content)

    def prompt(self, content: Mapping[str, Any]) -> str:
        """Returns the prompt of a document, with the worked examples that are drawn next."""
        chats = self._render is not None
        prompt: str = self._task.fewshot_context(
            content, num_fewshot=self._shots, apply_chat_template=chats, fewshot_as_multiturn=chats,
            chat_template=self._render, gen_prefix=self._task.doc_to_prefix(content),
        )  # fmt: skip
        return prompt

    def _example(self, document: Document) -> Example:
        question = str(self._task.doc_to_text(document.content)).strip()
        return Example(question, reference(self._task, document.content), document.part, row=document.content)

    def _of_training(self, document: Document) -> str:
        usual = getattr(self._task, "sampler", None)
        try:
            if usual is not None:
                self._task.sampler = _LeavingOut(usual.set_rnd(f"{_SEED}/{document.number}"), document.content)
            return self.prompt(document.content)
        finally:
            self._task.sampler = usual

    def _draw(self, content: Mapping[str, Any]) -> None:
        """Draws the worked examples of a document, as `fewshot_context` does, and forgets them."""
        same = self._task.fewshot_cfg.split == self._task.config.test_split
        self._task.sampler.sample(n=self._shots, eval_doc=content if same else None)


class _LeavingOut:
    """Draws worked examples for one training document among which it is not itself; a sampler of lm-eval."""

    def __init__(self, sampler: Any, content: Mapping[str, Any]) -> None:
        self._sampler, self._content = sampler, content

    def sample(self, n: int, eval_doc: object = None) -> Any:
        return self._sampler.sample(n=n, eval_doc=self._content)


def stop_of(task: Any) -> tuple[str, ...]:
    """Returns the strings that end an answer (`until`)."""
    until = (task.config.generation_kwargs or {}).get("until") or []
    return tuple(filter(None, [until] if isinstance(until, str) else until))
