"""A template whose sections have little room, so that a short conversation shows what is left out of a prompt."""

from __future__ import annotations

from pathlib import Path

TIGHT = """---
compiler: agent
token_threshold: 0.5
sections:
  recent_turns: {budget: 200}
  topic: {budget: 12}
---
Notes. {{ constraints }} {{ topic }} {{ reflections }} {{ recent_turns }} {{ latest_input }}
"""


def tight_template(system: Path) -> str:
    """Put it into the templates of that folder; its name."""
    folder = system / "ContextTemplates"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tight.md").write_text(TIGHT)
    return "tight"
