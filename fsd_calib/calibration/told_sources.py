"""Where the tokens of some texts of the chosen setting come from, told by decoding these once more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fsd_calib.calibration.findings import Findings
from fsd_calib.engines.base import DecodingRequest, KeyedPrompt
from fsd_calib.engines.own import OwnEngine
from fsd_calib.inspection.inspected import token_line
from fsd_calib.report.record import Token
from fsd_calib.tasks.base import Problem
from fsd_decoding.observers.token_sources import TokenSources

_MOST = 12  # texts: one batch, which takes as long as its longest text
_LONGEST = 8000  # characters of a text whose tokens are told


class ToldSources(NamedTuple):
    """The tokens of texts, by problem, and why there are none, if there are none."""

    tokens: dict[int, tuple[Token, ...]]
    untold: str | None = None


def sources_of(findings: Findings, texts: Sequence[tuple[Problem, str]]) -> ToldSources:
    """Returns the tokens of the first of these texts of the chosen setting.

    A text that comes out otherwise this time, by rounding in a batch of another size, is left out.
    """
    chosen, decode = findings.chosen, findings.ready.session.decode
    engine = decode.engine_of(chosen)
    some = [(problem, text) for problem, text in texts if len(text) <= _LONGEST][:_MOST]
    if not some:
        return ToldSources({})
    if not isinstance(engine, OwnEngine):
        return ToldSources({}, f"{engine.info or engine.name} does not tell which decision emitted a token")
    observer = TokenSources(engine.tokenizer)
    prompts = [KeyedPrompt(problem.id, problem.prompt) for problem, _ in some]
    request = DecodingRequest(chosen, engine.decoding.seed, prompts, len(prompts))
    with findings.ready.session.progress.step("telling where tokens come from", len(some)) as advance:
        results = engine.decode(request, lambda place, result: advance(1), observer=observer)
    told = {}
    for place, (result, (problem, text)) in enumerate(zip(results, some, strict=True)):
        if result.text == text:
            tokens = observer.tokens(result, place)
            told[problem.id] = tuple(Token(text=t.text, source=t.source.value, says=token_line(t)) for t in tokens)
    return ToldSources(told)
