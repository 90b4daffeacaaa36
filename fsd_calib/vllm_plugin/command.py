"""The command that serves a profile with vLLM."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fsd_calib.vllm_plugin import KEY, METHOD
from fsd_calib.vllm_plugin.engine_checks import check_profile
from fsd_calib.vllm_plugin.own_rules import by_own_fly, fly_options_of
from fsd_calib.vllm_plugin.speculation import speculation_of
from fsd_decoding.profile.prompt_form import QUESTION
from fsd_decoding.profile.rendering import request_of
from fsd_decoding.profile.threshold_profile import ThresholdProfile

_SAMPLED = {"draft_sample_method": "probabilistic"}


def serve_command(profile: ThresholdProfile, file: str | os.PathLike[str]) -> str:
    """Returns a command for a shell that serves a profile's models with vLLM, at its threshold, L and sampling.

    Drafts are sampled, which greedy requests do not notice: the V2 model runner keeps their logits only then.
    The defaults of the target's generation_config.json are left out (--generation-config vllm), so a request that sets
    no sampling is decoded as calibrated. Revisions of models are not set: the engine compares fingerprints when it
    starts.

    Args:
        file: the profile's file, or its folder.

    Raises:
        UsageError: vLLM cannot follow the profile.
    """
    check_profile(profile)
    settings: dict[str, Any] = {"profile": str(Path(file).absolute())}
    if profile.edited:  # which is followed only where the settings say so
        settings["allow_edited"] = True
    drafting = {METHOD: "fly", **fly_options_of(profile)} if by_own_fly(profile) else _SAMPLED
    return command_of(profile, drafting, additional={KEY: settings})


def command_of(
    profile: ThresholdProfile,
    speculation: Mapping[str, Any],
    *,
    additional: Mapping[str, Any] | None = None,
    second_runner: bool = False,
) -> str:
    """Returns a command for a shell that serves a profile's models, dtype, draft length, sampling and chat template.

    Args:
        speculation: what else --speculative-config says.
        additional: the entries of --additional-config.
        second_runner: whether vLLM's V2 model runner alone can do it; otherwise vLLM chooses.
    """
    drafting = speculation_of(profile.draft) | {"num_speculative_tokens": profile.followed.draft_length, **speculation}
    if profile.sampling.temperature > 0:
        drafting["draft_sample_method"] = "probabilistic"
    lines = [
        f"{'VLLM_USE_V2_MODEL_RUNNER=1 ' if second_runner else ''}vllm serve {shlex.quote(profile.target.id)}",
        f"--dtype {shlex.quote(profile.dtype)}",
        f"--speculative-config {_quoted(drafting)}",
        "--generation-config vllm --override-generation-config "
        f"{_quoted(profile.sampling.model_dump(exclude_none=True))}",
    ]
    if additional is not None:
        lines.append(f"--additional-config {_quoted(additional)}")
    if profile.prompt is not None and profile.prompt.template is not None:
        # Messages are given to the template as texts, as in the calibration, even if it takes parts of other kinds.
        lines.append("--chat-template-content-format string")
        if profile.prompt.template_arguments:
            lines.append(f"--default-chat-template-kwargs {_quoted(profile.prompt.template_arguments)}")
    if profile.engine is not None:
        lines += [_flag(name, value) for name, value in sorted(profile.engine.arguments.items()) if name != METHOD]
    return " \\\n    ".join(lines)


def request_notes(profile: ThresholdProfile) -> list[str]:
    """Returns comments for a shell that say what a client sends, so that the server reads the calibration's prompts."""
    if profile.prompt is None or profile.prompt.form is None:
        return [
            "# Prompts of this profile are made by its task's own code: send them, rendered, to /v1/completions;",
            f"# the profile of {profile.task!r} is of no others.",
        ]
    body = request_of(profile.prompt)
    path = "chat/completions" if "messages" in body else "completions"
    return [
        f"# The calibration's prompts, and no others, are what this body of /v1/{path} asks for, with a question in",
        f"# place of {QUESTION}:",
        f"# {json.dumps(body, ensure_ascii=False)}",
    ]


def _flag(name: str, value: Any) -> str:
    """An argument of `vllm.LLM` as an option of the server."""
    option = f"--{name.replace('_', '-')}"
    if value is True:
        return option
    if value is False:
        return option.replace("--", "--no-", 1)
    return f"{option} {shlex.quote(value if isinstance(value, str) else json.dumps(value))}"


def _quoted(value: Mapping[str, Any]) -> str:
    return shlex.quote(json.dumps(value))
