"""A support desk: one agent, many customers, each with a conversation that goes on for weeks.

Every customer has a `conversation_id`, which decides whose past recall may search. A customer names an order once
and asks for it much later. The request that answers contains the order, word for word, and nothing of any other
customer. The model in this example is a function, so you need no key. To use a real model, give the agent its name,
such as "anthropic:claude-sonnet-5-5".
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from context_compiler import ContextCompiler, SQLiteStore

CUSTOMERS = {"ana": "AX-4471", "ben": "BQ-0923", "chi": "CM-7718"}
TURNS = 25
SMALL_TALK = (
    "The parcel of week {week} came in a good box, thank you; is there a newer price list for shelves and screws?"
)
ANSWER = "Yes, the price list of this week has new shelves; screws are as before. Anything else that I can do for you?"

sent: list[list[ModelMessage]] = []


def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Answer in place of a real model, and note the request."""
    sent.append(messages)
    return ModelResponse(parts=[TextPart(ANSWER)])


async def serve(agent: Agent[None, str], customer: str, order: str) -> bool:
    """Serve one customer for weeks; return True if the last request has this customer's order and no other order."""
    history: list[ModelMessage] = []
    for week in range(TURNS):
        prompt = SMALL_TALK.format(week=week)
        if week == 1:
            prompt = f"My order {order} came without its legs. Please note that."
        if week == TURNS - 1:
            prompt = "Which order of mine came without its legs?"
        result = await agent.run(prompt, message_history=history, conversation_id=customer)
        history = result.all_messages()
    request = str(sent[-1])
    return order in request and not any(other in request for other in CUSTOMERS.values() if other != order)


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        compiler = ContextCompiler(budget=1_500, model="none", store=Path(folder) / "context.db")
        agent = Agent(FunctionModel(answer), instructions="You are the support desk.", capabilities=[compiler])
        for customer, order in CUSTOMERS.items():
            held = await serve(agent, customer, order)
            print(f"{customer}: order {order} is in the request that is asked for it: {held}")
        store = SQLiteStore(Path(folder) / "context.db")
        for session in await store.sessions():
            print(f"{session.session_id}: {session.requests} requests, {session.compiles} of them compiled")
        await store.close()


if __name__ == "__main__":
    asyncio.run(main())
