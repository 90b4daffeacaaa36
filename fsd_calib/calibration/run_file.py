"""A calibration as a file in YAML, `run.yaml`: task, models, goal, decoding and run. Errors name file, key and rule.

A key that is missing means the default of the option of that name. Paths mean what they mean on the command line.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, Field, model_validator

from fsd_calib.calibration.goal import MAX_MIN_ACC, Acc, Guarantee, Test
from fsd_calib.calibration.run_config import Compiling, EngineName, Timing
from fsd_common.strict_yaml import Strict, read_yaml
from fsd_decoding.tree_shape import CHAIN

NAME = "run.yaml"

_Count = Annotated[int, Field(ge=1)]
_Share = Annotated[float, Field(gt=0, lt=1)]


def _listed(value: Any) -> Any:
    """A value alone as several, and a list as the tuple that strict types ask for."""
    return tuple(value) if isinstance(value, list) else value if value is None else (value,)


def _shapes(value: Any) -> Any:
    """Refuses what is no text, such as `[2, 6]`, which YAML reads as two numbers."""
    if not all(isinstance(each, str) for each in _listed(value) or ()):
        raise ValueError(f"write a shape as '2,6', in quotes (top_k,nodes), or {CHAIN}, or a list of such")
    return value


_One = TypeVar("_One")
_Several = Annotated[tuple[_One, ...], BeforeValidator(_listed), Field(min_length=1)]
"""One value, or a list of them."""


class _Section(Strict):
    @property
    def given(self) -> dict[str, Any]:
        """The keys that are written, with their values."""
        return {name: getattr(self, name) for name in self.model_fields_set}


class GoalSection(_Section):
    """Fields of `Goal`."""

    min_acc: Annotated[float, Field(gt=0, le=MAX_MIN_ACC)] | None = None
    min_speed: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    pareto: bool = False
    acc: Acc = "retention"
    confidence: _Share = 0.95
    guarantee: Guarantee = "population"
    test: Test = "score"
    serve_batch: _Count = 1
    explore: bool = False


class SamplingSection(_Section):
    """Fields of `Sampling` that a calibration takes."""

    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    top_k: _Count | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    min_p: Annotated[float, Field(gt=0, le=1)] | None = None


class DecodingSection(_Section):
    """Fields of `DecodingConfig` that a calibration takes; several values are searched over."""

    rule: _Several[str] = ("fsd-coupled",)
    divergence: _Several[str] | None = None
    draft_length: _Several[_Count] | None = None
    sampling: SamplingSection = SamplingSection()
    seed: int = 0
    stop_policy: str | None = None
    threshold_policy: _Several[str] | None = None
    tree: Annotated[_Several[str] | None, BeforeValidator(_shapes)] = None


class RunSection(_Section):
    """Fields of `RunConfig`. `engine` may be several, of which each certifies the setting in turn."""

    batch_size: _Count | None = None
    device: str | None = None
    dtype: str | None = None
    limit: _Count | None = None
    data: str | None = None
    seeds: _Count = 1
    trials: _Count = 30
    timing: Timing = "run"
    compile: Compiling = "auto"
    engine: _Several[EngineName] = ("fsd-calib",)
    engine_args: dict[str, Any] | None = None
    out: str | None = None
    cache: str | None = None
    state: str | None = None
    workers: _Count | None = None
    ray: str | None = None
    storage: str | None = None
    model_kwargs: dict[str, Any] | None = None
    draft_model_kwargs: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    system: str | None = None
    max_new_tokens: _Count | None = None
    answer_after: str | None = None


class RunFile(_Section):
    """A whole file.

    Attributes:
        task: A task's name, or a file in YAML that describes one.
        head: EAGLE heads of the target.
        drafter: What drafts, where `draft` and `head` do not say all of it.
        certify: A profile whose setting is certified: then nothing is searched, and `decoding` holds at most the seed.
    """

    task: str | None = None
    target: str | None = None
    draft: _Several[str] | None = None
    head: _Several[str] | None = None
    drafter: _Several[Literal["model", "eagle", "ngram", "auto"]] | None = None
    certify: str | None = None
    goal: GoalSection = GoalSection()
    decoding: DecodingSection = DecodingSection()
    run: RunSection = RunSection()

    @model_validator(mode="after")
    def _searches_nothing_that_is_certified(self) -> RunFile:
        if self.certify is not None and (more := self.decoding.model_fields_set - {"seed"}):
            raise ValueError(
                f"certify takes the profile's own setting and searches nothing; leave {min(more)} out of decoding"
            )
        if self.certify is not None and self.drafter is not None:
            raise ValueError("certify takes the profile's own draft; leave drafter out, or give draft or head")
        return self


def read_run_file(path: Path) -> RunFile:
    """Returns what a file says.

    Args:
        path: of the file, or of the folder that holds it under its usual name.

    Raises:
        UsageError: It cannot be read, is no YAML, or breaks a rule.
    """
    path = path / NAME if path.is_dir() else path
    return read_yaml(path, RunFile, "run file", "docs/commands.md")
