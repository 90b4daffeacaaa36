"""The threshold policies that are compared, by family, and the training of those that are trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from fsd_calib import collect_traces
from fsd_calib.calibration.per_prompt import facts_of, per_prompt_shapes
from fsd_calib.engines.configuration import Configuration
from fsd_calib.engines.own.engine import OwnEngine
from fsd_calib.measuring.evaluator import CachedDecoder
from fsd_calib.measuring.result_cache import ResultCache
from fsd_decoding.adaptive import EntropyScaled, Schedule
from fsd_decoding.policies.threshold import ScalePolicy
from lib.policies.world import BATCH, RULE, World

_T = 0.2  # replaced by the threshold that is chosen
FIXED: Mapping[str, Sequence[ScalePolicy]] = {
    "schedule": [Schedule(_T, share * _T, over) for share, over in ((0.5, 40), (2.0, 80))],
    "entropy": [EntropyScaled(_T, slope) for slope in (0.5, 1.0, 2.0)],
}  # fmt: skip


def train_per_prompt(world: World, divergence: str, draft_length: int, thresholds: Sequence[float]) -> list[str]:
    """Fits `PerPrompt` policies on the training problems, and returns their identities."""
    decoder, task = world.decoder(divergence), world.sets.training
    with TemporaryDirectory() as folder, ResultCache(None) as store:
        traces = collect_traces(
            task, target=decoder.target, draft=decoder.draft, tokenizer=decoder.tokenizer,
            out=Path(folder) / "traces", divergences=(divergence,),
        )  # fmt: skip
        facts = facts_of(traces, decoder, task.problems)
        decode = CachedDecoder(OwnEngine(decoder, task), task, store, BATCH)
        configuration = Configuration(RULE, divergence, draft_length)
        shapes = per_prompt_shapes(decode, configuration, thresholds, task.problems, facts)
    return [shape.identity or "" for shape in shapes]
