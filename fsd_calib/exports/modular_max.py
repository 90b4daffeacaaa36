"""Modular MAX: relaxed acceptance of what MTP layers and EAGLE heads draft."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from fsd_calib.exports.base import Flags, Knob
from fsd_calib.exports.relaxed import Relaxed, relaxed

if TYPE_CHECKING:
    from fsd_decoding.profile.threshold_profile import ThresholdProfile

_VERSIONS = ">=26.3,<26.8"


class MAX(Relaxed):
    """Modular MAX (read in 26.3, 26.4, 26.5 and 26.7)."""

    name, title, versions = "max", "MAX", _VERSIONS
    knobs: ClassVar = {"relaxed": Knob(_VERSIONS, relaxed)}
    drafts = ("model", "eagle")

    def obstacles(self, profile: ThresholdProfile) -> Iterator[str]:
        yield from super().obstacles(profile)
        if profile.threshold is None and profile.draft.kind == "model":
            yield (
                f"the profile has no threshold and the draft model {profile.draft.id!r}, and MAX drafts with EAGLE "
                "heads and MTP layers; calibrate with an EAGLE head"
            )

    def flags(self, profile: ThresholdProfile) -> Flags:
        from yaml import safe_dump

        options, versions = self.knob_of(profile)
        head = profile.draft.kind == "eagle"
        recipe: dict[str, Any] = {"model": {"model_path": profile.target.id}}
        if head:
            recipe["draft_model"] = {"model_path": profile.draft.id}
        recipe["speculative"] = {
            "speculative_method": "eagle" if head else "mtp",
            "num_speculative_tokens": profile.followed.draft_length,
            **options,
        }
        notes = ["Save it as recipe.yaml: max serve --config-file recipe.yaml"]
        if options:
            notes += [
                *self.notes(profile),
                "From 26.5 on, MAX relaxes no request with a temperature below 0.00001. Within thinking it decodes "
                "greedily all the same: send a small one, such as 0.001.",
                "For targets whose drafter does not follow the thinking phase it ignores the options.",
            ]
        return Flags(safe_dump(recipe, sort_keys=False).rstrip(), versions, tuple(notes))
