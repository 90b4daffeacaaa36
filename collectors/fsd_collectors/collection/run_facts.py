"""The facts of a run of traces: its policy and its manifest, from the settings of `collect_traces`."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Sequence
from importlib.metadata import version

from fsd_collectors.collection.hidden_states import HiddenStates
from fsd_collectors.collection.protocols import Problem, Task
from fsd_collectors.manifest import Manifest, Policy, TaskInfo
from fsd_common.argument_checks import check_settings
from fsd_common.errors import UsageError
from fsd_decoding.acceptance import rule_named
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.engine.engine import ENGINE_VERSION
from fsd_decoding.models.fingerprint import tokenizer_fingerprint
from fsd_decoding.profile.drafts import info_of
from fsd_decoding.profile.parts import ModelInfo, SamplingInfo

_PACKAGES = ("fsd-calib", "torch", "transformers", "pyarrow")
_ROWS = 250_000  # rows of a shard, at most, if every text has the maximum length
# Batches of a portion. Few leave rows of the batch empty at each portion's end; many are repeated if the run is killed.
_FEWEST, _MOST = 2, 8
_PROBLEMS = 32  # a portion may have as many batches as make this many problems, since each file has a cost of its own


def policy_of(
    rule: str | None, threshold: float | None, divergence: str | None, draft_length: int | None, within_support: bool
) -> Policy | None:
    """Returns the policy that on-policy texts are decoded under, or None, along the target, where no rule is given.

    Raises:
        UsageError: a setting is missing, or does not apply to this way of collecting or to the rule.
    """
    if rule is None:
        _refuse_policy(threshold=threshold, divergence=divergence, draft_length=draft_length,
                       within_support=within_support or None)  # fmt: skip
        return None
    properties = rule_named(rule, lambda known: known.drafts)
    if not properties.drafts:
        raise UsageError(f"rule {rule!r} drafts nothing; leave the rule out to collect along the target")
    if properties.fuzzy and threshold is None:
        raise UsageError(f"rule {rule!r} needs a threshold; give one (infinity accepts all that a threshold can)")
    if not properties.fuzzy and threshold is not None:
        raise UsageError(f"threshold is {threshold}, but rule {rule!r} has none; leave it out")
    length = 5 if draft_length is None else draft_length
    check_settings([length], [] if threshold is None else [threshold])
    shown = "none" if threshold is None else repr(float(threshold))
    return Policy(
        rule=rule, divergence=divergence or "js", threshold=shown, draft_length=length, within_support=within_support
    )


def _refuse_policy(**settings: object) -> None:
    for name, value in settings.items():
        if value is not None:
            raise UsageError(
                f"{name} is {value}, but it applies to on-policy traces only; give a rule too, or leave {name} out"
            )


def manifest_of(
    decoder: SpeculativeDecoder,
    task: Task,
    problems: Sequence[Problem],
    policy: Policy | None,
    divergences: Sequence[str],
    states: HiddenStates | None,
    batch_size: int,
) -> Manifest:
    """Returns the manifest of a run."""
    return Manifest(
        way="on-policy" if policy else "along-target",
        policy=policy,
        target=ModelInfo.of(decoder.target),
        draft=info_of(decoder.draft, decoder.target),
        tokenizer=tokenizer_fingerprint(decoder.tokenizer),
        eos=tuple(sorted(decoder.eos)),
        task=task_info(task, problems),
        sampling=SamplingInfo.model_validate(decoder.sampling, from_attributes=True),
        seed=decoder.seed,
        divergences=tuple(divergences),
        on=decoder.criterion.on,
        hidden=states.width if states else 0,
        projected=states is not None and states.projected,
        batch_size=batch_size,
        portion=_portion(batch_size, task.max_new_tokens * (policy.draft_length if policy else 1)),
        device=str(decoder.device),
        versions=versions(str(ENGINE_VERSION)),
    )  # fmt: skip


def task_info(task: Task, problems: Sequence[Problem]) -> TaskInfo:
    """Returns what a manifest holds of a task, of which these problems are collected."""
    return TaskInfo(
        name=task.name, source=task.source, fingerprint=task.fingerprint, prompts=_prompts(problems),
        problems=len(problems), max_new_tokens=task.max_new_tokens, stop=task.stop,
    )  # fmt: skip


def versions(engine: str) -> dict[str, str]:
    """Returns the versions of Python, of the packages that rows depend on, and of the engine that decodes."""
    packages = {name: version(name) for name in _PACKAGES}
    return {"python": platform.python_version(), **packages, "engine": engine}


def _prompts(problems: Sequence[Problem]) -> str:
    digest = hashlib.sha256()
    for problem in problems:
        digest.update(json.dumps([problem.id, problem.prompt, problem.part]).encode() + b"\n")
    return digest.hexdigest()


def _portion(batch_size: int, most_rows: int) -> int:
    """Returns the problems of a portion: whole batches whose rows, at most `most_rows` a problem, fit into a shard."""
    fitting = _ROWS // (most_rows * batch_size)
    most = max(_MOST, -(-_PROBLEMS // batch_size))
    return batch_size * min(max(fitting, _FEWEST), most)
