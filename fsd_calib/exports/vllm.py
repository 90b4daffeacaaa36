"""vLLM: FLy and block verification by its own options, all other scores by our plugin."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from fsd_calib.exports.base import Engine, Flags, Knob, number, owner_of
from fsd_calib.vllm_plugin import FLY_VERSIONS, KINDS
from fsd_common.errors import UsageError

if TYPE_CHECKING:
    from fsd_decoding.profile.threshold_profile import ThresholdProfile
    from fsd_decoding.scores import Score


_OR_PLUGIN = "or follow it by our plugin, as fsd-profile vllm prints"


def _fly(score: Score, threshold: float) -> dict[str, Any]:
    from fsd_calib.vllm_plugin.own_rules import fly_options
    from fsd_decoding.scores import Fly

    assert isinstance(score, Fly)
    options = fly_options(score, threshold)
    return {
        "rejection_sample_method": "fly", **options,
        "fly_entropy_threshold": number(options["fly_entropy_threshold"]),
    }  # fmt: skip


class Vllm(Engine):
    """vLLM (read in 0.32 and 0.33)."""

    name, title, versions = "vllm", "vLLM", ">=0.32,<0.34"
    knobs: ClassVar = {"fly": Knob(FLY_VERSIONS, _fly)}
    drafts = KINDS
    lacks = ("min_p",)
    one_t = f"one T of FLy for all tokens; calibrate with a constant T, {_OR_PLUGIN}"

    @property
    def offer(self) -> str:
        return "fly, and other scores by our plugin"

    def has(self, profile: ThresholdProfile) -> bool:
        return super().has(profile) or _by_plugin(profile)

    def decoder(self, profile: ThresholdProfile) -> str:
        return self.name if _by_plugin(profile) else "vLLM's own FLy"

    def obstacles(self, profile: ThresholdProfile) -> Iterator[str]:
        if _by_plugin(profile):
            return  # the plugin has refusals of its own
        yield from super().obstacles(profile)
        if profile.threshold is None:
            return
        from fsd_decoding.scores import score_named

        window, length = score_named(profile.score).window, profile.draft_length
        if not 1 <= window < length:
            yield (
                f"the profile's score is {profile.score!r} at L = {length}, and vLLM's window of FLy has from 1 "
                f"to L - 1 tokens; calibrate with another, such as --score fly@1, {_OR_PLUGIN}"
            )

    def flags(self, profile: ThresholdProfile) -> Flags:
        from fsd_calib.vllm_plugin.command import command_of, request_notes, serve_command
        from fsd_calib.vllm_plugin.supported_vllm import SUPPORTED

        requests = "\n".join(request_notes(profile))
        if _by_plugin(profile):
            if profile.file is None:
                raise UsageError("the profile has no file, which vLLM's plugin reads; save it first")
            note = "fsd-calib has to be installed beside vLLM, which finds its plugin; that follows the profile."
            return Flags(f"{serve_command(profile, profile.file)}\n{requests}", SUPPORTED, (note,))
        options, versions = self.knob_of(profile)
        speculation, notes = options, tuple[str, ...]()
        if options:
            notes = (f"FLy needs a GPU. In vLLM {SUPPORTED} our plugin has it, too: fsd-profile vllm.",)
        block = profile.followed.rule == "sd-block"
        if block:
            speculation = {**options, "rejection_sample_method": "block"}
            notes = ("Blocks are verified by the V2 model runner alone; the V1 runner ignores the option.",)
        return Flags(f"{command_of(profile, speculation, second_runner=block)}\n{requests}", versions, notes)


def _by_plugin(profile: ThresholdProfile) -> bool:
    """Whether the profile's T bounds a score that vLLM itself has not, and our plugin has."""
    from fsd_decoding.rules import rule_named

    rule = rule_named(profile.rule)
    judged = profile.threshold is not None and rule.bounds_score and rule.score is None  # what is emitted is exact
    return judged and owner_of(profile) not in Vllm.knobs
