"""How much is measured on a GPU."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Plan:
    """How much is measured.

    Args:
        device: "cuda" or "cpu".
        target, draft: the large models, keys of `models.SHAPES`.
        capped: whether parts are stopped after their seconds.
        backends: of attention, members of `torch.nn.attention.SDPBackend`.
        attended: slots that attention reads.
        vocabularies: sizes of logits that kernels read.
        draft_length: L.
        rows: of batches of large models; the largest one is refilled.
        contexts: tokens of their prompts.
        rounds: rounds that are timed of each setting.
        growth: tokens of a text when its growth begins, and those that it grows by.
        prefix: tokens that the prompts of refills begin with, and those of each of their own.
        refilled: requests that are decoded with refills.
        nodes: of trees.
        layers: of the bundled models, the first ones; the others are left out. None: all are used.
        problems: decoded by the bundled pair.
        compared: tokens of its texts that are compared.
        settings: rules and temperatures that it decodes by.
        compiled: dtypes that it is compiled in.
        copied: bytes, to measure the memory's bandwidth.
        repeats: of each kernel.
    """

    device: str
    target: str
    draft: str
    capped: bool
    backends: tuple[str, ...]
    attended: tuple[int, ...]
    vocabularies: tuple[int, ...]
    draft_length: int
    rows: tuple[int, ...]
    contexts: tuple[int, ...]
    rounds: int
    growth: tuple[int, int]
    prefix: tuple[int, int]
    refilled: int
    nodes: int
    layers: int | None
    problems: int
    compared: int
    settings: tuple[tuple[str, float], ...]
    compiled: tuple[str, ...]
    copied: int
    repeats: int


FULL = Plan(
    device="cuda", target="8B", draft="1B", capped=True,
    backends=("CUDNN_ATTENTION", "EFFICIENT_ATTENTION"), attended=(512, 1024, 2048, 4096),
    vocabularies=(32_000, 151_936),
    draft_length=5, rows=(1, 32), contexts=(512, 4096), rounds=40,
    growth=(500, 1000), prefix=(740, 60), refilled=96, nodes=16,
    layers=None, problems=64, compared=128,
    settings=(("sd", 0.0), ("fsd-coupled", 0.0), ("sd", 0.6), ("fsd-coupled", 0.6)), compiled=("float32", "bfloat16"),
    copied=1 << 31, repeats=50,
)  # fmt: skip
DRY = Plan(
    device="cpu", target="toy", draft="toy", capped=False,
    backends=("MATH",), attended=(24,),
    vocabularies=(979,),
    draft_length=2, rows=(1, 2), contexts=(8,), rounds=6,
    growth=(8, 16), prefix=(12, 4), refilled=4, nodes=3,
    layers=1, problems=2, compared=6, settings=(("fsd-coupled", 0.6),), compiled=("float32",),
    copied=1 << 20, repeats=1,
)  # fmt: skip
