"""What is decoded and read for labels, here or in a worker."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from fsd_collectors.collection.along_target import Completion
from fsd_collectors.judging.reading import ReadText, read_texts
from fsd_collectors.judging.writing import Begun, Finisher, Written
from fsd_common.errors import UnfinishedError
from fsd_decoding.config import DecodingConfig
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.loading import ModelSource
from fsd_decoding.workers.model_workers import Sources
from fsd_decoding.workers.models import check_identity, decoder_of


@dataclass(frozen=True)
class Piece:
    """Texts that do not depend on each other.

    Args:
        portion: whose they are.
        begun: texts that the target is to finish.
        read: whether both models then read what it wrote.
        given: texts that they read as they are.
    """

    portion: int
    begun: Sequence[Begun] = ()
    read: bool = False
    given: Sequence[Completion] = ()

    def __str__(self) -> str:
        return f"a piece of {len(self.begun) + len(self.given)} texts of portion {self.portion}"


@dataclass(frozen=True)
class Done:
    """What became of a piece.

    `read` is of the texts behind their beginnings, or of the given ones.
    """

    texts: list[Written] = field(default_factory=list)
    read: list[ReadText] = field(default_factory=list)
    seconds: float = 0.0  # that it took


def do(decoder: SpeculativeDecoder, stop: tuple[str, ...], batch_size: int, piece: Piece) -> Done:
    """Finishes and reads the texts of a piece. UnfinishedError: see `SpeculativeDecoder.generate`."""
    began = time.perf_counter()
    texts = Finisher(decoder, stop, batch_size).finish(piece.begun)
    behind = [text.behind(begun) for begun, text in zip(piece.begun, texts, strict=True)] if piece.read else []
    read = read_texts(decoder, [*behind, *piece.given], batch_size)
    return Done(texts, read, time.perf_counter() - began)


@dataclass(frozen=True)
class LabelJob:
    """What a worker needs to do pieces as this process does; see `PortionJob` for what they share."""

    sources: Sources
    draft: ModelSource | None
    identity: str
    decoding: DecodingConfig
    stop: tuple[str, ...]
    batch_size: int


def do_in_worker(job: LabelJob, piece: Piece) -> Done | UnfinishedError:
    """Does a piece; called in a worker."""
    loaded = decoder_of(job.sources, job.draft)
    check_identity(loaded, job.identity)
    try:
        return do(loaded.reconfigured(job.decoding), job.stop, job.batch_size, piece)
    except UnfinishedError as error:
        return error
