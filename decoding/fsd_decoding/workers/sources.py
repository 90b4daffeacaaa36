"""Where models are loaded from, in a form that other processes can be given."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fsd_common.errors import UsageError
from fsd_decoding.drafters.ngram import NGram
from fsd_decoding.eagle.loading import Eagle
from fsd_decoding.loading import ModelSource, is_source
from fsd_decoding.model_options import USUAL_LOADING, Loading

AnyDraft = ModelSource | Eagle | NGram
"""A draft that other processes can load."""


@dataclass(frozen=True)
class Sources:
    """Where the target and its drafts are loaded from, as arguments of `SpeculativeDecoder.from_pretrained`."""

    target: ModelSource
    drafts: tuple[AnyDraft, ...]
    device: str | None = None
    dtype: str | None = None
    loading: Loading = USUAL_LOADING

    @property
    def loadable(self) -> bool:
        """Whether another process can load all models: none of them is a loaded one."""
        return not any(True for _ in self._loaded())

    @property
    def spread(self) -> bool:
        """Whether a device map, and not `device`, says where a model is."""
        return any(options.device_map is not None for options in (self.loading.target, self.loading.draft))

    def draft_named(self, name: ModelSource | None) -> AnyDraft:
        """Returns the draft of this name; models are named by what they are loaded from. None: the first."""
        if name is None:
            return self.drafts[0]
        others = (draft for draft in self.drafts if isinstance(draft, Eagle | NGram))
        return next((draft for draft in others if draft.name == name), name)

    def check_loadable(self, setting: str, process: str, way_out: str) -> None:
        """Raises UsageError where a model cannot be loaded by another process.

        Args:
            setting: what asks for other processes, in words.
            process: such a process, in words.
            way_out: what to do instead of giving a path or hub id.
        """
        for role, model in self._loaded():
            raise UsageError(
                f"{setting}, and the {role} is a loaded {type(model).__name__}, which {process} cannot load: give its "
                f"path or hub id, or {way_out}"
            )

    def _loaded(self) -> Iterator[tuple[str, object]]:
        models = (("target", self.target), *(("draft", draft) for draft in self.drafts))
        return (
            (role, model) for role, model in models if not isinstance(model, NGram | Eagle) and not is_source(model)
        )
