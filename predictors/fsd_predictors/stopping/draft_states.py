"""The draft's last hidden state, read after each draft step while decoding, in the form that traces hold it."""

from __future__ import annotations

from threading import get_ident
from typing import Any

from torch import Tensor

from fsd_collectors.collection.hidden_states import HiddenStates
from fsd_common.errors import UsageError
from fsd_decoding.drafters.base import DraftSource
from fsd_predictors.facts import HiddenInfo


class DraftStates(HiddenStates):
    """Reads the hidden state of one draft step at a time: the one that follows a call of `watch`.

    Its hook is installed for that step only, so other users of the draft model are not slowed down.

    Args:
        draft: the draft model.
        info: width and projection of the state.

    Raises:
        UsageError: the draft is not a model, or it is compiled.
    """

    def __init__(self, draft: Any, info: HiddenInfo) -> None:
        _check(draft)
        super().__init__(draft, info.setting, info.seed or 0)
        self._watching: int | None = None  # id of the thread that decodes: others may use the model meanwhile

    def watch(self) -> None:
        """Installs the hook for the next draft step of this thread."""
        self._leave()  # the last step may have failed
        self._calls.clear()
        self._watching = get_ident()
        self.__enter__()

    def take(self) -> Tensor:
        """Returns the states (B, width) in fp16 at the rows' last positions, from which q was computed."""
        if not self._calls:
            raise UsageError("the predictor reads the hidden state of another draft; pass it the decoder's own")
        return self.latest()[:, -1]

    def _keep(self, head: Any, inputs: tuple[Tensor, ...]) -> None:
        if get_ident() == self._watching:
            super()._keep(head, inputs)
            self._leave()

    def _leave(self) -> None:
        if self._watching is not None:
            self._watching = None
            self.__exit__(None, None, None)


def _check(draft: Any) -> None:
    need = "the predictor reads the draft's last hidden state, but"
    if isinstance(draft, DraftSource):
        raise UsageError(f"{need} {draft!r:.80} has none; use a draft model, or a predictor trained without it")
    if hasattr(draft, "_orig_mod") or getattr(draft, "_compiled_call_impl", None) is not None:
        raise UsageError(f"{need} it cannot be read from a compiled draft; pass the model without compiling it")
