"""Prompts from Jinja templates, in the sandbox that lets them compute nothing but text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from jinja2 import StrictUndefined, Template, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from fsd_decoding.errors import UsageError

_ENVIRONMENT = ImmutableSandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=False)


class Literal(NamedTuple):
    """A text that is used as it is, where templates are."""

    text: str

    def render(self, variables: Mapping[str, Any]) -> str:
        return self.text


class PromptTemplate:
    """A template with its place in a file, for messages.

    Args:
        where: File and key.
        source: Of the template.

    Raises:
        UsageError: It is no template.
    """

    def __init__(self, where: str, source: str) -> None:
        self._where = where
        try:
            self._template: Template = _ENVIRONMENT.from_string(source)
        except TemplateError as error:
            raise UsageError(f"{where}: no Jinja template ({_reason(error)}); repair it") from None

    def render(self, variables: Mapping[str, Any]) -> str:
        """Returns the text; UsageError: it needs a variable that there is none of, or does what the sandbox forbids."""
        try:
            return self._template.render(variables)
        except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError, OverflowError) as error:
            known = ", ".join(variables)
            raise UsageError(
                f"{self._where}: cannot be rendered ({_reason(error)}); its variables are {known}"
            ) from None


def _reason(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
