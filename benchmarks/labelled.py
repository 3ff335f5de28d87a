"""Labelled sets of many kinds: meetings, months with an assistant, and two kinds made with a seed.

Together with the sets of `benchmarks.recall` and the facts of tool sessions (`benchmarks.facts`), the ranking is fitted
and checked on them. The made sets hide sentences in chats about other things: preferences, which a later request for
advice should respect, and cues, which share no word with the question that needs them.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pydantic_ai.messages import ModelMessage

from benchmarks import recall
from benchmarks.recall import FIRST_DAY, Conversation, Question, question_on, said

LEAST_WORDS = 5
"""Minimum words of a turn of a meeting that counts as evidence."""
CHATS, HIDDEN = 4, 16
"""Number of chats of a made set, and of sentences hidden in each."""

FILES = {"qmsum": "qmsum/val.jsonl", "realmem": "realmem/*_dialogues_256k.json"}
HIDING = {"preferences": "beam-100k", "cues": "locomo"}
"""Made sets, each with the set among whose messages its sentences are hidden."""


def load(name: str, folder: Path) -> list[Conversation]:
    if name in HIDING:
        return list(_hiding(name, recall.load(HIDING[name], folder)))
    (path, *more) = sorted(folder.glob(FILES[name]))
    if name == "qmsum":
        meetings = map(json.loads, path.read_text(encoding="utf-8").splitlines())
        return [_meeting(f"qmsum {number}", item) for number, item in enumerate(meetings)]
    return [_months(item.stem, json.loads(item.read_text(encoding="utf-8"))["dialogues"]) for item in (path, *more)]


def _meeting(name: str, data: Mapping[str, Any]) -> Conversation:
    """Read a meeting; the first speaker is the user, all others answer."""
    lines = data["meeting_transcripts"]
    texts = [f"{line['speaker']}: {line['content']}" for line in lines]
    messages = [
        said("user" if line["speaker"] == lines[0]["speaker"] else "assistant", text, FIRST_DAY)
        for line, text in zip(lines, texts, strict=True)
    ]
    questions: list[Question] = []
    for query in data["specific_query_list"]:
        spans = [(int(first), int(last)) for first, last in query["relevant_text_span"]]
        places = [position for first, last in spans for position in range(first, min(last + 1, len(lines)))]
        places = [position for position in places if len(lines[position]["content"].split()) >= LEAST_WORDS]
        if places:
            evidence = [(lines[position]["content"], position) for position in places]
            questions.append(question_on(query["query"], "meeting", query["answer"], evidence))
    return Conversation(name=name, messages=tuple(messages), questions=tuple(questions), whole=False)


def _months(name: str, sessions: Sequence[Mapping[str, Any]]) -> Conversation:
    """Read months with an assistant; questions are prompts, and their memories name the turns that are evidence."""
    messages: list[ModelMessage] = []
    questions: list[Question] = []
    sources: dict[tuple[str, str], str] = {}
    places: dict[str, int] = {}
    for session in sessions:
        when = datetime.strptime(session["current_time"][:10], "%Y-%m-%d").replace(tzinfo=UTC)
        turns: list[dict[str, Any]] = session["dialogue_turns"]
        start, nothing = len(messages), dict[str, Any]()
        for turn, reply in zip(turns, [*turns[1:], nothing], strict=True):
            if turn.get("is_query"):
                used = [
                    sources.get((memory["session_uuid"], memory["content"]))
                    for memory in reply.get("memory_used") or ()
                ]
                evidence = tuple(dict.fromkeys(text for text in used if text and places.get(text, start) < start))
                if used and all(text in evidence for text in used):
                    last = max(places[text] for text in evidence)
                    questions.append(
                        Question(text=turn["content"], evidence=evidence, kind="memory", after=last, stop=len(messages))
                    )
            places.setdefault(turn["content"], len(messages))
            messages.append(said(turn["speaker"].lower(), turn["content"], when))
        for memory in session["extracted_memory"]:
            if memory.get("source_content_snapshot") in places:
                sources[memory["session_uuid"], memory["content"]] = memory["source_content_snapshot"]
    return Conversation(name=name, messages=tuple(messages), questions=tuple(questions), whole=True)


def _hiding(name: str, chats: Sequence[Conversation]) -> Iterator[Conversation]:
    """Hide sentences, each a prompt of its own with a short answer, at random places of chats."""
    pairs = [tuple(line.split(" | ")) for line in SENTENCES[name].strip().splitlines()]
    for number, chat in enumerate(chats[:CHATS]):
        draw = random.Random(f"{recall.SEED} {name} {number}")
        hidden = draw.sample(pairs, min(HIDDEN, len(pairs)))
        starts = [position for position, message in enumerate(chat.messages) if message.kind == "request"]
        places = sorted(draw.sample(starts, len(hidden)))
        messages = list(chat.messages)
        for position, (sentence, _) in sorted(zip(places, hidden, strict=True), reverse=True):
            when = (messages[position].timestamp or FIRST_DAY) - timedelta(minutes=1)
            messages[position:position] = [said("user", sentence, when), said("assistant", draw.choice(NODS), when)]
        questions = tuple(
            Question(text=asked, evidence=(sentence,), kind=name, after=position + 2 * number)
            for number, (position, (sentence, asked)) in enumerate(zip(places, hidden, strict=True))
        )
        yield Conversation(name=f"{name} {number}", messages=tuple(messages), questions=questions, whole=True)


NODS = ("Noted.", "Good to know.", "I will keep that in mind.", "Understood, thank you.")

SENTENCES = {
    "preferences": """
I prefer aisle seats, because I like to stretch my legs. | Which seat should I book on the flight to Denver?
I'm vegetarian and can't stand mushrooms. | Can you suggest a dinner for Friday?
I really like minimalist design with few colours. | How should I design my new home page?
I hate early mornings, nothing before ten works for me. | When should I schedule the meeting with the dentist?
I always read on paper, screens tire my eyes. | How should I read the long report this weekend?
I love small family-run hotels, not chains. | Where should I stay in Lisbon?
I'd rather take the train than fly. | How should I travel to Vienna next month?
I prefer British spelling in everything I publish. | Can you help me write a blog post about autumn gardens?
My favourite style of music is slow jazz. | What should I play at my party?
I don't drink alcohol. | What could I order at the bar tonight?
I like mystery novels, romance bores me. | Can you recommend a book for my holiday?
I prefer running outside to the gym. | What kind of workout would you suggest for me?
I need large print, my eyesight is poor. | How should the invitation for my birthday be laid out?
I dislike spicy food. | Which dish should I cook for the potluck?
I want short answers without lists. | Could you explain how a heat pump works?
I enjoy learning from videos more than from books. | How can I learn to knit?
I'm into black-and-white photography. | What kind of camera film should I buy?
I prefer cotton, wool itches. | Which sweater should I get for the winter?
I'd like to avoid plastic wherever it is possible. | What should I buy for storing leftovers?
I like working in the quiet, no open offices. | Which desk should I choose in the new building?
""",
    "cues": """
My sister gets a rash from peanuts. | Anything to avoid when I bake for my sibling?
The doctor told me to stay off my left ankle for six weeks. | Should I sign up for the marathon?
Our old Volvo broke down for good on Saturday. | How will I get to the countryside?
I start at the bakery at four in the morning now. | Is late evening good for a phone call?
Grandma moved in with us, she can't manage stairs any more. | Which floor would suit the family in a new flat?
We are expecting twins in spring. | How much space will be needed next year?
I gave up my Netflix account to save money. | What could be watched together tonight?
The landlord forbids any pets. | Would adopting a kitten work out?
I lost my licence for speeding. | Could you plan a road trip for me?
My husband is deployed until Christmas. | Who could look after the kids in November?
I failed the swimming exam twice. | Is kayaking a sensible hobby?
Our roof leaks above the piano. | What needs repairing first at home?
I was laid off from the shipyard. | Can a new sofa be afforded?
The cat chewed through the charger. | Why is the laptop dead?
My boss is from Osaka and bows to everyone. | Which greeting fits at the office?
I can't tell red from green. | Which chart palette is best?
We celebrated ten years of marriage in Rome. | Where did the anniversary dinner happen?
I sold the guitar to pay for her braces. | Do we still own any instruments?
The well ran dry this August. | Is there water enough for the tomatoes?
My son only speaks Polish with his friends. | In what tongue should the card for the boys be?
""",
}
"""Hidden sentences, each with the prompt that needs it."""
