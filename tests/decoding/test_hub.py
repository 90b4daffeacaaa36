"""The Hugging Face hub, played by a server on this machine: what is fetched, and every answer that is no file."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fsd_data import pair_paths
from fsd_decoding.loading import load_model, load_tokenizer
from fsd_decoding.models.fingerprint import model_fingerprint, tokenizer_fingerprint
from support.hub_server import COMMIT, Answer, Fault, Hub, running_hub

TARGET, DRAFT = pair_paths()
PAIR = {"acme/target": TARGET, "acme/draft": DRAFT}
LOAD = """
import json, sys, time
from fsd_common.errors import UsageError
from fsd_decoding.loading import load_config, load_model, load_tokenizer
time.sleep = lambda seconds: None  # pauses between tries, of huggingface_hub too
load_model(sys.argv[1], "cpu", None), load_tokenizer(sys.argv[1])  # what is imported is not timed
for source in sys.argv[2:]:
    began, said = time.monotonic(), ""
    try:
        loaded = load_tokenizer(source).name_or_path, load_config(source).name_or_path
        if not source.endswith("small"):
            loaded += (load_model(source, "cpu", None).config._name_or_path,)
    except UsageError as error:
        said = str(error)
    print(json.dumps([said or loaded, time.monotonic() - began]))
"""
GSM8K = """
import datasets, json, time  # what is imported is not timed
from fsd_calib.tasks import load_task
from fsd_common.errors import UsageError
began = time.monotonic()
try:
    load_task("gsm8k", limit=10)
except UsageError as error:
    print(json.dumps([str(error), time.monotonic() - began]))
"""
INFO = """
import json, sys
from fsd_decoding.loading import load_model
from fsd_decoding.models import weights_digest as digests
from fsd_decoding.profile.parts import ModelInfo
computed, digest = [], digests.weights_digest
digests.weights_digest = lambda model, *rest: computed.append(model) or digest(model, *rest)
info = ModelInfo.of(load_model(sys.argv[2], "cpu", None))
print(json.dumps([[info.revision, info.fingerprint, len(computed)], None]))
"""
AT = """
import json, sys
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_common.errors import UsageError
from fsd_decoding.loading import load_config
from fsd_decoding.model_options import ModelOptions
from fsd_decoding.models.fingerprint import tokenizer_fingerprint
from fsd_decoding.profile.parts import ModelInfo
for asked in sys.argv[2:]:
    target, draft = map(ModelOptions.of, json.loads(asked))
    try:
        layers = load_config("acme/model", target).num_hidden_layers
        pair = SpeculativeDecoder.from_pretrained(
            "acme/model", "acme/model", device="cpu", model_kwargs=target, draft_model_kwargs=draft
        )
        found = [layers, tokenizer_fingerprint(pair.tokenizer)]
        found += [[info.revision, info.fingerprint] for info in map(ModelInfo.of, (pair.target, pair.draft))]
    except UsageError as error:
        found = str(error)
    print(json.dumps([found, None]))
"""
DEFINITE = 15.0  # seconds in which a definite answer is reported


def run(code: str, endpoint: str, home: Path, *sources: str, **changes: str) -> list[tuple[Any, float]]:
    """Runs code in a process that asks the hub at `endpoint`, with its cache in `home`; returns what it printed: for
    each source the error, or the names of what was loaded, and the seconds it took."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    environment |= {"HF_HOME": str(home / "hf"), "HF_ENDPOINT": endpoint} | changes
    environment["PYTHONPATH"] = os.pathsep.join(entry for entry in sys.path if entry)
    process = subprocess.run(
        [sys.executable, "-c", code, str(TARGET), *sources],
        cwd=home,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert process.returncode == 0, process.stderr
    return [json.loads(line) for line in process.stdout.splitlines()]


def answering(status: int, body: bytes = b"{}", **headers: str) -> Fault:
    def fault(answer: Answer) -> bool:
        return answer.reply(status, body, announced=None, **headers)

    return fault


def on_weights(fault: Fault, *methods: str) -> Fault:
    """The fault for weight files alone, under these methods."""
    return lambda answer: (
        answer.route.endswith("model.safetensors") and answer.command in (methods or ("GET", "HEAD")) and fault(answer)
    )


def in_a_circle(answer: Answer) -> bool:
    return answer.reply(302, Location=answer.path)


HTML = answering(200, b"<html>Welcome to the wireless network</html>", Content_Type="text/html")
CODES: dict[str, tuple[Fault, str]] = {
    "gated": (
        answering(401, X_Error_Code="GatedRepo", X_Error_Message="Access is restricted"),
        r"401 \(Access is restricted\).*accept the terms.*`hf auth login` or set HF_TOKEN",
    ),
    "private": (
        answering(401, X_Error_Message="Invalid username or password."),
        r"401 .*no such repository, it is private, or the token.*`hf auth login` or set HF_TOKEN",
    ),
    "bad-token": (
        answering(401, X_Error_Message="Invalid credentials in Authorization header"),
        r"401 .*the token is not valid.*`hf auth login` or set HF_TOKEN",
    ),
    "forbidden": (answering(403, X_Error_Message="Forbidden"), r"403 .*may not read it; log in with `hf auth login`"),
    "missing": (answering(404, X_Error_Code="RepoNotFound"), r"404.*no such repository; check the id 'acme/"),
    "no-revision": (answering(404, X_Error_Code="RevisionNotFound"), r"404.*no such revision; check the id 'acme/"),
    "login": (HTML, r"the answer is not a hub's \(a login page of the network\?\)"),
    "redirects": (in_a_circle, r"redirects without end; check the proxy and HF_ENDPOINT"),
    "weights-forbidden": (on_weights(answering(403)), r"model 'acme.*403.*may not read it"),
    "weights-login": (on_weights(HTML), r"model 'acme.*is not a hub's"),
}


def by_name(faults: dict[str, Fault]) -> Fault:
    """The fault of the repository that is asked for."""

    def fault(answer: Answer) -> bool:
        return any(f"/{name}/" in f"{answer.route}/" and found(answer) for name, found in faults.items())

    return fault


@pytest.mark.slow
def test_a_definite_answer_is_reported_soon_with_the_way_out(tmp_path: Path) -> None:
    repositories = {f"acme/{name}": TARGET for name in CODES}
    with running_hub(repositories, by_name({name: fault for name, (fault, _) in CODES.items()})) as hub:
        results = run(LOAD, hub.address, tmp_path, *repositories)
    for (name, (_, said)), (message, seconds) in zip(CODES.items(), results, strict=True):
        begin = f"'acme/{name}' is not a local folder and cannot be loaded from the hub at {hub.address} (HF_ENDPOINT):"
        assert message.split(" ", 1)[1].startswith(begin)
        assert re.search(said, message), message
        assert "\n" not in message
        assert seconds < DEFINITE


def cut_short(answer: Answer) -> bool:
    """Announces the whole file, and sends its beginning."""
    body = (TARGET / "model.safetensors").read_bytes()
    return answer.reply(200, body[:1000], announced=len(body), ETag='"0"', X_Repo_Commit=COMMIT)


PASSING: dict[str, tuple[Fault, str]] = {
    "error": (answering(500, b"oops"), r"it answered 500 \(oops\), 3 times or more; try again later"),
    "weights-error": (on_weights(answering(503)), "it answered 503.*3 times or more"),
    "bytes-error": (on_weights(answering(500), "GET"), "it answered 500.*3 times or more"),
    "cut-short": (on_weights(cut_short), "the download broke off, 3 times or more; check the network"),
}


@pytest.mark.slow
def test_what_may_pass_is_tried_a_few_times(tmp_path: Path) -> None:
    repositories = {f"acme/{name}": TARGET for name in PASSING}
    with running_hub(repositories, by_name({name: fault for name, (fault, _) in PASSING.items()})) as hub:
        results = run(LOAD, hub.address, tmp_path, *repositories)
        assert len(hub.requests) < 60 * len(PASSING)
    for (_, said), (message, _) in zip(PASSING.values(), results, strict=True):
        assert re.search(said, message), message


@pytest.mark.slow
def test_an_error_that_passes_is_not_reported(tmp_path: Path) -> None:
    seen: list[str] = []

    def once(answer: Answer) -> bool:
        seen.append(answer.route)
        return len(seen) <= 2 and answer.reply(502)

    with running_hub(PAIR, once) as hub:
        ((loaded, _),) = run(LOAD, hub.address, tmp_path, "acme/target")
    assert loaded == ["acme/target"] * 3


@pytest.mark.slow
def test_a_hub_that_nobody_answers_at(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    ((message, seconds),) = run(LOAD, address, tmp_path, "acme/target")
    assert f"{address} (HF_ENDPOINT): no connection" in message
    assert seconds < DEFINITE


def silent(answer: Answer) -> bool:
    time.sleep(60)
    return True


@pytest.mark.slow
def test_a_hub_that_never_answers(tmp_path: Path) -> None:
    with running_hub(PAIR, silent) as hub:
        ((message, seconds),) = run(LOAD, hub.address, tmp_path, "acme/target")
    assert "no answer in time" in message
    assert seconds < DEFINITE


@pytest.mark.slow
def test_an_empty_cache_under_hf_hub_offline(tmp_path: Path) -> None:
    with running_hub(PAIR) as hub:
        ((message, _),) = run(LOAD, hub.address, tmp_path, "acme/target", HF_HUB_OFFLINE="1")
        assert hub.requests == []
    assert "HF_HUB_OFFLINE is set" in message
    assert "`hf download acme/target`" in message


@pytest.mark.slow
def test_what_was_fetched_is_read_without_the_hub(tmp_path: Path) -> None:
    with running_hub(PAIR) as hub:
        first = run(LOAD, hub.address, tmp_path, "acme/target")
    for changes in ({}, {"HF_HUB_OFFLINE": "1"}):
        ((loaded, _),) = run(LOAD, hub.address, tmp_path, "acme/target", **changes)
        assert loaded == first[0][0] == ["acme/target"] * 3


@pytest.mark.slow
def test_weights_in_several_files_are_fetched(tmp_path: Path) -> None:
    folder = tmp_path / "sharded"
    load_model(TARGET, "cpu", None).save_pretrained(folder, max_shard_size="3MB")
    load_tokenizer(TARGET).save_pretrained(folder)
    shards = {path.name for path in folder.glob("*.safetensors")}
    assert len(shards) > 1
    with running_hub({"acme/sharded": folder}) as hub:
        ((loaded, _),) = run(LOAD, hub.address, tmp_path, "acme/sharded")
        assert {r.split("/")[-1] for r in hub.requests if r.startswith("GET") and r.endswith(".safetensors")} == shards
    assert loaded == ["acme/sharded"] * 3


@pytest.mark.slow
def test_a_tokenizer_and_a_configuration_are_loaded_without_weights(tmp_path: Path) -> None:
    with running_hub({"acme/small": TARGET}) as hub:
        ((loaded, _),) = run(LOAD, hub.address, tmp_path, "acme/small")
        assert [request for request in hub.requests if "safetensors" in request] == []
    assert loaded == ["acme/small"] * 2


@pytest.mark.thinned(every=3)
@pytest.mark.parametrize(
    ("case", "said"),
    [("gated", "hf auth login"), ("missing", "hf auth login"), ("login", "is not a hub's")],
)
def test_problems_on_the_hub_are_refused_with_the_way_out(case: str, said: str, tmp_path: Path) -> None:
    with running_hub({}, CODES[case][0]) as hub:
        ((message, seconds),) = run(GSM8K, hub.address, tmp_path)
    assert f"openai/gsm8k cannot be loaded from the hub at {hub.address} (HF_ENDPOINT)" in message
    assert said in message
    assert "data takes a local FILE.jsonl" in message
    assert seconds < DEFINITE


@pytest.mark.slow
def test_problems_on_a_hub_that_never_answers(tmp_path: Path) -> None:
    with running_hub({}, silent) as hub:
        ((message, seconds),) = run(GSM8K, hub.address, tmp_path)
    assert f"openai/gsm8k cannot be loaded from the hub at {hub.address} (HF_ENDPOINT)" in message
    assert "no answer in time" in message
    assert seconds < DEFINITE


@pytest.mark.slow
def test_a_commit_is_recorded_and_its_weights_are_read_once(tmp_path: Path) -> None:
    """Each time in a process of its own: loaded from the hub, from its cache, and when another commit is there."""
    first, other = (model_fingerprint(load_model(path, "cpu", None)) for path in (TARGET, DRAFT))
    with running_hub({"acme/model": TARGET}) as hub:
        assert loaded_from(hub, tmp_path) == [COMMIT, first, 1]
        assert loaded_from(hub, tmp_path) == [COMMIT, first, 0]
        hub.repositories, hub.commit = {"acme/model": DRAFT}, "2" * 40
        assert loaded_from(hub, tmp_path) == ["2" * 40, other, 1]


def loaded_from(hub: Hub, home: Path) -> Any:
    """The commit and the fingerprint of the hub's `acme/model`, and how many models' weights were read for it."""
    ((found, _),) = run(INFO, hub.address, home, "acme/model")
    return found


@pytest.mark.slow
def test_a_revision_is_the_models_own_and_its_tokenizer_and_configuration_follow(tmp_path: Path) -> None:
    other = tmp_path / "other"
    load_model(DRAFT, "cpu", None).save_pretrained(other)
    changed = load_tokenizer(TARGET)
    changed.bos_token = changed.convert_ids_to_tokens(5)
    changed.save_pretrained(other)
    assert load_tokenizer(other).bos_token_id == 5
    layers = [load_model(path, "cpu", None).config.num_hidden_layers for path in (TARGET, DRAFT)]
    main, v1 = ([COMMIT, model_fingerprint(load_model(TARGET, "cpu", None))],
                ["2" * 40, model_fingerprint(load_model(DRAFT, "cpu", None))])  # fmt: skip
    words = tokenizer_fingerprint(load_tokenizer(TARGET)), tokenizer_fingerprint(load_tokenizer(other))
    asked: list[Any] = [[{}, {}], [{"revision": "v1"}, {}], [{}, {"revision": "2" * 40}], [{"revision": "v2"}, {}]]
    with running_hub({"acme/model": TARGET}) as hub:
        hub.revisions["v1"] = "2" * 40, other
        found = [one for one, _ in run(AT, hub.address, tmp_path, *map(json.dumps, asked))]
    offline = run(AT, hub.address, tmp_path, json.dumps(asked[1]), HF_HUB_OFFLINE="1")
    assert found[:3] == [
        [layers[0], words[0], main, main], [layers[1], words[1], v1, main], [layers[0], words[0], main, v1],
    ]  # fmt: skip
    assert "configuration at 'v2' of 'acme/model' is not a local folder" in found[3]
    assert "404 (Invalid rev id): there is no such revision" in found[3]
    assert offline[0][0] == found[1]
