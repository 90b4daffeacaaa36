"""The interface of an engine: it decodes prompts under any setting, and says what its texts depend on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol, Self

import numpy as np
from scipy.optimize import nnls

from fsd_calib.engines.cache_key import CacheKey, GenerationLimits
from fsd_calib.tasks.base import Task
from fsd_collectors.collection.measures import Width
from fsd_collectors.manifest import Manifest
from fsd_collectors.replay.cost import CostModel
from fsd_collectors.replay.walks import Walked
from fsd_collectors.store.reading import Traces
from fsd_common.argument_checks import named
from fsd_common.errors import UsageError
from fsd_common.formatting import parameters
from fsd_common.progress.base import Progress
from fsd_decoding.config import DecodingConfig
from fsd_decoding.engine.result import Result
from fsd_decoding.graphs.callers import Compile
from fsd_decoding.policies.stopping import StopPolicy
from fsd_decoding.profile.parts import EngineInfo, ModelInfo
from fsd_decoding.profile.setting import CHAINS, Drafting, Setting
from fsd_decoding.workers.model_workers import ModelWorkers


class KeyedPrompt(NamedTuple):
    """A prompt, and the id that its noise is derived from."""

    id: int
    prompt: str


@dataclass(frozen=True)
class Limits:
    """Where texts end, apart from the task that says so. Implements `GenerationLimits`."""

    max_new_tokens: int
    stop: tuple[str, ...]

    @classmethod
    def of(cls, limits: GenerationLimits) -> Self:
        return cls(limits.max_new_tokens, tuple(limits.stop))


@dataclass(frozen=True)
class WantedTraces:
    """Traces along the target to collect: of all problems of a task, in its order.

    Attributes:
        scores: Columns.
        batch_size: Problems at once.
        hidden: Width of the draft's hidden state, as `collect_traces` takes it; None: without it.
    """

    task: Task
    scores: Sequence[str]
    batch_size: int
    hidden: Width | None = None


@dataclass(frozen=True)
class Pair:
    """The models that an engine runs, as profiles record them."""

    target: ModelInfo
    draft: ModelInfo
    tokenizer: str  # its fingerprint


def short_name(model: Any) -> str:
    """Returns the architecture and size of a causal LM of transformers."""
    return f"{model.config.model_type} {parameters(model.num_parameters())}"


class DecodingRequest(NamedTuple):
    """Prompts to decode under one setting and seed, so many at a time."""

    setting: Setting
    seed: int
    prompts: Sequence[KeyedPrompt]
    batch_size: int


OnFinish = Callable[[int, Result], None]
"""Receives the index of a prompt and its result, once it is finished."""

Begin = Callable[[int], bool]
"""Says whether the prompt of this index is to be decoded; called just before it is begun."""


class TextEngine(ABC):
    """Decodes the prompts of one task, and tells nothing but the texts.

    Attributes:
        name: As `--engine` takes it and profiles record it.
        decoding: Sampling, seed, and the logits that scores are computed on. Settings hold the rest.
        limits: Where texts end.
    """

    name: ClassVar[str]
    decoding: DecodingConfig
    limits: GenerationLimits

    @abstractmethod
    def decode(
        self, request: DecodingRequest, on_finish: OnFinish | None = None, begin: Begin | None = None
    ) -> list[Result]:
        """Returns the results of the prompts that are begun, in their order, by default all.

        A text at T is the same at every T of its result's `interval`, where the engine can tell; else the interval
        holds T alone.

        Raises:
            UsageError: The setting is none that this engine can run.
            UnfinishedError: Some prompts failed; the others' results are attached.
        """

    def emitted(self, request: DecodingRequest) -> int:
        """Decodes the prompts and returns the number of tokens they took, for timing."""
        return sum(result.emitted for result in self.decode(request))

    @abstractmethod
    def key(self, setting: Setting, seed: int) -> CacheKey:
        """Returns the key of the texts of a setting under a seed.

        Raises:
            UsageError: The setting has a threshold and its rule none, or vice versa.
        """

    @property
    def info(self) -> EngineInfo | None:
        """The engine as profiles record it; None: our own."""
        return None

    @property
    @abstractmethod
    def family(self) -> str:
        """The target's `family_id`, by which the ledger counts attempts, whatever decodes it."""

    @property
    @abstractmethod
    def short_names(self) -> tuple[str, str]:
        """Architecture and size of target and draft, for the names of studies."""

    @property
    def trained_on(self) -> frozenset[int]:
        """Keys of problems that the draft was trained on, as far as it says."""
        return frozenset()

    @property
    @abstractmethod
    def score(self) -> str:
        """The score of settings whose rule has none."""

    @property
    def lossless(self) -> str:
        """The rule that is compared with the target before any T is tried."""
        return "coupled"

    @property
    def exact_texts(self) -> bool:
        """Whether this rule gives the target's own texts, except for rounding."""
        return True

    @property
    def compile(self) -> Compile:
        """How rounds are called; False where the engine calls them in its own way."""
        return False

    def call_rounds(self, compile: Compile) -> None:
        """Calls rounds this way from now on.

        Raises:
            UsageError: The engine has a way of its own.
        """
        if compile is not False:
            raise UsageError(f"engine {self.name!r} calls its rounds in its own way; leave {named('compile')} out")

    @abstractmethod
    def with_limits(self, limits: GenerationLimits) -> TextEngine:
        """Returns an engine with the same models whose texts end elsewhere, as those of another task do."""

    def stopping_early(self, policies: Mapping[str, StopPolicy]) -> TextEngine:
        """Returns an engine with the same models whose fuzzy rules stop drafting by these policies, by score.

        Raises:
            UsageError: The engine has no place for them.
        """
        raise UsageError(f"engine {self.name!r} cannot end drafts by a predictor; leave {named('predictor')} out")


class Engine(TextEngine):
    """Decodes with one target and one draft that it knows from inside.

    Attributes:
        tokenizer: The tokenizer of both models.
        ending: The policy that ends the drafts of fuzzy rules early, whatever their score; None: there is none.
    """

    tokenizer: Any
    ending: StopPolicy | None = None

    @abstractmethod
    def walked(self, request: DecodingRequest, scores: Sequence[str]) -> Walked:
        """Decodes losslessly, and returns what was drafted; see `Walked`.

        Args:
            request: of a lossless setting.
            scores: to compute at every node.
        """

    @abstractmethod
    def costs(
        self, prompts: Sequence[KeyedPrompt], batch_size: int, progress: Progress, drafting: Drafting = CHAINS
    ) -> CostModel:
        """Measures what a round costs, in seconds, with `batch_size` rows.

        Args:
            drafting: what is drafted; the costs of trees and beams count levels in place of drafted tokens.

        Raises:
            UsageError: The engine does not draft so.
        """

    def prefill(self, prompts: Sequence[KeyedPrompt], batch_size: int, costs: CostModel) -> float:
        """Returns the seconds of the prefill of so many prompts at once; 0: they are not known. costs: see `costs`."""
        return 0.0

    @abstractmethod
    def manifest(self, wanted: WantedTraces) -> Manifest:
        """Returns the manifest that such traces have."""

    @abstractmethod
    def collect(
        self, wanted: WantedTraces, folder: Path, progress: Progress, workers: ModelWorkers | None = None
    ) -> Traces:
        """Collects traces into a folder, or continues what was begun there.

        Args:
            workers: Processes that may collect too.
        """

    @property
    @abstractmethod
    def pair(self) -> Pair:
        """The models."""

    @property
    @abstractmethod
    def rule(self) -> str:
        """The rule that thresholds are searched for first."""

    @property
    def longest_draft(self) -> int | None:
        """The largest draft length; None: any."""
        return None

    @property
    def runs_draft_alone(self) -> bool:
        """Whether `Setting.draft_alone` can be decoded."""
        return False

    @property
    @abstractmethod
    def device(self) -> str:
        """The device that the target is on, as torch names it."""

    @property
    def on_own_cpu(self) -> bool:
        """Whether decoding takes this process's own processor seconds and nothing else."""
        return False

    @property
    @abstractmethod
    def dtype(self) -> str:
        """The dtype of the target, as torch names it."""

    @abstractmethod
    def with_limits(self, limits: GenerationLimits) -> Engine:
        """See `TextEngine.with_limits`."""

    @property
    def stop_policy(self) -> str | None:
        """The name of the policy that ends drafts, see `ending`; None: there is none, or it has no name."""
        return None if self.ending is None else self.ending.name


class EngineSource(Protocol):
    """What another process makes an equal engine of. It is pickled."""

    def engine(self, draft: str | None) -> Engine:
        """Returns the engine with the draft of this name, made at the first call; None: there is only one draft."""
        ...


_LEAST = 1e-9  # seconds; the least cost of a verification


def fit(seconds: Mapping[int, float], draft_step: float) -> CostModel:
    """Fits the line L (c + Δv) + (v + Δv) to the seconds of a round by draft length L, with relative errors.

    Rounds determine the two sums; `draft_step`, in seconds and at least 0, splits them. The split is rough where a
    clock saw only launches, or no draft phase; the sums, which all speeds follow from, are not. No cost is negative.
    """
    lengths, taken = np.array(list(seconds), np.float64), np.array(list(seconds.values()))
    rows = np.stack([lengths, np.ones_like(lengths)], 1) / taken[:, None]
    token, constant = (float(x) for x in nnls(rows, np.ones_like(taken))[0])
    constant = max(constant, _LEAST)
    position = min(max(token - draft_step, 0.0), constant)
    return CostModel(draft_step=token - position, verify=constant - position, position=position)
