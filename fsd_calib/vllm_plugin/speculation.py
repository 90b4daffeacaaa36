"""What vLLM's --speculative-config says of the draft of a profile, and whether an engine has that draft."""

from __future__ import annotations

from typing import Any

from fsd_common.errors import UsageError
from fsd_decoding.drafters.eagle import Checkpoint, is_eagle3
from fsd_decoding.drafters.vllm_draft import VllmDraft, files_fingerprint
from fsd_decoding.profile.parts import IN_WORDS, ModelInfo


def speculation_of(draft: ModelInfo) -> dict[str, Any]:
    """Returns what --speculative-config says of a draft, of a kind that vLLM runs, except of its length and law.

    Raises:
        UsageError: an EAGLE head cannot be read.
    """
    if draft.kind == "vllm":
        return VllmDraft(draft.id).values
    revision = {} if draft.revision is None or draft.kind == "model" else {"revision": draft.revision}
    return {"method": _method_of(draft), "model": draft.id, **revision}


def _method_of(draft: ModelInfo) -> str:
    if draft.kind == "model":
        return "draft_model"
    return "eagle3" if is_eagle3(Checkpoint.read(draft.id, draft.revision)) else "eagle"


def check_drafter(spec: Any, draft: ModelInfo) -> list[str]:
    """Compares what drafts in an engine with the draft of a profile, which is no model by itself.

    Args:
        spec: vLLM's `SpeculativeConfig`.

    Returns:
        Warnings of what was not compared.

    Raises:
        UsageError: it is another.
    """
    served, another = spec.draft_model_config, "serve that one, or calibrate again"
    if draft.kind == "eagle":  # its fingerprint is of the head as our engine loads it
        if (spec.method, served.model) != (_method_of(draft), draft.id):
            raise UsageError(
                f"the profile's draft is the EAGLE head {draft.id!r}, but this engine drafts by {spec.method!r} with "
                f"{served.model!r}; {another}"
            )
        return [f"the weights of the EAGLE head {draft.id!r} are not compared with the profile's"]
    then = VllmDraft(draft.id)
    if spec.method != then.method or (then.in_target and served.model != spec.target_model_config.model):
        raise UsageError(
            f"the profile's draft is the {IN_WORDS[draft.kind]} {draft.id}, but this engine drafts by {spec.method!r} "
            f"with {served.model!r}; {another}"
        )
    if then.in_target:
        return [
            f"the weights that draft by {then.method!r}, in the target's files, are not compared with the profile's"
        ]
    if files_fingerprint(served.model, asked_revision(served)) != draft.fingerprint:
        raise UsageError(
            f"the files of the drafter {served.model!r} are not those that the profile was calibrated with; {another}"
        )
    return []


def asked_revision(served: Any) -> str | None:
    """The revision of a model that was asked for; vLLM puts the default one, resolved to a commit, in its place."""
    found: str | None = getattr(served.revision, "initial", served.revision)
    return found
