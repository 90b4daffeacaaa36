"""The calibration that `fsd-calibrate` is asked for, as the objects that Python takes. Importing this imports torch."""

from __future__ import annotations

from dataclasses import replace

from fsd_calib.calibration.api import Calibration
from fsd_calib.calibration.output_folder import own_folder
from fsd_calib.calibration.recertify import decoding_of, prompts_of
from fsd_calib.calibration.run_config import RunConfig
from fsd_calib.cli.options import default_pair
from fsd_calib.cli.requested import Requested
from fsd_calib.tasks.registry import load_task
from fsd_common.progress.base import Progress
from fsd_decoding.config import DecodingConfig
from fsd_decoding.loading import check_device, load_tokenizer
from fsd_decoding.sampling import Sampling
from fsd_decoding.tree_shape import read_shape

_DECODING = ("rule", "divergence", "draft_length", "threshold_policy", "stop_policy")
_PROMPTS = ("chat_template_kwargs", "system", "max_new_tokens", "answer_after")
_RUN = (
    "batch_size", "device", "dtype", "limit", "data", "seeds", "compile", "cache", "state", "workers", "ray", "storage",
    "engine_args", *_PROMPTS,
)  # fmt: skip


def calibration_of(asked: Requested, progress: Progress) -> Calibration:
    """Returns the calibration.

    Raises:
        UsageError: a setting is unknown or cannot be used here, or settings contradict each other.
    """
    if asked.of_run("device") is not None:
        check_device(asked.of_run("device"))
    target, drafts = asked.target_and_drafts
    calibration = Calibration(
        asked.task, target, drafts, asked.goal, _decoding(asked), _run(asked, progress), fixed=asked.certified
    )
    out = asked.out or own_folder(asked.usual_folder, calibration, asked.engines)
    return replace(calibration, config=replace(calibration.config, out=out))


def first_prompt(asked: Requested) -> str:
    """Returns the prompt of the first problem. Reads the tokenizer, and no weights."""
    tokenizer = load_tokenizer(asked.target or default_pair(asked.task)[0], asked.loaded.target)
    source = asked.task if asked.certified is None else prompts_of(asked.certified, asked.task)
    options = {name: asked.of_run(name) for name in _PROMPTS}
    task = load_task(source, asked.seed, asked.of_run("limit"), asked.data, tokenizer, **options)
    return task.problems[0].prompt


def _decoding(asked: Requested) -> DecodingConfig:
    if asked.certified is not None:
        return replace(decoding_of(asked.certified), seed=asked.seed)
    fields = {name: asked.of_decoding(name) for name in _DECODING}
    named = asked.of_decoding("tree")
    trees = None if named is None else tuple(map(read_shape, named))
    return DecodingConfig(**fields, tree=trees, sampling=Sampling(*asked.sampling), seed=asked.seed)


def _run(asked: Requested, progress: Progress) -> RunConfig:
    fields = {name: asked.of_run(name) for name in _RUN} | asked.trials
    return RunConfig(
        **fields, model_kwargs=asked.loaded.target, draft_model_kwargs=asked.loaded.draft, timing=asked.timing,
        replace=asked.files.replace, progress=progress,
        engine="vllm" if "vllm" in asked.engines else asked.engines[0],  # type: ignore[arg-type]
    )  # fmt: skip
