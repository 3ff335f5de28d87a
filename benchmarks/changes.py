"""Marks of change: list marked passages with the later sentence that changed them, for judgement by hand.

    python -m benchmarks.changes --marks 100 --seed 7
    python -m benchmarks.changes --asked

Lists passages of the conversations that `context_compiler.recall.changes` would mark, each with the later sentence, in
an order drawn with a seed. `--asked` counts BEAM's questions about updates and contradictions whose evidence has a
mark.
"""

from __future__ import annotations

import random

from benchmarks.command import arguments
from benchmarks.peers.baselines import READER, text
from benchmarks.recall import SEED, SETS, Conversation, data_folder, load
from context_compiler.messages.history import History
from context_compiler.recall.changes import Changes

KINDS = ("knowledge_update", "contradiction_resolution")


def marks(conversation: Conversation) -> tuple[History, list[tuple[int, str, int, str]]]:
    """Return the history, with position and sentence of each changed passage and of the passage that changes it."""
    history = READER.read(conversation.messages)
    changes = Changes()
    changes.extend(history)
    later = sorted(changes.later.items())
    return history, [(position, change.sentence, change.at, change.later) for position, own in later for change in own]


def questions(names: list[str]) -> None:
    """Print how many questions about changes have a mark in their evidence."""
    for name in names:
        for kind in KINDS:
            marked = asked = 0
            for conversation in load(name, data_folder()):
                history, own = marks(conversation)
                texts = {text(history.messages[mark[0]]) for mark in own}
                for question in conversation.questions:
                    if question.kind == kind:
                        asked += 1
                        marked += any(evidence in texts for evidence in question.evidence)
            if asked:
                print(f"{name} {kind}: {marked} of {asked} questions have a mark in their evidence")


def main() -> None:
    options = arguments(__doc__, set=[*SETS], marks=100, seed=SEED, asked=False)
    names: list[str] = options.set or [*SETS]
    if options.asked:
        questions(names)
        return
    conversations = [conversation for name in names for conversation in load(name, data_folder())]
    every = [(conversation.name, *mark) for conversation in conversations for mark in marks(conversation)[1]]
    random.Random(options.seed).shuffle(every)
    print(f"{len(every)} marks")
    for conversation, position, old, later, new in every[: options.marks]:
        print(f"\n[{conversation}: message {position}, changed at {later}]\n  {old}\n  {new}")


if __name__ == "__main__":
    main()
