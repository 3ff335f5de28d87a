"""The request for a summary has settings, limits and checks of its own, and keeps the progress that it made."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.settings import ModelSettings

from context_compiler import ContextCompiler, MemoryStore
from context_compiler.compiler.summary_check import summary_fault
from context_compiler.template import Template
from context_compiler.tokens import TokenCounter
from tests.support.agents import Talker
from tests.support.builders import assistant, prose, user

SUMMARY = "**Goal**: find out which gate opens first. **Open**: ask the keeper."

Answer = str | ModelResponse | Exception


class Writer:
    """A model for summaries that keeps its prompts and settings."""

    def __init__(self, answer: Callable[[int, str], Any], **options: Any) -> None:
        self.prompts: list[str] = []
        self.settings: list[ModelSettings] = []
        self.thinking: list[Any] = []
        self._answer = answer
        self.model = FunctionModel(self._write, model_name="notes", **options)

    async def _write(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.prompts.append(str(messages[-1].parts[-1].content))  # pyright: ignore
        self.settings.append(info.model_settings or ModelSettings())
        self.thinking.append(info.model_request_parameters.thinking)
        said = self._answer(len(self.prompts), self.prompts[-1])
        said = await said if asyncio.iscoroutine(said) else said
        if isinstance(said, Exception):
            raise said
        return said if isinstance(said, ModelResponse) else ModelResponse(parts=[TextPart(said)])


class Life:
    """A chat whose older turns are summarized."""

    def __init__(self, writer: Writer, **options: Any) -> None:
        self.talker, self.errors = Talker("Noted, the garden needs water. " * 8), list[Exception]()
        self.views: list[Any] = []
        self.ours = ContextCompiler(
            **{"budget": 3_000, "store": None, "system": None, "model": writer.model, "recall": 0, **options},
            on_error=self.errors.append,
            on_view=self.views.append,
        )
        self.agent = Agent(self.talker.model, capabilities=[self.ours])
        self.history: list[ModelMessage] = []

    async def turns(self, count: int, words: int = 70) -> None:
        for _ in range(count):
            prompt = f"Step {len(self.history)}: {prose(len(self.history), words)}"
            result = await self.agent.run(prompt, message_history=self.history, conversation_id="gates")
            self.history = result.all_messages()

    @property
    def sent(self) -> str:
        return "".join(sent.text for sent in self.talker.sent)


@pytest.mark.parametrize(
    ("answer", "used"),
    [
        (ModelResponse(parts=[TextPart(SUMMARY)], finish_reason="stop"), True),
        (ModelResponse(parts=[TextPart(SUMMARY)], finish_reason="length"), False),
        (ModelResponse(parts=[TextPart(SUMMARY)], finish_reason="content_filter"), False),
        (SUMMARY + " gate" * 4_000, False),
        ("None.", False),
        (SUMMARY + "\n=== BEGIN TOPIC ===\ngates\n=== END TOPIC ===", False),
    ],
)
async def test_only_a_finished_answer_of_its_size_is_a_summary(answer: Answer, used: bool) -> None:
    life = Life(writer := Writer(lambda number, prompt: answer))
    await life.turns(14)
    assert writer.prompts and ("which gate opens first" in life.sent) is used
    assert not any(view.status == "fallback" for view in life.views)


YAML = """Say what is still open as clearly and as briefly as you can. Answer in this form:

```yaml
goal: ...
constraints: [...]
decisions: [...]
files_touched: [...]
open_questions: [...]
next_step: ...
```
"""
HEADINGS = """Say what is still open as clearly and as briefly as you can. Use these headings:

## What the user wants and why it matters now
- **Everything that was decided, by whom, and for which reason**: only what still holds.
- What is open and has to be done next
"""
IN_YAML = """goal: find out which gate opens first
constraints: []
decisions: []
files_touched: []
open_questions: []
next_step: ask the keeper"""
UNDER_HEADINGS = """## What the user wants and why it matters now
To find out which gate opens first.
- **Everything that was decided, by whom, and for which reason**: none.
- What is open and has to be done next: ask the keeper."""


@pytest.mark.parametrize(
    ("body", "answer", "used"),
    [
        (YAML, IN_YAML, True),
        (HEADINGS, UNDER_HEADINGS, True),
        (YAML, f"{SUMMARY} I say what is still open as clearly and as briefly as I can.", False),
        (HEADINGS, f"{SUMMARY} I say what is still open as clearly and as briefly as I can.", False),
        (HEADINGS, f"{SUMMARY} Write the notes that the template below describes, in its words.", False),
    ],
)
async def test_a_summary_may_repeat_the_form_that_its_template_prescribes_but_no_sentence(
    body: str, answer: str, used: bool
) -> None:
    life = Life(Writer(lambda number, prompt: answer), template=Template.parse(body, name="form"))
    await life.turns(14)
    assert ("which gate opens first" in life.sent) is used


async def test_a_model_that_writes_nothing_useful_is_left_alone_and_reported_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    life = Life(writer := Writer(lambda number, prompt: "The gate is open. " * 30))
    await life.turns(40)
    assert len(writer.prompts) == 2 and len(life.errors) == 1
    assert "unusable" in str(life.errors[0]) and "QUOTED" in life.talker.last.text
    assert "compiled" in {view.status for view in life.views} and "fallback" not in {view.status for view in life.views}
    (line,) = caplog.messages
    assert "wrote no summary (its answers are unusable); the conversation goes on without it" in line
    assert "`context-compiler views show ID` says why, model='none' asks no model" in line


async def test_length_stop_and_tools_are_set_for_the_summary_and_the_rest_is_kept() -> None:
    configured = ModelSettings(
        max_tokens=7, stop_sequences=["gate"], parallel_tool_calls=False, extra_headers={"x-team": "a"}, temperature=0.5
    )
    life = Life(writer := Writer(lambda number, prompt: SUMMARY, settings=configured))
    await life.turns(14)
    settings = writer.settings[0]
    assert settings.get("extra_headers") == {"x-team": "a"} and settings.get("temperature") == 0.5
    assert not {"stop_sequences", "parallel_tool_calls"} & set(settings)
    assert 300 < settings.get("max_tokens", 0) <= 3_000 and configured.get("max_tokens") == 7


@pytest.mark.parametrize(
    ("profile", "more", "thinking"),
    [
        ({}, 0, None),
        ({"supports_thinking": True}, 0, False),
        ({"supports_thinking": True, "thinking_always_enabled": True}, 4_096, None),
    ],
)
async def test_a_model_that_always_reasons_has_room_for_it_and_any_other_does_not_reason(
    profile: Any, more: int, thinking: bool | None
) -> None:
    plain, reasoning = (Writer(lambda number, prompt: SUMMARY, profile=choice) for choice in ({}, profile))
    for writer in (plain, reasoning):
        await Life(writer).turns(14)
    assert reasoning.settings[0].get("max_tokens", 0) == plain.settings[0].get("max_tokens", 0) + more
    assert reasoning.thinking[0] is thinking


async def test_no_more_than_the_cap_of_a_summary_is_given_to_the_next_one() -> None:
    names = ["".join(letters) for letters in product("bdgkmprst", "aeiou", "lnr", "aeiou")]
    life = Life(writer := Writer(lambda number, prompt: " ".join(names[: 380 // number])))
    life.history = [user("The names: " + " ".join(names)), assistant("Noted.")]
    await life.turns(40)
    _, previous = writer.prompts[1].split("=== BEGIN PREVIOUS SUMMARY ===\n")
    cap, size = writer.settings[0].get("max_tokens", 0) // 2, TokenCounter().text
    assert size(" ".join(names[:380])) > cap >= size(previous.partition("\n=== END")[0]) > cap // 2


async def test_one_compile_reads_a_few_prompts_and_says_what_it_left() -> None:
    writer = Writer(lambda number, prompt: f"{SUMMARY} Part {number}.", profile={"context_window": 9_000})
    life = Life(writer, store=(store := MemoryStore()))
    life.history = [
        message for number in range(300) for message in (user(prose(number, 90)), assistant(prose(number, 60)))
    ]
    await life.turns(1)
    assert 1 < len(writer.prompts) <= 4
    assert sum(map(TokenCounter().text, writer.prompts)) < 24_000
    [row] = await store.summaries("gates")
    assert ["beyond one compile: left to the next one, and quoted until then"] == [
        drop.reason for drop in row.sections_dropped
    ]


async def test_a_prompt_that_is_too_long_for_the_model_is_asked_in_halves() -> None:
    def answer(number: int, prompt: str) -> Answer:
        return (
            ModelHTTPError(400, "notes", body={"code": "context_length_exceeded"})
            if number == 1
            else f"{SUMMARY} Part {number}."
        )

    life = Life(writer := Writer(answer))
    await life.turns(14)
    first, *halves = writer.prompts[:3]
    assert all(len(half) < len(first) for half in halves) and "which gate opens first" in halves[1]
    assert "which gate opens first" in life.sent and not life.errors


async def test_prompts_fit_the_window_that_the_application_gives() -> None:
    life = Life(writer := Writer(lambda number, prompt: SUMMARY), window=6_000, model=None)
    life.agent = Agent(writer.model, capabilities=[life.ours])
    life.history = [
        message for number in range(80) for message in (user(prose(number, 150)), assistant(prose(number, 60)))
    ]
    await life.turns(1)
    *summaries, _ = writer.prompts
    assert len(summaries) > 1 and max(map(len, summaries)) < 4 * 6_000


async def test_answers_that_came_in_time_are_kept_and_the_rest_comes_with_the_next_compile() -> None:
    async def late() -> str:
        await asyncio.sleep(60)
        return SUMMARY

    writer = Writer(lambda number, prompt: late() if number == 2 else f"{SUMMARY} Part {number}.")
    life = Life(writer, budget=60_000, timeout=2)
    life.history = [
        message for number in range(300) for message in (user(prose(number, 150)), assistant(prose(number, 60)))
    ]
    await life.turns(1)
    assert len(writer.prompts) == 2 and "Part 1." in life.talker.last.text
    asked = [next(number for number in range(300) if prose(number, 150)[:200] in prompt) for prompt in writer.prompts]
    await life.turns(12, words=3_000)
    later = [number for number in range(300) if prose(number, 150)[:200] in writer.prompts[2]]
    assert min(later) == asked[1] and "Part 1." in writer.prompts[2], "the late prompt alone is asked again"


async def test_long_results_and_encoded_data_are_shown_in_part() -> None:
    life = Life(writer := Writer(lambda number, prompt: SUMMARY))
    log = " ".join(f"line {number} took {number * 31 % 977} ms" for number in range(20_000))
    life.history = [user("Here is the log: " + log), assistant("I see."), user("And: " + "QUJD" * 9_000)]
    life.history += [assistant("I see that, too."), user("Go on."), assistant("Well.")]
    await life.turns(3)
    assert sum(map(len, writer.prompts)) < 60_000
    assert "left out here" in writer.prompts[0] and "kB of encoded data" in writer.prompts[0]


SESSION = """\
User: The nightly export fails since Tuesday. Find out why and mend it, but do not touch the schema, and keep
Python 3.9 working.
Assistant called run_command {"command": "git log --oneline -5 -- export/"}
[tool] run_command: 8c1f2aa export: read the currency from the order
e51b7d0 export: write one file per region
Assistant called read_file {"path": "export/writer.py"}
[tool] read_file: def write(rows, region): ...
Assistant called run_command {"command": "pytest tests/test_writer.py -q"}
[tool] run_command: FAILED tests/test_writer.py::test_regions - KeyError: 'currency' 1 failed, 14 passed
Assistant: The order of a refund has no currency, so the lookup fails since commit 8c1f2aa. I use row.get and fall
back to the currency of the region.
Assistant called edit_file {"path": "export/writer.py"}
[tool] edit_file: edited 3 lines
Assistant called run_command {"command": "pytest tests/test_writer.py -q"}
[tool] run_command: 15 passed in 0.84s
Assistant called read_file {"path": "export/regions.py"}
[tool] read_file: REGIONS = {"eu": "EUR", "us": "USD", "jp": "JPY"}
User: Good. Does the report read the same field? Ask Maria before you deploy; she is back on Monday.
Assistant called run_command {"command": "grep -rn currency report/"}
[tool] run_command: report/summary.py:88: total = sum(row["currency"] ...)
Assistant: Yes, report/summary.py line 88 has the same lookup. I have not changed it yet.
User: Change it as well, then run the whole suite.
Assistant called edit_file {"path": "report/summary.py"}
[tool] edit_file: edited 1 line
Assistant called run_command {"command": "pytest -q"}
[tool] run_command: 2 failed, 412 passed in 38.1s: tests/test_summary.py::test_total,
tests/test_summary.py::test_refund
"""
NOTES = """\
- **Goal**: find out why the nightly export fails since Tuesday, and mend it.
- **Constraints**: "do not touch the schema", "keep Python 3.9 working", "Ask Maria before you deploy; she is back
on Monday".
- **Done**: export/writer.py: row.get with the currency of the region instead of the lookup that fails for refunds
(since commit 8c1f2aa); pytest tests/test_writer.py: 15 passed. report/summary.py line 88: the same change; not
verified.
- **Files touched**: export/writer.py (3 lines, checked), report/summary.py (1 line, not checked);
export/regions.py was read: eu EUR, us USD, jp JPY.
- **Findings**: refunds have no currency: KeyError: 'currency'.
- **Next**: pytest -q has 2 failed, 412 passed: tests/test_summary.py::test_total and
tests/test_summary.py::test_refund. Mend these, then ask Maria.
"""
MOVE = """\
User: 我们打算在十月把资料室搬到二楼,请帮我列一个计划。阅览室必须一直开放,全部费用不能超过八千元。
Assistant: 好的。可以先把书架清点一遍,再跟搬运公司约时间,等搬完以后更新目录。目录用哪个系统?
User: 还是用旧系统,新系统明年才能用。公司就用李明推荐的那家,让他们先给主任报个价。
Assistant: 明白,书架一共有四十二个,里面有六个需要修。
User: 请后勤处在搬家以前修好。还有,王芳拿着钥匙,星期五以后她才在。周三上午电梯停用,所以大件要走后门。
Assistant: 那么旧报纸和地图柜怎么办?
User: 把旧报纸送给市档案馆,地图柜先不动。月底以前请催还借出的书,当天不要接待团体。
Assistant: 请网络组移电话线,请财务处办保险单,可以吗?
User: 可以。
"""
MOVED = (
    "目标是十月把资料室搬到二楼,阅览室要一直开放,预算不得超过八千元,仍用旧系统更新目录,到明年才有新系统,决定用李明推荐的"
    "公司,首先清点所有书架,然后预约搬运时间,最后才更新目录,共有书架四十二个,其中六个需要修理,必须赶在搬家之前修完,钥匙"
    "目前由王芳保管,要等星期五以后才能拿,请搬运公司向主任报价,由后勤处负责修书架,电梯在周三上午停用,凡是大件只能走后门,"
    "市档案馆接收旧报纸,暂时不搬地图柜,在月底前催还借出的书,搬家当天不接待团体,由网络组移电话线,由财务处办理保险单,好的"
    "。"
)


@pytest.mark.parametrize(("text", "material"), [(NOTES, SESSION), (MOVED, MOVE)], ids=["tool work", "chinese"])
def test_good_notes_have_no_fault(text: str, material: str) -> None:
    assert summary_fault(text, material=material, instructions="", previous="") is None


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("I'm excited to share more about the incredible things I've been working on with you all.", "names nothing"),
        ("The export of Tuesday: " + " ".join(f"{number}.{number * 7 % 12}.2023" for number in range(40)), "words"),
        (
            "Maria is so proud of the export, and Ken is so proud of what they did on Tuesday. The team is so proud of "
            "it that nobody slept, and Ines is so proud of Lisbon. I am so proud of them, and so proud of Ruth too.",
            "itself",
        ),
    ],
    ids=["no name", "invented numbers", "repetition"],
)
def test_notes_that_say_nothing_of_the_conversation_have_a_fault(text: str, fault: str) -> None:
    material = SESSION + "\nUser: Also tell Maria, and Ken, and Ines in Lisbon, and Ruth at Globex."
    assert fault in (summary_fault(text, material=material, instructions="", previous="") or "")
    named = f"Ask Ruth before the deployment. {NOTES}"
    assert summary_fault(named, material=material, instructions="", previous="") is None


@pytest.mark.parametrize(
    "text",
    [
        "用户计划五月飞往东京，然后去大阪、京都和奈良。导游佐藤健二在机场接他们。两人的铁路通票价格为500美元。",
        "Пользователь летит в мае в Токио, потом едет в Осаку, Киото и Нару. Гид Кэндзи Сато встретит в аэропорту.",
    ],
)
def test_a_summary_in_another_script_need_not_spell_names_as_the_conversation_does(text: str) -> None:
    material = (
        "User: We fly to Tokyo in May, then to Osaka, Kyoto and Nara. Our guide Kenji Sato meets us at the airport.\n"
        "Assistant: Good. The rail pass is 500 dollars for Anna and Bob."
    )
    assert summary_fault(text, material=material, instructions="", previous="") is None


MATERIAL = " ".join(prose(number, 120) for number in range(8))


def test_a_summary_in_another_language_or_with_few_words_is_not_called_invented() -> None:
    german = (
        "Der Benutzer möchte wissen, warum das Tor zuerst geöffnet wird, und bittet um eine vollständige Erklärung. "
        * 1
    )
    assert summary_fault(german, material=MATERIAL, instructions="", previous="") is None
    assert (
        summary_fault(
            "用户想知道哪个门先开,并请管理员给出完整的说明。", material=MATERIAL, instructions="", previous=""
        )
        is None
    )


@pytest.mark.parametrize(
    "text",
    [
        " ".join(f"Order {1_001 + number} shipped." for number in range(60)),
        "\n".join(f"- src/file_{number}.py has {number * 37 % 211} lines." for number in range(60)),
        "\n".join(
            f"- On 2024-05-{day:02d} the reading was {day * 31 % 97}.{day % 10} degrees." for day in range(1, 29)
        ),
    ],
)
def test_a_list_that_differs_only_in_its_numbers_does_not_repeat_itself(text: str) -> None:
    assert summary_fault(text, material=text, instructions="", previous="") is None


@pytest.mark.parametrize(
    "text",
    [
        "Order 1001 shipped. Order 1002 shipped. " * 15,
        "1 2 3 4 5 6 7 8 9 10 " * 30,
        "\n".join(f"{number}. The user asked about the gate." for number in range(1, 40)),
        " ".join(f"The {gate} is open." for gate in ("north", "south", "upper", "lower", "inner", "outer") * 8),
        "10:10 " * 100,
        "aaaa" * 200,
    ],
)
def test_numbers_that_come_again_or_only_count_a_repeated_sentence_repeat_themselves(text: str) -> None:
    assert summary_fault(text, material=text, instructions="", previous="") == "it repeats itself"
