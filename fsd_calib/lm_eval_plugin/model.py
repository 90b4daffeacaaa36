"""`FsdLM`: our decoder as a model of lm-evaluation-harness, in batches; it tells of prompts that differ."""

from __future__ import annotations

import inspect
import json
import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import Any, NoReturn

import torch
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.utils import simple_parse_args_string

from fsd_calib.certification.marking import Asked, mark
from fsd_calib.tasks.asking import Asking, PromptOptions
from fsd_calib.tasks.harness import HarnessKind, chat_renderer
from fsd_calib.tasks.registry import task_kind
from fsd_common.errors import UsageError
from fsd_decoding.config import DecodingKeywords
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.drafters.eagle import Eagle
from fsd_decoding.profile.drafts import draft_of
from fsd_decoding.profile.rendering import check_arguments, has_chat_template
from fsd_decoding.profile.threshold_profile import ThresholdProfile
from fsd_decoding.requests import Prompt
from fsd_decoding.sampling import SETTINGS
from fsd_decoding.text import prompt_tokens


def departure(profile: ThresholdProfile, tokenizer: Any, requests: Sequence[Instance]) -> str | None:
    """Returns a line where requests ask otherwise than the profile's task of lm-eval, if it has one.

    Told by the first document: worked examples are drawn document by document.
    """
    if profile.prompt is None or profile.prompt.form is not None:
        return None
    try:
        kind = task_kind(profile.task)
        if not isinstance(kind, HarnessKind):
            raise UsageError("it is none of lm-eval's")
        asking = Asking(tokenizer, recorded=profile.prompt)
        first = [request for request in requests if request.doc_id == 0]
        if all(request.args[0] == _first_prompt(kind, asking, request.doc) for request in first):
            return None
    except UsageError as error:
        return f"prompts cannot be compared with those of the profile of {profile.task!r} ({error})"
    return f"prompts are not made as in the calibration: the profile of {profile.task!r} certifies nothing of that"


def _first_prompt(kind: HarnessKind, asking: Asking, document: Any) -> str | None:
    """The prompt of the first document; None: the task has none for it, as the document is another task's."""
    try:
        return kind.first_prompt(asking, document)
    except UsageError:
        raise
    except Exception:  # of the task's own code and templates
        return None


def _asked(request: Instance) -> Asked:
    return Asked.of_row(request.doc if isinstance(request.doc, Mapping) else None, str(request.args[0]))


_AUTO = 32  # batch size
_USUAL = "cuda:0"  # the device that lm-eval's command gives where its user gives none
_LOG = logging.getLogger(__name__)
_KNOWN = ("until", "do_sample", "max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")


@register_model("fsd")
class FsdLM(LM):
    """Decodes the requests of generative tasks; a task's `generation_kwargs` say how tokens are drawn.

    Args:
        target, draft: Hub ids or paths; by default the profile's.
        head: An EAGLE head in place of `draft`: hub id or path.
        profile: Path of a profile to follow.
        batch_size: Rows decoded at once; "auto" is 32.
        max_gen_toks: The most tokens of a text where the task gives no limit.
        chat_template_kwargs: Arguments of the chat template; by default those of the profile, or of a calibration.
        settings: Further keywords of `SpeculativeDecoder.from_pretrained`: `rule`, `threshold`, `draft_length`, ….
    """

    def __init__(
        self,
        target: str | None = None,
        draft: str | None = None,
        head: str | None = None,
        profile: str | None = None,
        batch_size: int | str = 1,
        max_batch_size: int | None = None,
        device: str | None = None,
        max_gen_toks: int = 256,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__()
        _check_names(settings)
        self._arguments = PromptOptions(chat_template_kwargs=chat_template_kwargs).template_arguments
        followed = self._followed = None if profile is None else ThresholdProfile.load(profile, allow_edited=True)
        if followed is not None:
            followed.require_single_texts("model fsd")
        models = _models(target, draft, head, followed)
        automatic = str(batch_size).startswith("auto")
        self.batch_size = (max_batch_size or _AUTO) if automatic else _count("batch_size", batch_size)
        self.max_gen_toks = _count("max_gen_toks", max_gen_toks)
        place = None if device == _USUAL and not torch.cuda.is_available() else device
        self.decoder = SpeculativeDecoder.from_pretrained(*models, profile, device=place, **settings)
        self.tokenizer = self.decoder.tokenizer
        if (line := self.decoder.announcement()) is not None:
            _LOG.warning("model fsd: %s", line)
        if has_chat_template(self.tokenizer):
            check_arguments(self.tokenizer, self._arguments)
        if followed is not None and followed.prompt is not None and chat_template_kwargs is None:
            self._arguments = followed.prompt.template_arguments

    @classmethod
    def create_from_arg_obj(cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None) -> FsdLM:
        """See `LM.create_from_arg_obj`. UsageError: lm-eval has an argument of `model_args` as an option, too."""
        options = {name: value for name, value in (additional_config or {}).items() if value is not None}
        for name in sorted(arg_dict.keys() & options.keys()):
            raise UsageError(
                f"model fsd: {name} is {arg_dict[name]!r} in model_args, and {options[name]!r} by lm-eval's option "
                f"(given, or its default); leave it out of model_args and give --{name} {arg_dict[name]}"
            )
        return cls(**arg_dict, **options)

    @classmethod
    def create_from_arg_string(cls, arg_string: str, additional_config: dict[str, Any] | None = None) -> FsdLM:
        """See `LM.create_from_arg_string`, and `create_from_arg_obj`."""
        return cls.create_from_arg_obj(simple_parse_args_string(arg_string), additional_config)

    def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[str]:
        """See `LM.generate_until`; requests with the same settings share batches."""
        followed = None if self.decoder.setting.lossless else self._followed
        if followed is not None and (differing := departure(followed, self.tokenizer, requests)):
            _LOG.warning("model fsd: %s", differing)
        if not self.decoder.setting.lossless:
            mark(self.decoder.target, map(_asked, requests))
        groups: defaultdict[str, list[int]] = defaultdict(list)
        for index, request in enumerate(requests):
            groups[json.dumps(request.args[1], sort_keys=True, default=str)].append(index)
        texts: dict[int, str] = {}
        for indices in groups.values():
            texts |= zip(indices, self._decode([requests[index] for index in indices], indices), strict=True)
        return [texts[index] for index in range(len(requests))]

    def _decode(self, requests: Sequence[Instance], ids: Sequence[int]) -> list[str]:
        """Returns the texts of requests with the same settings; their places among all of them key their noise."""
        given = requests[0].args[1]
        settings = normalize_gen_kwargs(given, self.max_gen_toks)
        results = self.decoder.generate(
            list(map(self._prompt, requests)), settings["max_gen_toks"], batch_size=self.batch_size, ids=ids,
            stop=[each for each in settings["until"] if each], **_sampling(given, settings),
            on_finish=lambda index, result: self.cache_hook.add_partial(
                "generate_until", requests[index].args, result.text
            ),
        )  # fmt: skip
        return [result.text for result in results]

    def _prompt(self, request: Instance) -> Prompt:
        """The prompt; of one without a token the one that begins a text, from which lm-eval's models answer, too."""
        prompt, tokenizer = request.args[0], self.tokenizer
        if prompt.strip() or prompt_tokens(tokenizer, prompt):
            return str(prompt)
        first = tokenizer.eos_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id
        if first is None:
            raise UsageError(
                f"model fsd: the prompt of document {request.doc_id} of task {request.task_name} is empty, and the "
                "tokenizer has no token that begins a text; mend doc_to_text, or leave the document out"
            )
        _LOG.warning(
            "model fsd: the prompt of document %s of task %s is empty; it is answered after %r alone",
            request.doc_id, request.task_name, tokenizer.decode([first]),
        )  # fmt: skip
        return [first]

    def loglikelihood(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> NoReturn:
        """Raises UsageError: a rule accepts and rejects tokens, and says nothing of the probability of a given text."""
        raise UsageError(
            f"model fsd: task {requests[0].task_name} asks for the likelihood of given texts, and fuzzy speculative "
            "decoding only writes texts; give a generative task (output_type: generate_until), or --model hf"
        )

    loglikelihood_rolling = loglikelihood

    @cached_property
    def apply_chat_template(self) -> Any:
        """See `LM.apply_chat_template`. UsageError: there is no chat template."""
        if not has_chat_template(self.tokenizer):
            raise UsageError(
                f"model fsd: the tokenizer {self.tokenizer.name_or_path!r} has no chat template; leave "
                "--apply_chat_template out"
            )
        return chat_renderer(self.tokenizer, self._arguments)

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """See `LM.chat_template`; lm-eval records it."""
        return self.tokenizer.chat_template if chat_template else None

    @property
    def tokenizer_name(self) -> str:
        """See `LM.tokenizer_name`."""
        return str(self.tokenizer.name_or_path).replace("/", "__")

    def get_model_info(self) -> dict[str, Any]:
        """Returns what lm-eval records of the model in its results."""
        setting = self.decoder.setting
        return {"fsd": {name: str(value) for name, value in setting.values().items()}}


def _check_names(settings: Mapping[str, Any]) -> None:
    """Raises UsageError where the decoder takes no such keyword."""
    taken = [inspect.signature(each).parameters.values() for each in (FsdLM, SpeculativeDecoder.from_pretrained)]
    named = [each.name for each in chain(*taken) if each.kind is not each.VAR_KEYWORD]
    known = list(dict.fromkeys([*named, *DecodingKeywords.__annotations__]))
    for name in settings.keys() - known:
        raise UsageError(f"model fsd: there is no argument {name!r}; model_args takes {', '.join(known)}")


def _sampling(given: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the sampling that a task asks for; empty: it says nothing, and the decoder's own applies."""
    unknown = ", ".join(sorted(set(given) - {*SETTINGS, *_KNOWN}))
    if unknown:
        _LOG.warning("model fsd: %s in generation_kwargs has no effect", unknown)
    if "do_sample" not in given and "temperature" not in given:
        return {}
    if not settings["do_sample"]:
        return {"temperature": 0.0}
    return {"temperature": 1.0, **{name: settings[name] for name in SETTINGS if settings.get(name) is not None}}


def _models(
    target: str | None, draft: str | None, head: str | None, profile: ThresholdProfile | None
) -> tuple[str, Any]:
    """Target and draft: those given, or the profile's. UsageError: one is missing, or a draft and a head are given.

    Args:
        profile: even an edited one, which the decoder refuses unless that is asked for.
    """
    if draft is not None and head is not None:
        raise UsageError("model fsd: draft and head are both given; one of them drafts, leave the other out")
    given = draft if head is None else Eagle(head)
    if target is not None and given is not None:
        return target, given
    if profile is None:
        raise UsageError(
            "model fsd: it needs a target and a draft; give --model_args target=TARGET,draft=DRAFT (or head=HEAD), or "
            "profile=PROFILE"
        )
    return target or profile.target.id, given or draft_of(profile.draft)


def _count(name: str, value: object) -> int:
    if not str(value).isdecimal() or int(str(value)) < 1:
        raise UsageError(f"model fsd: {name} is {value!r}; it must be a whole number of at least 1")
    return int(str(value))
