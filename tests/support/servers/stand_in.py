"""A stand-in for servers with a lossy knob: it knows the answers of the task `arithmetic`, and gets some wrong.

It speaks the fields of vLLM with our plugin (`vllm_xargs`, `metrics.speculative_decoding`) and of SGLang
(`/set_internal_state`, `meta_info`), as their sources have them, and is none of them: what it writes follows from the
prompt and the knob's value. The looser that is, the faster it is, and the more texts are others.
`python -m support.servers.stand_in --port 8000 --value 0.5` starts one in a process of its own.
"""

from __future__ import annotations

import hashlib
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

from fsd_calib.tasks.registry import load_task
from support.servers.faults import FaultyHandler

TOKENS, PROBLEMS = 20, 600  # of a text, and of the task


@cache
def references() -> dict[str, str]:
    """The reference answers of a task by its questions."""
    return {problem.question: problem.reference for problem in load_task("arithmetic", limit=PROBLEMS).problems}


def share(of: str, salt: str = "") -> float:
    """A number from 0 to 1 that follows from a text."""
    return int.from_bytes(hashlib.sha256(f"{salt}{of}".encode()).digest()[:6]) / 2**48


@dataclass
class Behaviour:
    """How the stand-in behaves; tests may change it while it runs.

    Attributes:
        value: Of the knob, from 0 (lossless) up, for requests that do not say.
        wrong: The share of answers that are wrong at a value.
        changed: The share of texts that are others at a value.
        seconds: For each token at a value.
        always_noisy: Whether greedy texts vary, too.
        fault: Called with the number of a request, and names what goes wrong with it; None: nothing.
    """

    value: float = 0.0
    wrong: Callable[[float], float] = lambda value: max(value - 0.5, 0.0)
    changed: Callable[[float], float] = lambda value: value
    seconds: Callable[[float], float] = lambda value: 4e-4 * (1 - 0.8 * value)
    fault: Callable[[int], str | None] = lambda number: None
    always_noisy: bool = False
    version: str = "1.0"
    flavour: str = "vllm"
    under_way: int = 0
    most_under_way: int = 0
    asked: list[dict[str, Any]] = field(default_factory=list)  # bodies, in their order

    def text(self, question: str, value: float, noise: str) -> str:
        """The answer to a question: its reference, in other words or wrong as the value has it."""
        reference = references().get(question, f"I do not know. #### {len(question)}")
        words = "So" if share(question + noise, "changed") < self.changed(value) else "Then"
        if share(question, "wrong") < self.wrong(value):
            reference = f"{reference}1"
        return f"{words}, {reference}"


class _Handler(FaultyHandler):
    server: StandIn

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is logged."""

    def do_GET(self) -> None:  # noqa: N802  as http.server calls it
        behaviour = self.server.behaviour
        if self.path == "/v1/models":
            self.send({"object": "list", "data": [{"id": "model", "root": "a-model", "created": time.time_ns()}]})
        elif self.path == "/version":
            self.send({"version": behaviour.version})
        elif self.path == "/metrics" and behaviour.flavour == "counters":
            counts = {"drafts": 10, "draft_tokens": 50, "accepted_tokens": 10}.items()  # of a text
            counter, texts = 'vllm:spec_decode_num_{}_total{{engine="{}"}} {}'.format, len(behaviour.asked) / 2
            lines = [counter(name, engine, count * texts) for name, count in counts for engine in "01"]
            self.send("# HELP of it\n" + "\n".join(lines), kind="plain")
        else:
            self.send({}, 200 if self.path == "/health" else 404)

    def do_POST(self) -> None:  # noqa: N802
        behaviour = self.server.behaviour
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/set_internal_state":
            behaviour.value = 1 - body["server_args"]["speculative_accept_threshold_single"]
            return self.send([True])
        with self.server.lock:
            number = len(behaviour.asked)
            behaviour.under_way += 1
            behaviour.most_under_way = max(behaviour.most_under_way, behaviour.under_way)
            behaviour.asked.append(body | {"headers": {name.lower(): value for name, value in self.headers.items()}})
        try:
            return self._reply(number, body)
        finally:
            behaviour.under_way -= 1

    def _reply(self, number: int, body: dict[str, Any]) -> None:
        behaviour = self.server.behaviour
        fault = behaviour.fault(number)
        if fault is not None and self.fails(fault):
            return None
        value = (body.get("vllm_xargs") or {}).get("fsd_threshold", behaviour.value)
        value = 0.0 if (body.get("vllm_xargs") or {}).get("fsd") == "off" else float(value)
        sampled = behaviour.always_noisy or body.get("temperature", 0) > 0
        noise = str(body.get("seed", time.time_ns())) if sampled else ""
        question = body["messages"][-1]["content"] if "messages" in body else body["prompt"]
        question = question.removeprefix("Question: ").removesuffix("\nAnswer:")
        text = behaviour.text(question, value, noise)
        text = text[: 2 * body["max_tokens"]] if body.get("max_tokens", TOKENS) < TOKENS else text
        if body.get("stream"):
            return self._stream(self.answer(number, text, value), text, behaviour.seconds(value), fault)
        time.sleep(TOKENS * behaviour.seconds(value))
        return self.send(self.answer(number, text, value))

    def answer(self, number: int, text: str, value: float = 0.0) -> dict[str, Any]:
        behaviour, rounds = self.server.behaviour, round(10 * (1 - 0.8 * value))
        chat = self.path.endswith("/chat/completions")
        written: dict[str, Any] = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
        answer = {
            "id": f"cmpl-{number}", "choices": [{"index": 0, "finish_reason": "stop", **written}],
            "usage": {"prompt_tokens": 1, "completion_tokens": TOKENS},
        }  # fmt: skip
        if behaviour.flavour == "counters":
            return answer
        if behaviour.flavour == "sglang":
            told = {"spec_verify_ct": rounds, "spec_accept_length": TOKENS / rounds}
            answer["choices"][0]["meta_info"] = told  # type: ignore[index]
            return answer
        accepted = TOKENS - rounds
        counts = rounds, max(5 * rounds, accepted), accepted
        names = "num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens"
        return answer | {"metrics": {"speculative_decoding": dict(zip(names, counts, strict=True))}}

    def _stream(self, answer: dict[str, Any], text: str, seconds: float, fault: str | None) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for piece in (text[: len(text) // 2], text[len(text) // 2 :]):
            time.sleep(TOKENS * seconds / 2)
            choice = {"index": 0, "text": piece, "delta": {"content": piece}}
            self.wfile.write(f"data: {json.dumps({'choices': [choice]})}\n\n".encode())
            if fault == "midway":
                self.connection.close()
                return
        answer["choices"] = [each for each in answer["choices"] if "meta_info" in each]
        self.wfile.write(f"data: {json.dumps(answer)}\n\ndata: [DONE]\n\n".encode())
        self.close_connection = True


class StandIn(ThreadingHTTPServer):
    """The server, on a free port of this machine."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, behaviour: Behaviour, port: int = 0) -> None:
        self.behaviour, self.lock = behaviour, threading.Lock()
        super().__init__(("127.0.0.1", port), _Handler)

    @property
    def root(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    @property
    def url(self) -> str:
        return f"{self.root}/v1"


@contextmanager
def standing_in(**behaviour: Any) -> Iterator[StandIn]:
    """Runs a stand-in within this process."""
    with StandIn(Behaviour(**behaviour)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


if __name__ == "__main__":
    given = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=True))
    if "--extra_llm_api_options" in given:
        given["--value"] = Path(given["--extra_llm_api_options"]).read_text().partition("relaxed_delta: ")[2]
    slower = 1 + 0.5 * abs(int(given.get("--length", "4")) - 4)  # 4 drafted tokens are the fastest
    behaviour = Behaviour(float(given.get("--value", "0")), seconds=lambda value: 2e-4 * slower / (1 + value))
    StandIn(behaviour, int(given["--port"])).serve_forever()
