"""A session in which a fact is quoted, loses its place to other quotes, and is recalled where a prompt has its words.

asyncio.run(plan(Path("context.db")))
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage

from context_compiler import ContextCompiler
from tests.support.agents import Talker

PROMPTS = """We are planning a trip to Lisbon for four people, from 3 to 10 October 2027.
We land at Humberto Delgado at 14:20 with flight TP 1371.
The flat is in Rua das Flores 88, third floor, no lift.
The landlady is called Teresa Nunes and her number is 912 555 018.
Ben is allergic to walnuts, so his food must not have any.
The budget for the week is 3200 euros without the flights.
Can you sketch the first two days?
Move the aquarium to the second day, the first one is too full.
How long does the tram 28 take from Graça to Estrela?
I booked a table at Ponto Final for 4 October at 20:00.
The surf lesson in Caparica costs 45 euros each, is that normal?
Put the surf lesson on 6 October in the morning.
What should we take along for the surf lesson?
Anna wants to see the tile museum, it closes on Mondays.
Is there a night bus back from the Fado place in Alfama?
We take the 737 bus up to the castle then.
How early do we have to be at the castle to avoid the queue?
I rented four bikes for 7 October, the booking is BK-20931.
Where can we leave the bikes near Belém?
Which cake is safe for all of us?""".splitlines()
"""What the user says, turn by turn; the last prompt asks for the fact without a word of it."""

FACT = "walnuts"
FOCI = {9: FACT, 13: "surf lesson"}
"""Subjects of the compiles by hand, by the turn before them."""

ANSWERS = (
    "Noted: {}. I will keep it in mind for the plan, and I will mention it again when it matters for one of the days or"
    " for the money.",
    "Good. For {} I would plan two hours, and a short walk afterwards along the river, because the trams are full at"
    " that time of the day.",
    "That works. About {}: the prices change with the season, so look at the official page a week before, and take cash"
    " for small places.",
    "Yes. I put it into the plan: {}. The rest of the day stays as it was, with a break after lunch and the evening"
    " free.",
)


async def plan(db: Path, session: str = "trip", **settings: Any) -> None:
    """Record the session under a budget that holds a third of it, compiled twice by hand, with a focus each."""
    compiler = ContextCompiler(budget=700, model="none", store=db, system=None, **settings)
    endings = (" ".join(prompt.rstrip(".?").split()[-4:]) for prompt in PROMPTS)
    answers = [ANSWERS[turn % len(ANSWERS)].format(ending) for turn, ending in enumerate(endings)]
    agent = Agent(Talker(answers).model, capabilities=[compiler])
    history: list[ModelMessage] = []
    for turn, prompt in enumerate(PROMPTS, 1):
        history = (await agent.run(prompt, message_history=history, conversation_id=session)).all_messages()
        if turn in FOCI:
            await compiler.compile_now(session, FOCI[turn])
    await compiler.aclose()
