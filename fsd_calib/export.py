"""From what a calibration found to the profile that is saved.

Knows where each number of a profile comes from. Computes nothing of its own beyond averages.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version

from fsd_calib.certify import METHOD, Evidence, Verdict
from fsd_calib.measure import Bench, Configuration, Measurement
from fsd_calib.wish import Wish
from fsd_collectors.parts import Part
from fsd_decoding.divergence import DIVERGENCE_VERSION
from fsd_decoding.fingerprint import tokenizer_fingerprint
from fsd_decoding.profile import ThresholdProfile
from fsd_decoding.profile_parts import (
    Accuracy,
    Certificate,
    Counts,
    CurvePoint,
    DataInfo,
    Estimate,
    ModelInfo,
    SamplingInfo,
    Speed,
    TokensPerRound,
)

_PACKAGES = ("fsd-calib", "torch", "transformers", "optuna")
_PARTS: tuple[Part, ...] = ("tuning", "certification")


@dataclass(frozen=True)
class Findings:
    """Everything a calibration learned. `verdict.tested` are the first ones of `frozen`; `seconds` are of a
    round at batch 1, on `timed` problems."""

    bench: Bench
    wish: Wish
    alone: Configuration
    sd: Configuration
    chosen: Configuration
    frozen: Sequence[Configuration]
    verdict: Verdict
    seconds: Mapping[Configuration, float]
    timed: int

    @property
    def granted(self) -> bool:
        """Certified, and fast enough where speed was asked for."""
        wanted = self.wish.min_speed
        fast = wanted is None or self.speed(self.chosen) >= wanted
        return self.verdict.passed is not None and fast

    def speed(self, configuration: Configuration) -> float:
        """Tokens per second of one stream: tokens a round on the certification part over the time of a round."""
        return self.bench.measure(configuration, "certification").tokens_per_round / self.seconds[configuration]

    @property
    def evidence(self) -> Evidence:
        return self.verdict.tested[self.verdict.passed or 0]


def to_profile(found: Findings) -> ThresholdProfile:
    """The profile of a calibration; a threshold only where the wish was granted."""
    decoder, chosen, granted = found.bench.decoder, found.chosen, found.granted
    outcomes, bound = found.evidence.outcomes, found.evidence.lower_bound
    alone, fuzzy = (found.bench.measure(c, "certification") for c in (found.alone, chosen))
    assert chosen.threshold is not None
    return ThresholdProfile(
        created=found.bench.started,
        task=found.bench.task.name,
        data=_data(found.bench),
        target=ModelInfo.of(decoder.target),
        draft=ModelInfo.of(decoder.draft),
        tokenizer=tokenizer_fingerprint(decoder.tokenizer),
        rule=chosen.rule,
        divergence=chosen.divergence,
        divergence_version=DIVERGENCE_VERSION,
        logits=decoder.criterion.on, within_support=decoder.criterion.within_support,
        threshold=chosen.threshold if granted else None,
        draft_length=chosen.draft_length,
        sampling=SamplingInfo.model_validate(decoder.sampling, from_attributes=True),
        seed=decoder.seed,
        lossy=granted,
        curve=list(_curve(found)),
        certificate=_certificate(found),
        accuracy=Accuracy(target=alone.accuracy, chosen=fuzzy.accuracy),
        tokens_per_round=TokensPerRound(
            sd=found.bench.measure(found.sd, "certification").tokens_per_round, chosen=fuzzy.tokens_per_round
        ),
        speed=_speed(found),
        estimate=None if granted else Estimate(
            threshold=chosen.threshold, retention=outcomes.retention, lower_bound=bound
        ),
        device=str(decoder.device),
        dtype=str(decoder.dtype).removeprefix("torch."),
        versions={"python": platform.python_version(), **{name: version(name) for name in _PACKAGES}},
    )  # fmt: skip


def _data(bench: Bench) -> DataInfo:
    given = any(problem.part is not None for problem in bench.task.problems)
    return DataInfo(
        source=bench.task.source,
        fingerprint=bench.task.fingerprint,
        split="given" if given else "content-hash",
        tuning=len(bench.problems["tuning"]),
        certification=len(bench.problems["certification"]),
    )


def _certificate(found: Findings) -> Certificate:
    outcomes = found.evidence.outcomes
    return Certificate(
        certified=found.granted,
        wanted=found.wish.min_acc,
        retention=outcomes.retention,
        lower_bound=found.evidence.lower_bound,
        confidence=found.wish.confidence,
        problems=outcomes.problems,
        method=METHOD,
        **asdict(outcomes),
    )


def _speed(found: Findings) -> Speed:
    target, sd, chosen = (found.speed(configuration) for configuration in (found.alone, found.sd, found.chosen))
    return Speed(target=target, sd=sd, chosen=chosen, batch=1, timed=found.timed, wanted=found.wish.min_speed)


def _curve(found: Findings) -> Iterator[CurvePoint]:
    """Every configuration on every part it was decoded on, against the target on the same part."""
    bounds = dict(zip(found.frozen, found.verdict.tested, strict=False))
    for part in _PARTS:
        alone = found.bench.measure(found.alone, part)
        for like in (found.alone, found.sd, found.chosen):
            for measured in found.bench.measured(like, part):
                evidence = bounds.get(measured.configuration) if part == "certification" else None
                timed = part == "certification" and measured.configuration in found.seconds
                yield _point(measured, alone, evidence, found.speed(measured.configuration) if timed else None)


def _point(measured: Measurement, alone: Measurement, evidence: Evidence | None, speed: float | None) -> CurvePoint:
    configuration = measured.configuration
    return CurvePoint(
        rule=configuration.rule,
        divergence=configuration.divergence,
        draft_length=configuration.draft_length,
        threshold=configuration.threshold,
        accuracy=measured.accuracy,
        retention=measured.against(alone).retention,
        lower_bound=evidence.lower_bound if evidence else None,
        tokens_per_round=measured.tokens_per_round,
        tokens_per_second=speed,
        problems=len(measured.correct),
        source=measured.part,
        counts=Counts(**asdict(evidence.outcomes)) if evidence else None,
    )
