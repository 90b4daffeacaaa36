"""What a calibration works with: a decoder, the parts of a task, the cache of decodings and the ledger of attempts.

Knows how these come together and where they lie. Decides nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from fsd_calib.certifying.attempts import Ledger, family
from fsd_calib.certifying.sealed import Sealed
from fsd_calib.measuring.bench import Bench
from fsd_calib.measuring.cached_decode import CachedDecode
from fsd_calib.measuring.configuration import Configuration
from fsd_calib.measuring.store import Store
from fsd_calib.progress import Progress
from fsd_calib.tasks import Problem, Task
from fsd_calib.tasks.parts import parts_of
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.profile_parts import ModelInfo
from fsd_decoding.rules import rule_named
from fsd_decoding.stop_policy import StopPolicy


@dataclass(frozen=True)
class Workbench:
    decoder: SpeculativeDecoder  # of the first draft
    task: Task
    decode: CachedDecode
    identity: str  # what decides texts beside prompts and what is searched: both models, sampling, seeds, versions
    tuning: Bench
    sealed: Sealed
    batch_size: int
    cache: Path | None  # folder; None keeps nothing
    progress: Progress
    drafts: Mapping[str, SpeculativeDecoder] = field(default_factory=dict)  # by name, where there are several

    def with_draft(self, name: str | None) -> Workbench:
        """The same where `decoder` drafts with the model of that name; None: with the only one."""
        if name is None:
            return self
        decoder = self.drafts[name]
        return replace(self, decoder=decoder, identity=_identity(decoder, self.decode, name))

    def draft_of(self, configuration: Configuration) -> SpeculativeDecoder:
        """The decoder that runs a configuration."""
        return self.with_draft(configuration.draft).decoder

    def stopping_early(self, policies: Mapping[str, StopPolicy]) -> Workbench:
        """The same, where fuzzy rules' drafts follow their divergence's policy; nothing is measured yet."""
        decode, names = self.decode.stopping_early(policies), {d: policy.identity for d, policy in policies.items()}
        how = f"stopping drafts by {json.dumps(names, sort_keys=True)} "
        return replace(
            self, decode=decode, identity=self.identity + how, sealed=self.sealed.decoded_by(decode, how),
            tuning=Bench(decode, self.tuning.problems, self.tuning.part),
        )  # fmt: skip

    def configuration(self, rule: str, draft_length: int = 1, draft: str | None = None) -> Configuration:
        """Of a rule without a threshold."""
        return Configuration(rule, self.decoder.divergence, draft_length, draft=draft)


@contextmanager
def opened(
    decoder: SpeculativeDecoder, task: Task, batch_size: int, seeds: int, cache: Path | None, progress: Progress,
    drafts: Mapping[str, SpeculativeDecoder] | None = None,
) -> Iterator[Workbench]:  # fmt: skip
    """A workbench whose files are closed in the end.

    Args:
        decoder: of the first draft.
        drafts: where there are several, the decoders of all of them by name, the first included.

    Raises:
        UsageError: the problems do not make two parts, or the cache cannot be used.
    """
    tuning, certification, notes = parts_of(task)
    for note in notes:
        progress.note(note)
    whose = family(task.name, *(ModelInfo.of(model).fingerprint for model in (decoder.target, decoder.draft)))
    files = [None, None] if cache is None else [cache / "decodings.sqlite", cache / "attempts.sqlite"]
    with Store(files[0]) as store, Ledger(files[1]) as ledger:
        ledger.tuned_on(whose, [problem.id for problem in tuning])
        decode = CachedDecode(decoder, task, store, batch_size, progress, seeds, drafts)
        names: list[str | None] = [*sorted(drafts or {})] or [None]
        identity = " and ".join(_identity(decoder, decode, name) for name in names)
        sealed = Sealed(
            Bench(decode, certification, "certification"), ledger, whose, identity + _fingerprint(certification)
        )
        yield Workbench(
            decoder, task, decode, identity, Bench(decode, tuning, "tuning"), sealed, batch_size, cache, progress,
            drafts or {},
        )  # fmt: skip


def _identity(decoder: SpeculativeDecoder, decode: CachedDecode, draft: str | None) -> str:
    drafting = Configuration(rule_named(decoder.rule).lossless, decoder.divergence, 1, draft=draft)
    return f"{decode.key(drafting).json} with {decode.seeds} seeds "


def _fingerprint(problems: Sequence[Problem]) -> str:
    asked = [[problem.id, problem.prompt, problem.reference] for problem in problems]
    return hashlib.sha256(json.dumps(asked).encode()).hexdigest()
