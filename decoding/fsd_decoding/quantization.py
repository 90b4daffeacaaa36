"""Quantisation of a model: the ways in which transformers quantises weights while it loads them, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from fsd_common.errors import UsageError

UNQUANTISED = "none"  # as an option: for a draft beside a quantised target


@dataclass(frozen=True)
class Scheme:
    """A way to quantise weights while they are loaded.

    Args:
        method: what transformers calls the method, `quant_method` in a checkpoint's configuration.
        package: what `pip install` calls the library.
        make: returns transformers' configuration.
        not_on_cpu: why it cannot be used on a CPU; None: it can.
    """

    method: str
    package: str
    make: Callable[[], Any]
    not_on_cpu: str | None = None


def check_installed(what: str, package: str) -> None:
    """Raises UsageError, with the command to install it, if a package that `what` needs is missing."""
    if not _is_installed(package):
        raise UsageError(f"{what} needs {package}, which is not installed: pip install {package}")


def check_quantization(given: Any) -> None:
    """Raises UsageError if this is not None, the name of a scheme or of none, or transformers' configuration."""
    named = isinstance(given, str) and given in (*SCHEMES, UNQUANTISED)
    if not (named or given is None or isinstance(given, Mapping) or hasattr(given, "to_dict")):
        raise UsageError(
            f"quantization is {given!r:.60}; it must be one of {', '.join(SCHEMES)}, {UNQUANTISED}, or a configuration "
            "of transformers"
        )


def check_scheme(name: str, place: Any) -> None:
    """Checks that weights can be quantised so.

    Args:
        name: a name in `SCHEMES`.
        place: a device, or a device map.

    Raises:
        UsageError: the library is missing, or cannot do it on that device.
    """
    scheme = SCHEMES[name]
    check_installed(f"quantization {name!r}", scheme.package)
    if scheme.not_on_cpu is not None and str(place).partition(":")[0] == "cpu":
        raise UsageError(f"quantization is {name!r} on a CPU, but {scheme.not_on_cpu}")


def check_runs(role: str, model: Any) -> None:
    """Raises UsageError if a loaded model is quantised in a way that does not decode where it is."""
    if getattr(model, "is_loaded_in_4bit", False) and model.device.type == "cpu":
        raise UsageError(f"the {role} is quantised to 4 bits by bitsandbytes on a CPU, but {_REPACKED}")


def scheme_of(config: Any) -> str | None:
    """Returns the name of how a model of this configuration is quantised; None: it is not.

    It is a name in `SCHEMES` where that gives the same configuration, else transformers' name of the method, with the
    number of bits where the configuration has it: "gptq-4bit".
    """
    found = getattr(config, "quantization_config", None)
    if found is None:
        return None
    content = dict(found) if isinstance(found, Mapping) else found.to_dict()
    method = content.get("quant_method", "bitsandbytes")  # whose oldest checkpoints do not name it
    method = str(getattr(method, "value", method))
    for name, scheme in SCHEMES.items():
        if scheme.method == method and _is_installed(scheme.package) and scheme.make().to_dict() == content:
            return name
    return f"{method}-{content['bits']}bit" if content.get("bits") else method


def _is_installed(package: str) -> bool:
    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True


def _bnb_4bit() -> Any:
    """NF4, computed in bfloat16 (Dettmers et al. 2023, QLoRA)."""
    import torch
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16)


def _bnb_8bit() -> Any:
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(load_in_8bit=True)


def _torchao(name: str, **settings: Any) -> Callable[[], Any]:
    def make() -> Any:
        import torchao.quantization as torchao
        from transformers import TorchAoConfig

        return TorchAoConfig(getattr(torchao, name)(**settings))

    return make


def _quanto_int8() -> Any:
    from transformers import QuantoConfig

    return QuantoConfig(weights="int8")


# bitsandbytes 0.50: `Linear4bit.forward` packs weights anew on a CPU, and `state_dict` does not restore all of them.
_REPACKED = (
    "bitsandbytes rewrites such weights there as it runs, so no fingerprint is theirs; use a GPU or torchao-int8wo"
)
_TILED = "torchao's kernels for it need CUDA; use torchao-int8wo"

SCHEMES = {
    "bnb-4bit": Scheme("bitsandbytes", "bitsandbytes", _bnb_4bit, _REPACKED),
    "bnb-8bit": Scheme("bitsandbytes", "bitsandbytes", _bnb_8bit),
    "torchao-int8wo": Scheme("torchao", "torchao", _torchao("Int8WeightOnlyConfig")),
    "torchao-float8wo": Scheme("torchao", "torchao", _torchao("Float8WeightOnlyConfig")),
    "torchao-int4wo": Scheme(
        "torchao", "torchao", _torchao("Int4WeightOnlyConfig", int4_packing_format="tile_packed_to_4d"), _TILED
    ),
    "quanto-int8": Scheme("quanto", "optimum-quanto", _quanto_int8),  # int4 fails under torch.inference_mode
}
"""Ways to quantise weights on loading. Others that transformers knows are given as its configuration."""
