"""Searching a history in several requests, each of which has little time."""

from __future__ import annotations

from context_compiler.messages.history import History, Reader
from context_compiler.recall.index import Index, changes_of, index_of
from context_compiler.resilience import OutOfTimeError, TimeLimit
from tests.recall.asking import COUNTER
from tests.support.histories import assistant, user


def conversation() -> History:
    turns = ((user(f"The port of job {turn % 50} is {9_000 + turn}."), assistant("Noted.")) for turn in range(300))
    return Reader(COUNTER).read([message for turn in turns for message in turn])


def test_an_index_that_ran_out_of_time_goes_on_from_there_and_ends_the_same() -> None:
    history, whole = conversation(), Index()
    whole.extend(history)
    whole.changes.extend(history)
    interrupted = 0
    while True:
        try:
            with TimeLimit(0.01).applied():
                changes_of(history)
            break
        except OutOfTimeError:
            interrupted += 1
    index = index_of(history)
    assert interrupted
    assert (index.posts, index.tip, index.changes.later) == (whole.posts, whole.tip, whole.changes.later)
