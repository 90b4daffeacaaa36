"""How models are loaded: the keywords of transformers' `from_pretrained`, and ways to quantise weights, by name."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from fsd_common.errors import UsageError

if TYPE_CHECKING:
    from fsd_decoding.profile.parts import ModelInfo
    from fsd_decoding.profile.threshold_profile import ThresholdProfile

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


ATTENTION = ("sdpa", "eager")
"""Kinds of attention that decoding supports."""

ALIASES = {"attn_implementation": "attn", "quantization_config": "quantization"}
"""transformers' names of fields."""
_FOR_TOKENIZERS = ("trust_remote_code",)
_REFUSED = {
    **dict.fromkeys(("dtype", "torch_dtype"), "dtype sets it"),
    **dict.fromkeys(("token", "use_auth_token"), "log in with `hf auth login` or set HF_TOKEN"),
    **dict.fromkeys(("subfolder", "gguf_file", "variant"), "give the path of a local folder with these files alone"),
    "cache_dir": "set HF_HOME",
    "local_files_only": "set HF_HUB_OFFLINE",
    **dict.fromkeys(("config", "state_dict"), "load the model yourself and pass it"),
    **dict.fromkeys(("output_loading_info", "_commit_hash"), "it is set here"),
}  # keywords of `from_pretrained` that are set elsewhere, each with the way out


@dataclass(frozen=True)
class ModelOptions:
    """How one model is loaded, beside its device and dtype.

    Args:
        revision: branch, tag or commit on the hub; None: the main branch.
        device_map: which modules are on which devices: "auto", another strategy of accelerate's, a device, or a dict;
            None: the whole model is on one device.
        quantization: a name in `quantization.SCHEMES`, "none", or transformers' configuration (an object or a dict);
            None: as the checkpoint is.
        attn: kind of attention, one of `ATTENTION`; None: transformers' choice.
        others: further keywords of transformers' `from_pretrained`.

    Raises:
        UsageError: a value is not one of these, or a keyword is set elsewhere.
    """

    revision: str | None = None
    device_map: Any = field(default=None, hash=False)
    quantization: Any = field(default=None, hash=False)
    attn: str | None = None
    others: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if self.revision is not None and not (isinstance(self.revision, str) and self.revision):
            raise UsageError(f"revision is {self.revision!r:.60}; it must be a branch, a tag or a commit on the hub")
        if self.attn not in (None, *ATTENTION):
            raise UsageError(
                f"attn is {self.attn!r:.60}; it must be {' or '.join(ATTENTION)}, as rows of different lengths have a "
                "mask each, which others (flash_attention_2, flex_attention) do not take"
            )
        given = self.quantization
        named = isinstance(given, str) and given in (*SCHEMES, UNQUANTISED)
        if not (named or given is None or isinstance(given, Mapping) or hasattr(given, "to_dict")):
            raise UsageError(
                f"quantization is {given!r:.60}; it must be one of {', '.join(SCHEMES)}, {UNQUANTISED}, or a "
                "configuration of transformers"
            )
        for name in self.others:
            if name in _REFUSED:
                raise UsageError(f"model_kwargs sets {name!r}, which a model is not loaded with here: {_REFUSED[name]}")

    @classmethod
    def of(cls, given: ModelKwargs | None) -> ModelOptions:
        """Returns the options that keywords of `from_pretrained` ask for; fields may have their own names.

        Raises:
            UsageError: they are not a mapping of names, or a field is given under two names.
        """
        if isinstance(given, cls):
            return given
        if not isinstance(given, Mapping | None) or not all(isinstance(name, str) for name in given or ()):
            raise UsageError(
                f"model_kwargs is {given!r:.60}; it must map names of from_pretrained's keywords to values"
            )
        others = dict(given or {})
        for alias, name in ALIASES.items():
            if alias in others:
                if name in others:
                    raise UsageError(f"model_kwargs sets {name!r} and {alias!r}, and they are the same; leave one out")
                others[name] = others.pop(alias)
        own = {name: others.pop(name) for name in _FIELDS if name in others}
        return cls(**own, others=others)

    def over(self, usual: ModelOptions) -> ModelOptions:
        """Returns these options, and `usual` where they say nothing."""
        given = {name: value for name in _FIELDS if (value := getattr(self, name)) is not None}
        return replace(usual, **given, others={**usual.others, **self.others})

    def differing(self, usual: ModelOptions) -> list[str]:
        """Returns the names of what is given here and not equal in `usual`; a revision is one model's own."""
        own = {"device_map": self.device_map, "quantization": self.quantization, "attn": self.attn, **self.others}
        like = {name: getattr(usual, name) for name in _FIELDS} | dict(usual.others)
        return [name for name, value in own.items() if value is not None and value != like.get(name)]

    def following(self, then: ModelInfo, model: Any) -> ModelOptions:
        """Returns these options, and where they say nothing what a profile recorded of the model.

        Args:
            model: what is loaded; the recorded commit is one of the recorded id.
        """
        revision = then.revision if isinstance(model, str) and model == then.id else None
        scheme = then.quantization if then.quantization in SCHEMES else None  # else it is the checkpoint's own
        return self.over(ModelOptions(revision, None, scheme, then.attention))

    @property
    def scheme(self) -> Any:
        """How weights are to be quantised on loading; None: as the checkpoint is."""
        return None if self.quantization == UNQUANTISED else self.quantization

    def check(self, device: str | None, default: str) -> None:
        """Checks what can be checked before anything is fetched.

        Args:
            device: the device that was requested; None: none was.
            default: the device that is used then.

        Raises:
            UsageError: a library is missing, or the options contradict each other or the device.
        """
        if self.device_map is not None:
            if device is not None:
                raise UsageError(
                    f"device is {device!r} and device_map is {self.device_map!r:.60}; a map says which devices a model "
                    "is on, leave one of the two out"
                )
            check_installed("device_map", "accelerate")
            if isinstance(self.device_map, str) and self.device_map not in _STRATEGIES:
                _check_device_name(self.device_map)
        if self.scheme is not None:
            check_installed("quantization", "accelerate")
        if isinstance(self.scheme, str):
            scheme, place = SCHEMES[self.scheme], self.device_map or device or default
            check_installed(f"quantization {self.scheme!r}", scheme.package)
            if scheme.not_on_cpu is not None and str(place).partition(":")[0] == "cpu":
                raise UsageError(f"quantization is {self.scheme!r} on a CPU, but {scheme.not_on_cpu}")

    def check_map(self, model: Any) -> None:
        """Raises UsageError where a device map by modules is not one of the loaded model: transformers ignores that."""
        if not isinstance(self.device_map, Mapping):
            return
        modules = {name for name, _ in model.named_modules()}
        if unknown := next((name for name in self.device_map if name not in modules), None):
            parts = ", ".join(name for name, _ in model.named_children())
            raise UsageError(
                f"device_map names {unknown!r}, which is no module of {type(model).__name__}; its modules are {parts} "
                "and those within them"
            )
        places = tuple(f"{name}." if name else "" for name in self.device_map)
        if left := next((name for name, _ in model.named_parameters() if not name.startswith(places)), None):
            raise UsageError(
                f"device_map has no device for {left!r}; give one for each module, or one for '' as a whole"
            )

    def keywords(self) -> dict[str, Any]:
        """Returns the keywords of `from_pretrained`, without the revision, which is fetched before."""
        quantization = SCHEMES[self.scheme].make() if isinstance(self.scheme, str) else self.scheme
        own = {
            "device_map": self.device_map, "attn_implementation": self.attn, "quantization_config": quantization,
        }  # fmt: skip
        return {name: value for name, value in own.items() if value is not None} | dict(self.others)

    def for_configuration(self) -> dict[str, Any]:
        """Returns the keywords that a configuration is loaded with, which takes those that it knows."""
        return dict(self.others)

    def for_tokenizer(self) -> dict[str, Any]:
        """Returns the keywords that a tokenizer is loaded with."""
        return {name: self.others[name] for name in _FOR_TOKENIZERS if name in self.others}


def _check_device_name(name: str) -> None:
    import torch

    try:
        torch.device(name)
    except RuntimeError as error:
        raise UsageError(
            f"device_map is {name!r:.60}; it must be {', '.join(_STRATEGIES)}, a device such as 'cuda:0', or an object "
            "of modules and devices"
        ) from error


_STRATEGIES = ("auto", "balanced", "balanced_low_0", "sequential")  # accelerate's
_FIELDS = ("revision", "device_map", "quantization", "attn")
ModelKwargs = Mapping[str, Any] | ModelOptions
"""Keywords of transformers' `from_pretrained`, among them the fields of `ModelOptions`."""

USUAL = ModelOptions()


@dataclass(frozen=True)
class Loading:
    """How a target and its drafts are loaded."""

    target: ModelOptions = USUAL
    draft: ModelOptions = USUAL

    @classmethod
    def of(cls, model_kwargs: ModelKwargs | None, draft_model_kwargs: ModelKwargs | None) -> Loading:
        """Returns how models are loaded by keywords of `from_pretrained` and those in which drafts differ.

        A revision is one model's own, so that of the target is not passed on.
        """
        target = ModelOptions.of(model_kwargs)
        return cls(target, ModelOptions.of(draft_model_kwargs).over(replace(target, revision=None)))

    def following(self, profile: ThresholdProfile, target: Any, draft: Any) -> Loading:
        """Returns how the profile's models are loaded: as recorded, where nothing else is given and none is loaded."""
        named = [isinstance(model, str | os.PathLike) for model in (target, draft)]
        return Loading(
            self.target.following(profile.target, target) if named[0] else self.target,
            self.draft.following(profile.draft, draft) if named[1] and profile.draft.kind == "model" else self.draft,
        )


USUAL_LOADING = Loading()
