"""A recipe assistant of four agents over an SQLite table. Each agent is sent its part of the session, and nothing else.

    python examples/recipe_assistant.py                         # ten turns with scripted models; no key is needed
    python examples/recipe_assistant.py --model openai:gpt-5    # the same ten messages, answered by a model
    python examples/recipe_assistant.py --model openai:gpt-5 "What can I cook?"

Understand says which entities the message is about, Think plans, Act works on the table, and Reply answers. The
assistant reports each step to the layers of the session, and `ContextCompiler(layers=..., role=...)` puts each node's
part of them before its prompt.
"""

from __future__ import annotations

import argparse
import asyncio
import sqlite3
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel
from pydantic_ai import Agent, ModelRetry, RunContext
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models import Model
from pydantic_ai.models.function import AgentInfo, FunctionModel

from context_compiler import ContextCompiler, View
from context_compiler.layers import Layers, Turn

NODES = ("understand", "think", "act", "reply")
INSTRUCTIONS = {
    "understand": "Say which refs the message is about, which to retain (with a reason) and which to demote. "
    "If it cannot be understood, ask one question.",
    "think": "Decide: plan_direct with steps, propose something first, or clarify. Do not plan to read what is known.",
    "act": "Do the one step you are given with the tools, then sum up in a few words what came of it.",
    "reply": "Answer the user in a sentence or two. Never call something done that was only proposed.",
}


class Understood(BaseModel):
    """Output of Understand."""

    referenced: list[str] = []
    retain: dict[str, str] = {}
    demote: list[str] = []
    question: str = ""


class Step(BaseModel):
    """One step of a plan."""

    type: Literal["read", "analyze", "generate", "write"]
    description: str
    subdomain: str = "recipes"


class Plan(BaseModel):
    """Output of Think."""

    decision: Literal["plan_direct", "propose", "clarify"]
    goal: str
    user_expressed: str = ""
    message: str = ""
    steps: list[Step] = []


class Done(BaseModel):
    """Output of Act."""

    summary: str
    note: str = ""


class Blocked(Exception):
    """Error if the table refuses a change."""

    def __init__(self, error: sqlite3.Error, tool: str, table: str, items: Sequence[str]) -> None:
        super().__init__(str(error))
        self.tried = {"tool": tool, "table": table, "items": list(items)}


@dataclass
class Kitchen:
    """State of Act's tools: the table, the turn, and the results so far."""

    table: sqlite3.Connection
    turn: Turn
    results: list[tuple[str, str, list[dict[str, Any]]]] = field(default_factory=list)

    def found(self, tool: str, rows: Sequence[sqlite3.Row]) -> list[dict[str, Any]]:
        """Register recipes, and return them with a ref in place of the id."""
        self.results.append((tool, "recipes", [dict(row) for row in rows]))
        register = self.turn.registry.register_read
        return [{**dict(row), "id": register("recipes", row["id"], row["name"], data={**dict(row)})} for row in rows]


async def find_recipes(ctx: RunContext[Kitchen], words: str) -> list[dict[str, Any]]:
    """Find recipes whose name contains the words."""
    query = "SELECT id, name, minutes FROM recipes WHERE name LIKE ? ORDER BY id"
    return ctx.deps.found("db_read", ctx.deps.table.execute(query, (f"%{words}%",)).fetchall())


async def read_recipe(ctx: RunContext[Kitchen], ref: str) -> list[dict[str, Any]]:
    """Read one recipe whole, by its ref."""
    query = "SELECT * FROM recipes WHERE id = ?"
    return ctx.deps.found("db_read", ctx.deps.table.execute(query, (ctx.deps.turn.registry.resolve(ref),)).fetchall())


async def make_up_recipe(ctx: RunContext[Kitchen], name: str, minutes: int, method: str) -> str:
    """Make up a recipe without saving it, and return its ref."""
    recipe = {"name": name, "minutes": minutes, "method": method}
    return ctx.deps.turn.registry.register_generated("recipes", name, recipe)


async def save_recipe(ctx: RunContext[Kitchen], ref: str) -> str:
    """Save a recipe that was made up; it keeps its ref."""
    kitchen, given = ctx.deps, ctx.deps.turn.registry.data_of(ref)
    if not isinstance(given, Mapping) or kitchen.turn.registry[ref].status != "generated":
        raise ModelRetry(f"{ref} is no recipe that was made up and not saved yet")
    with kitchen.table:
        values = (given["name"], given["minutes"], given["method"])
        row = kitchen.table.execute("INSERT INTO recipes (name, minutes, method) VALUES (?, ?, ?)", values)
    kitchen.results.append(("db_create", "recipes", [{"id": row.lastrowid, "name": given["name"]}]))
    return kitchen.turn.registry.register_created("recipes", row.lastrowid, given["name"], gen_ref=ref)


async def stock(ctx: RunContext[Kitchen], items: list[str]) -> str:
    """Put items into the pantry."""
    try:
        with ctx.deps.table:
            ctx.deps.table.executemany("INSERT INTO inventory (name) VALUES (?)", [(item,) for item in items])
    except sqlite3.Error as error:
        raise Blocked(error, "db_create", "inventory", items) from error
    return "done"


TOOLS = (find_recipes, read_recipe, make_up_recipe, save_recipe, stock)
TABLES = """
CREATE TABLE IF NOT EXISTS recipes (id INTEGER PRIMARY KEY, name TEXT, minutes INTEGER, method TEXT);
CREATE TABLE IF NOT EXISTS inventory (id INTEGER PRIMARY KEY, name TEXT UNIQUE);
INSERT INTO recipes (name, minutes, method) SELECT 'Lemon Herb Chicken', 40, 'Roast with lemon and thyme.'
    UNION ALL SELECT 'Chicken Curry', 55, 'Simmer in coconut milk.'
    UNION ALL SELECT 'Tomato Salad', 10, 'Cut and toss.';
INSERT INTO inventory (name) SELECT 'salt' UNION ALL SELECT 'noodles';
"""


class RecipeAssistant:
    """Four agents, one table, and the layers of every session in one file."""

    def __init__(self, folder: Path, models: Mapping[str, Model | str]) -> None:
        self.layers = Layers(folder / "context.db")
        self.sent: list[tuple[str, str, View]] = []
        """Session, node and view of every request."""
        self.table = sqlite3.connect(folder / "recipes.db")
        self.table.row_factory = sqlite3.Row
        self.table.executescript(TABLES)
        kinds: dict[str, Any] = {"understand": Understood, "think": Plan, "act": Done, "reply": str}
        self._agents: dict[str, Agent[Any, Any]] = {
            node: Agent(
                models[node],
                output_type=kinds[node],
                instructions=INSTRUCTIONS[node],
                tools=TOOLS if node == "act" else (),
                deps_type=Kitchen,
                capabilities=[self._compiler(node)],
            )
            for node in NODES
        }

    def _compiler(self, node: str) -> ContextCompiler:
        def keep(view: View) -> None:
            self.sent.append((view.record.session_id if view.record else "", node, view))

        return ContextCompiler(
            budget=4_000,
            model="none",
            store=self.layers.store,
            layers=self.layers,
            role=node,
            on_view=keep,
        )

    async def _ask(self, node: str, session: str, prompt: str, kitchen: Kitchen) -> Any:
        return (await self._agents[node].run(prompt, deps=kitchen, conversation_id=session)).output

    async def say(self, session: str, message: str) -> str:
        """Run one turn: take the user's message and return the answer."""
        async with self.layers.turn(session, message) as turn:
            kitchen = Kitchen(self.table, turn)
            understood: Understood = await self._ask("understand", session, message, kitchen)
            for ref in understood.referenced:
                turn.registry.touch(ref)
            turn.curate(retained=understood.retain, demoted=understood.demote)
            if understood.question:
                turn.understood(clarification_questions=[understood.question])
                turn.answered(understood.question)
                return understood.question
            plan: Plan = await self._ask("think", session, message, kitchen)
            turn.decided(plan.decision, plan.goal, proposal_message=plan.message, user_expressed=plan.user_expressed)
            for step in plan.steps if plan.decision == "plan_direct" else []:
                try:
                    await self._act(session, step, kitchen)
                except Blocked as error:
                    turn.blocked(f"CRUD failed: {error}", attempted_context=error.tried)
                    break
            answer: str = await self._ask("reply", session, message, kitchen)
            turn.answered(answer)
            return answer

    async def _act(self, session: str, step: Step, kitchen: Kitchen) -> None:
        kitchen.results = []
        done: Done = await self._ask("act", session, step.description, kitchen)
        facts = {"subdomain": step.subdomain, "result_summary": done.summary, "note": done.note}
        kitchen.turn.did(step.type, step.description, result=kitchen.results or None, **facts)

    async def close(self) -> None:
        """Close both files."""
        self.table.close()
        await self.layers.close()


def direct(goal: str, *steps: tuple[str, str], **more: Any) -> dict[str, Any]:
    return {
        "decision": "plan_direct",
        "goal": goal,
        "steps": [{"type": kind, "description": what} for kind, what in steps],
        **more,
    }


def call(tool: str, **args: Any) -> list[Any]:
    return [(tool, args)]


SOUP = {"name": "Noodle Soup", "minutes": 15, "method": "Boil noodles in broth."}
OFFER = "Shall I save Noodle Soup to your recipes?"
WALK: list[tuple[str, dict[str, Any]]] = [
    ("What chicken recipes do I have?", {
        "think": direct("Find chicken recipes", ("read", "Find recipes with chicken")),
        "act": [call("find_recipes", words="Chicken"), {"summary": "Found 2 chicken recipes", "note": "all saved"}],
        "reply": "You have Lemon Herb Chicken and Chicken Curry.",
    }),
    ("I love the lemon one. Forget the curry, it is too hot.", {
        "understand": {
            "referenced": ["recipe_1"],
            "retain": {"recipe_1": "the user loves it"},
            "demote": ["recipe_2"],
        },
        "think": direct("Note what the user likes", user_expressed="loves lemon, nothing hot"),
        "reply": "Noted: lemon, and nothing hot.",
    }),
    ("How is it made?", {
        "understand": {"referenced": ["recipe_1"]},
        "think": direct("Show how it is made", ("read", "Read Lemon Herb Chicken")),
        "act": [call("read_recipe", ref="recipe_1"), {"summary": "Read Lemon Herb Chicken"}],
        "reply": "Roast it with lemon and thyme.",
    }),
    ("Make up something quick with noodles.", {
        "think": direct("Make a dish", ("generate", "Make up a noodle dish"), user_expressed="wants quick meals"),
        "act": [call("make_up_recipe", **SOUP), {"summary": "Made up Noodle Soup", "note": "it is not saved"}],
        "reply": "How about a noodle soup in 15 minutes?",
    }),
    ("Nice. Can we keep that?", {
        "understand": {"referenced": ["gen_recipe_1"]},
        "think": {"decision": "propose", "goal": "Keep the soup", "message": OFFER},
        "reply": OFFER,
    }),
    ("Yes, please.", {
        "understand": {"referenced": ["gen_recipe_1"]},
        "think": direct("Save the soup", ("write", "Save Noodle Soup")),
        "act": [call("save_recipe", ref="gen_recipe_1"), {"summary": "Saved Noodle Soup"}],
        "reply": "Noodle Soup is saved.",
    }),
    ("Put sugar and noodles into the pantry.", {
        "think": direct("Stock the pantry", ("write", "Put sugar and noodles into the pantry")),
        "act": [call("stock", items=["sugar", "noodles"])],
        "reply": "I could not: noodles are in the pantry already.",
    }),
    ("What went wrong?", {
        "think": direct("Explain the failure"),
        "reply": "Noodles were there already, so nothing was put in.",
    }),
    ("Show me the curry after all.", {
        "understand": {"referenced": ["recipe_2"]},
        "think": direct("Show the curry", ("read", "Read Chicken Curry")),
        "act": [call("read_recipe", ref="recipe_2"), {"summary": "Read Chicken Curry"}],
        "reply": "Simmer it in coconut milk.",
    }),
    ("And which was my favourite?", {
        "understand": {"referenced": ["recipe_1"]},
        "think": direct("Name the favourite"),
        "reply": "Lemon Herb Chicken.",
    }),
]  # fmt: skip
"""Messages of the user, and answers of the scripted models: Understand, Think, Act (each of its responses), Reply."""


class Script:
    """Models that answer from `WALK`."""

    def __init__(self) -> None:
        self._lines: dict[str, Any] = {}
        self.models: dict[str, Model | str] = {node: self._model(node) for node in NODES}

    def turn(self, number: int) -> None:
        """Let the models answer this turn, counted from 0."""
        self._lines = {"understand": {}, **WALK[number][1]}
        self._lines["act"] = list(self._lines.get("act", []))

    def _model(self, node: str) -> FunctionModel:
        def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
            said = self._lines["act"].pop(0) if node == "act" else self._lines[node]
            if isinstance(said, str):
                return ModelResponse(parts=[TextPart(said)])
            calls = said if isinstance(said, list) else [(info.output_tools[0].name, said)]
            return ModelResponse(parts=[ToolCallPart(tool, args) for tool, args in calls])

        return FunctionModel(answer, model_name=f"scripted-{node}")


def block_of(view: View) -> list[str]:
    """Lines of the layers that a node was sent."""
    for message in view.messages:
        for part in message.parts:
            content: Any = getattr(part, "content", "")
            for piece in [content] if isinstance(content, str) else content or []:
                text = str(getattr(piece, "content", piece))
                if text.startswith("=== BEGIN CONTEXT LAYERS"):
                    return text.splitlines()[1:-1]
    return []


def show(number: int, message: str, sent: Sequence[tuple[str, str, View]], answer: str) -> None:
    """Print one turn of the walk."""
    print(f"\n━━ turn {number} ━━ user: {message}")
    last = ""
    for _, node, view in sent:
        lines = [line for line in block_of(view) if line.strip()]
        if lines and (node, lines) != last:
            print(f"  {node} is told ({view.ledger['tokens']['layers']} tokens)")
            print("\n".join(f"    {line.replace('## ', '· ')}" for line in lines))
        last = (node, lines)
    print(f"  ⇒ {answer}")


async def walk(folder: Path, model: str | None, messages: Sequence[str]) -> None:
    script = Script()
    assistant = RecipeAssistant(folder, script.models if model is None else dict.fromkeys(NODES, model))
    try:
        for number, message in enumerate(messages):
            if model is None:
                script.turn(number)
            before = len(assistant.sent)
            answer = await assistant.say("kitchen", message)
            show(number + 1, message, assistant.sent[before:], answer)
        most = max(view.record.tokens_sent for _, _, view in assistant.sent if view.record)
        print(f"\n{len(assistant.sent)} requests compiled, none above {most:,} tokens")
    finally:
        await assistant.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="A recipe assistant of four agents.")
    parser.add_argument("--model", help="a model such as openai:gpt-5; without, everything is scripted")
    parser.add_argument("messages", nargs="*", help="what to say; needs --model")
    given = parser.parse_args()
    if given.messages and given.model is None:
        parser.error("scripted models only know their own ten turns; give --model")
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(walk(Path(folder), given.model, given.messages or [message for message, _ in WALK]))


if __name__ == "__main__":
    main()
