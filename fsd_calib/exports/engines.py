"""The engines that a profile can be exported to, and the export of a profile to one of them."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from fsd_calib.exports.base import Engine, Flags, owner_of
from fsd_calib.exports.hugging_face import Transformers
from fsd_calib.exports.modular_max import MAX
from fsd_calib.exports.sglang import SGLang
from fsd_calib.exports.tensorrt_llm import TensorRTLLM
from fsd_calib.exports.vllm import Vllm
from fsd_common.errors import UsageError

if TYPE_CHECKING:
    from fsd_decoding.profile.threshold_profile import ThresholdProfile

ENGINES: Mapping[str, Engine] = {
    engine.name: engine for engine in (Vllm(), SGLang(), TensorRTLLM(), MAX(), Transformers())
}
_WIDTH = 118


def export_profile(profile: ThresholdProfile, to: str) -> str:
    """Returns an engine's own options for a profile, to be pasted, with comments that say what they are worth.

    Args:
        to: the engine: "vllm", "sglang", "tensorrt-llm", "max" or "transformers".

    Raises:
        UsageError: there is no such engine, or it cannot do what the profile says; the message names the first reason
            and the way out.
    """
    engine = ENGINES.get(str(to).lower())
    if engine is None:
        raise UsageError(f"unknown engine {to!r:.60}; known: {', '.join(ENGINES)}")
    for reason in _reasons(profile, engine):
        raise UsageError(reason)
    flags = engine.flags(profile)
    return "\n".join([*_comments(profile, engine, flags), flags.text])


def _reasons(profile: ThresholdProfile, engine: Engine) -> Iterator[str]:
    if not engine.has(profile):
        owner, others = owner_of(profile), [name for name, other in ENGINES.items() if other.has(profile)]
        what, value = ("rule", profile.rule) if owner == profile.rule else ("score", profile.score)
        yield (
            f"the profile's {what} is {value!r}, and {engine.title} has {engine.offer}; calibrate with one of "
            f"these, or take an engine that has this {what}: --to {', '.join(others)}"
        )
    yield from engine.obstacles(profile)


def _comments(profile: ThresholdProfile, engine: Engine, flags: Flags) -> Iterator[str]:
    """Yields lines of comments, which shells, YAML and Python have in common."""
    first = f"For {engine.title} {flags.versions}, as the profile of {profile.task!r} says: {_setting(profile)}."
    for said in (first, _scope(profile, engine), *_models(profile), *flags.notes):
        yield from textwrap.wrap(said, _WIDTH, initial_indent="# ", subsequent_indent="#   ", break_on_hyphens=False)


def _setting(profile: ThresholdProfile) -> str:
    followed, policy = profile.followed, profile.policy
    by = "lossless"
    if followed.threshold is not None:
        by = f"{'T =' if owner_of(profile) == profile.rule else f'{profile.score} <='} {followed.threshold:.9g}"
        by += "" if policy is None or policy.name == "constant" else f" by {policy}"
    return f"{followed.rule}, {by}, L = {followed.draft_length}"


def _scope(profile: ThresholdProfile, engine: Engine) -> str:
    """Says what is certified of these options."""
    if profile.threshold is None:
        return "It is lossless, and needs no certificate."
    if not profile.certifies:
        return "Nothing is certified of it."
    whose = f"The certificate is of {profile.engine or 'fsd-calib, our own engine'}"
    decoder = engine.decoder(profile)
    if profile.engine_name == decoder:
        return f"{whose}, which decodes here, too."
    other = engine.title if decoder == engine.name else decoder
    return (
        f"{whose}, and not of {other}, which ends rounds elsewhere and rounds logits otherwise, so that texts, "
        "accuracy and speed may differ: measure them there."
    )


def _models(profile: ThresholdProfile) -> Iterator[str]:
    """Says how models were loaded, where their names do not say it."""
    for role, model in (("target", profile.target), ("draft", profile.draft)):
        if model.revision is not None:
            yield f"The {role} was {model.id!r} at commit {model.revision}."
        if model.quantization is not None:
            yield f"The weights of the {role} were quantised: {model.quantization}."
