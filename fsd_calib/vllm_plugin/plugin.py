"""The function that vLLM calls in each of its processes, through the entry point group `vllm.general_plugins`."""

from __future__ import annotations

import functools
import logging
from typing import Any

from fsd_calib.vllm_plugin import KEY

_MARK = "_looks_for_fsd_profile"


def register() -> None:
    """Makes vLLM look for a profile whenever it makes an engine's configuration.

    This is all that it changes in vLLM by itself. Where the configuration names no profile, the rest of the plugin is
    not even imported.
    """
    try:
        from vllm.engine.arg_utils import EngineArgs

        original = EngineArgs.create_engine_config
    except (ImportError, AttributeError) as error:
        logging.getLogger("vllm").error("fsd: this vLLM cannot follow profiles, as it lacks a name: %s", error)
        return
    if hasattr(original, _MARK):
        return

    @functools.wraps(original)
    def create_engine_config(self: Any, *args: Any, **keywords: Any) -> Any:
        config = original(self, *args, **keywords)
        if isinstance(config.additional_config, dict) and KEY in config.additional_config:
            from fsd_calib.vllm_plugin.start import follow

            follow(config)
        return config

    setattr(create_engine_config, _MARK, True)
    EngineArgs.create_engine_config = create_engine_config
