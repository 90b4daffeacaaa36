"""The draft's last hidden state, draft step by draft step, as traces hold it.

Knows when the draft is watched and by which thread. What a state is, and how it is projected, is
`fsd_collectors.collection.hidden_states`'s.
"""

from __future__ import annotations

from threading import get_ident
from typing import Any

from torch import Tensor

from fsd_collectors.collection.hidden_states import HiddenStates
from fsd_decoding.drafters.base import DraftSource
from fsd_decoding.errors import UsageError
from fsd_predictors.facts import HiddenInfo


class DraftStates(HiddenStates):
    """Sees one draft step at a time, the one behind `watch`, so that the draft is no slower in other hands.

    Raises:
        UsageError: the draft is no model, or a compiled one.
    """

    def __init__(self, draft: Any, info: HiddenInfo) -> None:
        _check(draft)
        super().__init__(draft, info.asked, info.seed or 0)
        self._watching: int | None = None  # a thread: others may use the model meanwhile

    def watch(self) -> None:
        self._leave()  # where the last step failed
        self._calls.clear()
        self._watching = get_ident()
        self.__enter__()

    def taken(self) -> Tensor:
        """(B, width) in fp16: what q of the rows' last positions was made of."""
        if not self._calls:
            raise UsageError("the predictor reads the hidden state of another draft; give it the decoder's own")
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
    needed = "the predictor reads the draft's last hidden state, which"
    if isinstance(draft, DraftSource):
        raise UsageError(f"{needed} {draft!r:.80} has not; use a draft model, or a predictor trained without it")
    if hasattr(draft, "_orig_mod") or getattr(draft, "_compiled_call_impl", None) is not None:
        raise UsageError(f"{needed} a compiled draft hides; give the model as it was")
