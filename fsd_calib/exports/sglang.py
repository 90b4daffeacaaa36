"""SGLang: thresholds on the target's probability of a drafted token."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from fsd_calib.exports.base import Engine, Flags, Knob, number

if TYPE_CHECKING:
    from fsd_decoding.profile.threshold_profile import ThresholdProfile
    from fsd_decoding.scores import Score

_VERSIONS = ">=0.5.3,<0.6"


def _thresholds(score: Score, threshold: float) -> dict[str, Any]:
    return {
        "speculative-accept-threshold-single": number(1 - threshold),
        "speculative-accept-threshold-acc": number(score.values[0]),
    }


class SGLang(Engine):
    """SGLang (read in 0.5.3, 0.5.9 and 0.5.23)."""

    name, title, versions = "sglang", "SGLang", _VERSIONS
    knobs: ClassVar = {"accept-threshold": Knob(_VERSIONS, _thresholds)}
    lacks = ("min_p", "repetition_penalty")

    def obstacles(self, profile: ThresholdProfile) -> Iterator[str]:
        yield from super().obstacles(profile)
        if profile.threshold is None:
            return
        if profile.sampling.temperature == 0:
            yield (
                "the profile is greedy (temperature 0), where SGLang decodes exactly whatever its thresholds are; "
                "calibrate with sampling, or serve it exactly"
            )
        if profile.threshold >= 1:
            yield (
                f"the profile's T is {profile.threshold:g}, where SGLang would keep tokens of probability 0, too; "
                "calibrate a T below 1"
            )

    def flags(self, profile: ThresholdProfile) -> Flags:
        options, versions = self.knob_of(profile)
        length = profile.followed.draft_length
        lines = [
            f"python -m sglang.launch_server --model-path {shlex.quote(profile.target.id)} --dtype {profile.dtype}",
            f"--speculative-algorithm STANDALONE --speculative-draft-model-path {shlex.quote(profile.draft.id)}",
            f"--speculative-num-steps {length} --speculative-eagle-topk 1 --speculative-num-draft-tokens {length + 1}",
            *(f"--{name} {value}" for name, value in options.items()),
        ]
        notes = [f"Each request has to ask for the calibration's sampling: {json.dumps(_sampling(profile))}"]
        if options:
            notes += [
                "SGLang drafts its draft's likeliest token and keeps it with the target's probability p(x), where the "
                "calibration drew it from q and kept it with p(x)/q(x). Both are exact, but with these thresholds "
                "other tokens are drafted and kept.",
                "The thresholds act on NVIDIA GPUs, and not in batches in which every request is greedy.",
            ]
        return Flags(" \\\n    ".join(lines), versions, tuple(notes))


def _sampling(profile: ThresholdProfile) -> dict[str, Any]:
    """The sampling of a request, none of which is left to the model's generation_config.json."""
    sampling = profile.sampling
    return {"temperature": sampling.temperature, "top_k": sampling.top_k or -1, "top_p": sampling.top_p or 1.0}
