"""Several agents, one conversation: a planner hands over to a worker, and the worker to a reviewer.

The agents share one compiler, so there is one budget and one record, and a summary that was written for one agent is
reused for the next. A rule that the user gave the planner reaches the reviewer, which never received that prompt. The
models in this example are functions.
"""

from __future__ import annotations

import asyncio

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from context_compiler import ContextCompiler

RULE = "Never touch the payments table without my explicit yes."
sent: dict[str, list[ModelMessage]] = {}


def model(name: str, answer: str) -> FunctionModel:
    """Make a model that always gives the same answer and notes the request that it was sent."""

    def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        sent[name] = messages
        return ModelResponse(parts=[TextPart(answer)])

    return FunctionModel(respond, model_name="shared")


async def main() -> None:
    notes = model("notes", "- Goal: move the queue.\n- Done so far: the steps before, in order, without trouble.")
    compiler = ContextCompiler(budget=2_000, model=notes, store=None)
    steps = "Next: drain the old queue, start the new consumer, compare the counts, and write down what differs. "
    agents = {
        name: Agent(model(name, steps * 6), name=name, capabilities=[compiler])
        for name in ("planner", "worker", "reviewer")
    }
    history: list[ModelMessage] = []
    prompts = [("planner", f"Plan the move to the new queue. {RULE}")]
    prompts += [("planner", f"And part {part} of the plan?") for part in range(12)]
    prompts += [("worker", f"Do step {step}, please.") for step in range(12)]
    prompts += [("reviewer", "Review what was done. Was everything allowed?")]
    compiled = 0
    for name, prompt in prompts:
        result = await agents[name].run(prompt, message_history=history, conversation_id="move")
        history = result.all_messages()
        view = compiler.last_view
        assert view is not None
        compiled += view.status == "compiled"
    view = compiler.last_view
    assert view is not None and view.record is not None
    print(
        f"{len(prompts)} prompts to {len(agents)} agents, {compiled} compiled; the history has {len(history)} messages"
    )
    print(f"the reviewer was sent {view.record.tokens_sent:,} of {view.record.tokens_raw:,} tokens")
    print(f"the user's rule is among them, word for word: {RULE in str(sent['reviewer'])}")


if __name__ == "__main__":
    asyncio.run(main())
