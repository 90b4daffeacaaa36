"""TensorRT-LLM: relaxed acceptance of what MTP layers draft."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, ClassVar

from fsd_calib.exports.base import Flags, Knob
from fsd_calib.exports.relaxed import Relaxed, phase_of, relaxed

if TYPE_CHECKING:
    from fsd_decoding.profile.threshold_profile import ThresholdProfile

_VERSIONS = ">=1.2,<1.5"
_MARKERS = "begin_thinking_phase_token", "end_thinking_phase_token"


class TensorRTLLM(Relaxed):
    """TensorRT-LLM (read in 1.2, 1.3.0rc27 and 1.4.0rc4), its PyTorch backend."""

    name, title, versions = "tensorrt-llm", "TensorRT-LLM", _VERSIONS
    knobs: ClassVar = {"relaxed": Knob(_VERSIONS, relaxed)}

    def flags(self, profile: ThresholdProfile) -> Flags:
        from yaml import safe_dump

        options, versions = self.knob_of(profile)
        length, target = profile.followed.draft_length, shlex.quote(profile.target.id)
        notes = [f"Save it as config.yaml: trtllm-serve {target} --extra_llm_api_options config.yaml"]
        if options:
            markers = dict(zip(_MARKERS, phase_of(profile) or (), strict=False))
            known = {name: marker for name, marker in markers.items() if isinstance(marker, int)}
            drafting = {"decoding_type": "MTP", "num_nextn_predict_layers": length, **options, **known}
            notes += self.notes(profile)
            if len(known) < len(_MARKERS):
                notes.append(
                    "Thinking begins and ends with DeepSeek-R1's tokens, 128798 and 128799, unless "
                    f"{' and '.join(_MARKERS)} say other ids."
                )
        else:
            drafting = {"decoding_type": "Draft_Target", "max_draft_len": length, "speculative_model": profile.draft.id}
        return Flags(safe_dump({"speculative_config": drafting}, sort_keys=False).rstrip(), versions, tuple(notes))
