"""Export of a server's calibration as its profile."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from importlib.metadata import version

from fsd_calib.calibration.findings import Findings
from fsd_calib.calibration.to_profile import (
    certificate_of,
    data_of,
    effort_of,
    lengths_of,
    repetition_of,
    truncation_of,
)
from fsd_calib.certification.harm import retention_interval
from fsd_calib.measuring.measurement import Measurement
from fsd_calib.options.server import parse_slo
from fsd_calib.servers.load import Load, Seen, Slo
from fsd_calib.servers.requests import ServerEngine, value_of
from fsd_calib.servers.timer import LoadTimed
from fsd_decoding.profile.parts import Accuracy, SamplingInfo
from fsd_decoding.profile.server_profile import (
    AcceptanceTold,
    KnobInfo,
    LoadFigures,
    LoadInfo,
    ServerInfo,
    ServerPoint,
    ServerProfile,
    Unanswered,
)

_PACKAGES = ("fsd-calib", "openai", "optuna")


def to_profile(findings: Findings, engine: ServerEngine) -> ServerProfile:
    """Returns the profile, with a value to serve with only where the goal was met, or its test waived."""
    ready, server, chosen = findings.ready, engine.served.description, findings.chosen
    measured = findings.measured(chosen)
    grades = findings.paired(measured)
    assert server.knob is not None
    assert server.reference is not None
    value = value_of(server, chosen)
    return ServerProfile(
        created=ready.facts.started,
        outcome=findings.outcome,
        task=ready.session.task.name,
        prompt=ready.session.task.prompt,
        data=data_of(ready),
        server=ServerInfo(
            url=server.url, model=server.model, name=server.name, said=dict(engine.identity.model),
            version=engine.identity.version,
        ),
        endpoint=server.endpoint,
        body=server.body,
        knob=KnobInfo(
            name=server.knob.name, way=server.knob.way, values=server.knob.ladder,
            written=server.knob.model_dump(mode="json")[server.knob.way],
        ),
        value=value if findings.lossy else None,
        estimate=None if findings.lossy else value,
        reference=server.reference.model_dump(mode="json", exclude_none=True),
        sampling=SamplingInfo.model_validate(engine.decoding.sampling, from_attributes=True),
        seed=engine.decoding.seed,
        certificate=certificate_of(findings),
        accuracy=Accuracy(target=grades.target_accuracy, chosen=grades.accuracy),
        speed=_speed(findings),
        curve=tuple(_curve(findings, engine)),
        unanswered=_unanswered(findings, measured, engine),
        numerical_churn=findings.baseline.numerical_churn,
        truncation=truncation_of(findings, measured),
        lengths=lengths_of(findings, measured),
        repetition=repetition_of(findings, measured),
        effort=effort_of(findings),
        versions={"python": platform.python_version(), **{name: version(name) for name in _PACKAGES}},
    ).sealed()  # fmt: skip


def _speed(findings: Findings) -> LoadInfo | None:
    timed, goal = findings.timed, findings.ready.goal
    if not isinstance(timed, LoadTimed) or timed.seen is None:
        return None
    load, slo = Load(goal.serve_batch, goal.rate), None if goal.slo is None else Slo(**parse_slo(goal.slo))
    ratio = timed.speeds.ratio(findings.chosen, findings.rival)
    figures = {
        role: _figures(timed.seen[setting], timed.speeds.of(setting).value, slo)
        for role, setting in (("reference", findings.rival), ("chosen", findings.chosen))
    }
    return LoadInfo(
        streams=load.streams if load.rate is None else None, rate=load.rate,
        slo={} if goal.slo is None else parse_slo(goal.slo),
        **figures, over_reference=ratio.value, interval=(ratio.low, ratio.high) if ratio.bounded else None,
        confidence=goal.confidence, part=timed.part,
    )  # fmt: skip


def _figures(seen: Seen, stream: float, slo: Slo | None) -> LoadFigures:
    told = seen.acceptance
    return LoadFigures.model_validate({
        "stream_tokens_per_second": stream, "tokens_per_second": seen.tokens_per_second,
        "time_to_first_token": tuple(seen.first), "time_between_tokens": tuple(seen.between) or None,
        "requests": len(seen.timed), "failed": seen.failed, "goodput": None if slo is None else seen.goodput(slo),
        "acceptance": None if told is None else AcceptanceTold.model_validate(told.record),
    })  # fmt: skip


def _curve(findings: Findings, engine: ServerEngine) -> Iterator[ServerPoint]:
    confidence = findings.ready.goal.confidence
    for part in findings.parts:
        for measured in sorted(part.measured(), key=lambda each: each.setting.threshold or -float("inf")):
            paired = findings.paired(measured)
            if measured.setting == findings.ready.alone or not paired.problems:
                continue
            tested = findings.evidence.get(measured.setting) if measured.part == "certification" else None
            yield ServerPoint(
                value=value_of(engine.served.description, measured.setting), source=measured.part,
                problems=paired.problems, counts=paired.outcomes, accuracy=paired.accuracy,
                retention=paired.retention if paired.target.any() else 0.0,
                interval=retention_interval(paired, tested.two_sided if tested else confidence),
                lower_bound=tested.printed.retention if tested else None,
                tokens_per_second=findings.ready.timer.forecast_of(measured.setting),
            )  # fmt: skip


def _unanswered(findings: Findings, measured: Measurement, engine: ServerEngine) -> Unanswered:
    alone = _nothing(findings.alone(measured))
    chosen = [mine and not other for mine, other in zip(_nothing(measured), alone, strict=True)]
    return Unanswered(asked=engine.served.client.asked, reference=sum(alone), chosen=sum(chosen))


def _nothing(of: Measurement) -> Sequence[bool]:
    """Whether texts stayed unanswered."""
    return [decoding.rounds == 0 for seeds in of.decodings for decoding in seeds]
