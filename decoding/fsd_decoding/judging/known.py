"""Judges by name: profiles and commands make them known.

What is sent to workers takes its judge along (`TakesJudge`); other processes find it in the user's cache.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fsd_common.errors import UsageError
from fsd_common.user_folders import keep, kept
from fsd_decoding.meanings import LEARNED

if TYPE_CHECKING:
    from fsd_decoding.judging.model import JudgeModel  # which imports pydantic, and decoding does without

_FOLDER = "judges"
_known: dict[str, JudgeModel] = {}


def register(model: JudgeModel) -> str:
    """Makes a judge known by its name, which it returns, here and in processes of this user."""
    if model.name not in _known:
        _known[model.name] = model
        keep(f"{_FOLDER}/{model.name}", model.model_dump_json())
    return model.name


def model_named(name: str) -> JudgeModel:
    """Returns the judge of a name. UsageError: none is known by it."""
    if name not in _known:
        text = kept(f"{_FOLDER}/{name}") if name.partition("@")[2].isdecimal() else None
        if text is None:
            raise UsageError(
                f"score {name!r:.60} is not known here: {LEARNED!r} is learned, so give its model (--judge FILE, or "
                "--judge auto to train one), or a profile that holds it"
            )
        from fsd_decoding.judging.model import JudgeModel

        _known[name] = JudgeModel.parsed(text, f"what is kept of {name!r}")
    return _known[name]


def is_judge(score: str) -> bool:
    """Whether a name is that of a judge, whichever it is."""
    return score.partition("@")[0] == LEARNED


class TakesJudge:
    """What has a score by name, and takes the judge that it may be along to other processes."""

    score: Any

    def __getstate__(self) -> tuple[dict[str, Any], JudgeModel | None]:
        return vars(self), model_named(self.score) if self.score is not None and is_judge(self.score) else None

    def __setstate__(self, state: tuple[dict[str, Any], JudgeModel | None]) -> None:
        own, judge = state
        if judge is not None:
            register(judge)
        vars(self).update(own)
