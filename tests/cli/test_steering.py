"""Compile now, undo and pin: in the chat, and with `sessions` from another process."""

from __future__ import annotations

import re
from pathlib import Path

from tests.cli.conftest import Command, Said

TALK = ("chat", "--model", "scripted:0", "--endless", "--budget", "8000")
TOPICS = (
    "Is ticket 471 of Maria about the label printer in the warehouse?",
    "When does our accountant get refunds for ticket 472?",
    "Who rotated keys on staging before lunch yesterday?",
    "Can slow queries wait until Thursday evening?",
    "Both links in that newsletter are broken, right?",
    "Should French invoices show a second tax number?",
    "How many night shifts did Tomasz swap?",
    "Did anybody water plants while we moved offices?",
)
LINES = [f"{topic} (question {number})" for number, topic in enumerate(TOPICS, 1)]


def talk(cc: Command, *lines: str) -> Said:
    said = cc(*TALK, input="\n".join(lines) + "\n")
    assert said.code == 0, said.err
    return said


def test_a_chat_can_be_compacted_inspected_and_undone(cc: Command) -> None:
    said = talk(cc, *LINES, "/compact --preview the tickets", "/compact the tickets", "And now?", "/view", "/undo")
    shown = said.out.partition("next request")[2]
    assert "at most" in shown and "a preview: no model was asked" in shown and "of scripted" in shown
    assert "**Said so far**" in shown and "messages 0-9 (" in shown and "focus" in shown
    assert "cycle: " in shown and "with the notes" in shown
    assert "the whole history" in shown.rpartition("next request")[2]
    later = talk(cc, "And then?", "/view", "/undo")
    assert "the whole history was sent as it is" in later.out and "nothing is compiled" in later.out


def test_a_pinned_message_stays_in_a_chat(cc: Command) -> None:
    said = talk(
        cc, *LINES, "/pins", "/pin turn 2", "/pins", "/compact", "And now?", "/view", "/unpin ticket 472", "/pins"
    )
    assert said.out.count("nothing is pinned") == 2 and "turn 2 stays in every view" in said.out
    assert re.search(r" user +\d+ +\d+ +pinned, with the notes ", said.out) and "turn 2 is no longer pinned" in said.out


def test_a_chat_is_summarised_from_a_turn_on(cc: Command) -> None:
    said = talk(cc, *LINES, "/compact --from turn 3 the deploys", "And now?", "/view")
    assert "messages 4-15 (" in said.out
    kept = said.out.rpartition("Kept: ")[2]
    assert kept.index("ticket 472") < kept.index("written for this view") < kept.index("And now?")


def test_a_preview_is_never_applied_wherever_the_option_is_written(cc: Command) -> None:
    said = talk(cc, *LINES, "/compact --from turn 3  --preview the deploys", "/compact --from 3 --preview")
    assert said.out.count("a preview: no model was asked") == 2 and "focus the deploys" in " ".join(said.out.split())
    wrong = talk(cc, "/compact --form turn 3", "/compact --from the start", "/compact --previews")
    assert wrong.out.count("say /compact [--preview] [--from TURN] [WHAT TO KEEP]") == 3
    assert "next request" not in wrong.out and "nothing is compiled" in talk(cc, "/undo").out


def test_a_command_that_cannot_be_carried_out_reports_the_reason(cc: Command) -> None:
    said = talk(
        cc, "/compact", "/undo", "/pin", "/unpin", "/pin turn 1", *LINES[:1], "/pin turn 5", "/endless off", "/compact"
    )
    for reason in (
        "/compact: session 'main': nothing of it is on the record",
        "/pin TURN or WORDS",
        "/unpin TURN or WORDS",
        "/pin: message='turn 5': there is no such message; give turn 1 to turn 1",
        "Endless is off, so the whole history is sent: /endless on, then /compact",
    ):
        assert reason in said.out
    assert "/compact" in talk(cc, "/help").out


def test_each_dropped_message_is_listed_once(recorded: Command) -> None:
    said = recorded("sessions", "compact", "demo", "--preview").out
    (gone,) = re.findall(r"^  dropped +(.+) \(", said, re.M)
    spans = [range(int(a), int(b or a) + 1) for a, b in re.findall(r"messages? (\d+)(?:-(\d+))?", gone)]
    named = [index for span in spans for index in span]
    assert spans and named == sorted(set(named)), gone


def test_the_sessions_command_changes_what_a_chat_continues_with(cc: Command, tmp_path: Path) -> None:
    talk(cc, *LINES)
    assert "no model is asked" in cc("sessions", "compact", "main", "--focus", "tickets", "--preview").out
    done = cc("sessions", "compact", "main", "--focus", "tickets", "--model", "scripted:0", "--json").json
    assert done["done"] and done["saved"] > 0 and done["model"] == "scripted" and "Said so far" in done["summary"]
    assert "stays in every view" in cc("sessions", "pin", "main", "turn 2").out
    view = talk(cc, "And now?", "/view").out
    assert "cycle: " in view and "pinned, with the notes" in view
    assert cc("sessions", "pins", "main", "--json").json["pins"][0]["turn"] == 2
    assert "no longer pinned" in cc("sessions", "unpin", "main", "ticket 472").out
    assert "nothing is pinned" in cc("sessions", "pins", "main").out
    assert cc("sessions", "undo", "main").code == 0
    again = cc("sessions", "undo", "main")
    assert again.code == 1 and again.out == "nothing was changed: nothing is compiled, so there is nothing to undo\n"
    assert "the whole history was sent" in talk(cc, "And then?", "/view").out
    assert (
        cc("sessions", "pin", "main", "turn 99").code == 2
        and "no such message" in cc("sessions", "pin", "main", "t99").err
    )
    assert cc("verify").code == 0
