"""The literal command with every score on the bundled pair, and what follows its profile: decoder and `generate`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fsd_calib import SpeculativeDecoder, ThresholdProfile, fsd_generate
from fsd_calib.cli import calibrate as calibrate_app
from fsd_calib.cli.console import run
from fsd_data import pair_paths

pytestmark = pytest.mark.slow

QUESTION = "Question: Ana has 3 hens, and each lays 5 eggs a week. How many eggs are there in 2 weeks?\nAnswer:"
SAMPLED = ["--temperature", "0.8", "--rule", "fsd-sd"]
SCORES: dict[str, list[str]] = {
    "gated-js@0.95": [], "margin": [], "relaxed@4": [], "fly@1": [], "typical": [], "posterior": SAMPLED,
    "cactus": SAMPLED, "accept-threshold@0.9": SAMPLED, "fly": SAMPLED,
    "ensemble": [*SAMPLED, "--min-acc", "0.3"],  # which is kept by nothing that is faster than lossless decoding at 0.6
}  # fmt: skip
WAYS = {
    **{score: ["--score", score, *given] for score, given in SCORES.items()},
    "of a rule": ["--rule", "ensemble"], "auto": ["--score", "auto"],
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_it_is_calibrated_and_followed(way: str, tmp_path: Path) -> None:
    given = ["--task", "arithmetic", "--draft-length", "8", "--limit", "60", "--min-acc", "0.6",
             "--timing", "none", "--min-gain", "1", *WAYS[way], "--out", str(tmp_path)]  # fmt: skip
    assert run(calibrate_app.app, calibrate_app.NAME, given) == 0
    found = ThresholdProfile.load(tmp_path)
    assert found.certificate.certified
    assert found.score == {"auto": found.score, "of a rule": "ensemble"}.get(way, way)
    assert found.threshold is not None
    decoder = SpeculativeDecoder.from_pretrained(*pair_paths(), profile=found)
    (own,) = decoder.generate([QUESTION], 48)
    (exact,) = decoder.generate([QUESTION], 48, threshold=-1.0)
    assert own.rounds <= exact.rounds
    low, high = own.interval
    assert low <= found.threshold < high
    hooked = by_generate(decoder, tmp_path)
    assert hooked == own.text if decoder.sampling.greedy else hooked  # sampled texts have noise by their ids


def by_generate(decoder: SpeculativeDecoder, folder: Path) -> str:
    """The answer by transformers' `generate`."""
    prompt: Any = decoder.tokenizer(QUESTION, return_tensors="pt")
    if not decoder.sampling.greedy:
        prompt |= {"do_sample": True, "temperature": decoder.sampling.temperature}
    out = decoder.target.generate(
        **prompt, max_new_tokens=48, custom_generate=fsd_generate, draft_model=decoder.draft, fsd_profile=str(folder)
    )
    text: str = decoder.tokenizer.decode(out[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True)
    return text
