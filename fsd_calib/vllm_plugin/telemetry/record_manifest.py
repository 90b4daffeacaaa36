"""The manifest of traces of what vLLM serves."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from fsd_collectors.collection.run import versions
from fsd_collectors.manifest import Manifest, Policy, TaskInfo
from fsd_decoding.divergence import DIVERGENCES
from fsd_decoding.profile.threshold_profile import ThresholdProfile

PORTION = 50  # texts of a shard, at most


@dataclass(frozen=True)
class EngineFacts:
    """What vLLM's engine serves with."""

    draft_length: int  # L
    batch_size: int  # largest number of running requests
    context: int  # the most tokens of a prompt and its text together
    eos: Iterable[int]  # tokens that end a text
    device: str
    version: str  # of vLLM


def manifest_of(profile: ThresholdProfile, texts: int, engine: EngineFacts) -> Manifest:
    """Returns the manifest of texts that are decoded as a profile says.

    Args:
        profile: which is followed.
        texts: number of texts after which recording ends.
        engine: which serves.
    """
    return Manifest(
        way="serving",
        policy=Policy(
            rule=profile.effective_rule, divergence=profile.divergence,
            threshold="none" if profile.threshold is None else repr(profile.threshold),
            draft_length=engine.draft_length, within_support=profile.within_support,
        ),
        target=profile.target,
        draft=profile.draft,
        tokenizer=profile.tokenizer,
        eos=tuple(sorted(engine.eos)),
        task=TaskInfo(
            name=profile.task, source="requests to vLLM", prompts="", problems=texts, max_new_tokens=engine.context,
            fingerprint=hashlib.sha256(profile.model_dump_json().encode()).hexdigest(), stop=(),
        ),
        sampling=profile.sampling,
        seed=profile.seed,
        divergences=tuple(dict.fromkeys((*DIVERGENCES, profile.divergence))),
        on=profile.logits,
        hidden=0,
        projected=False,
        batch_size=engine.batch_size,
        portion=min(PORTION, texts),
        device=engine.device,
        versions=versions(f"vllm {engine.version}"),
    )  # fmt: skip
