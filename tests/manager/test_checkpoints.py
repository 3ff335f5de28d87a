"""A checkpoint is a whole session and its memory; a rollback gives back both, or leaves everything as it is."""

from __future__ import annotations

from typing import Any

import pytest

from context_compiler.errors import ContextMemoryError, SettingsError
from context_compiler.manager import Commit, ContextState, Diff, VolatileMemory
from tests.manager.fakes import Fragile, Scribe, managed, said, talk


class Bad:
    """A scorer that finds every session degraded."""

    def calculate(self, ctx: ContextState) -> float:
        return 0.1


class Plain:
    """A repository that keeps memories alone, and no session."""

    def __init__(self) -> None:
        self.commits: list[str] = []
        self.restored: list[str] = []

    async def commit(self, message: str, author: str = "", session: Any = None) -> str:
        self.commits.append(f"{author}: {message}")
        return f"commit-{len(self.commits)}"

    async def checkout(self, commit: str) -> None:
        self.restored.append(commit)

    async def log(self, limit: int | None = None) -> list[Commit]:
        return []

    async def diff(self, old: str, new: str) -> Diff:
        return Diff(added=(), removed=())


async def test_without_versioning_there_are_no_checkpoints() -> None:
    memory = Fragile()
    manager = managed(memory=memory, versioned=False, checkpoint_interval=1)
    await talk(manager, 3)
    assert await manager.checkpoint("now") is None
    assert "commit" not in memory.calls
    with pytest.raises(SettingsError, match="Versioning not enabled"):
        await manager.rollback()


async def test_a_rollback_without_a_checkpoint_is_refused() -> None:
    with pytest.raises(ContextMemoryError, match="No checkpoint to roll back to"):
        await managed().rollback()


async def test_a_checkpoint_is_made_at_every_interval_of_turns() -> None:
    memory = VolatileMemory()
    manager = managed(memory=memory, checkpoint_interval=3)
    made = [(await manager.process_turn(f"turn {number}")).checkpoint_created for number in range(1, 8)]
    assert [bool(commit) for commit in made] == [False, False, True, False, False, True, False]
    messages = [(commit.author, commit.message) for commit in await memory.log()]
    assert messages == [("context-manager", f"Auto checkpoint at turn {number}") for number in (6, 3)]


async def test_a_checkpoint_by_hand_restarts_the_interval() -> None:
    manager = managed(checkpoint_interval=3)
    await talk(manager, 2)
    assert await manager.checkpoint("mine")
    made = [(await manager.process_turn(f"turn {number}")).checkpoint_created for number in range(3)]
    assert [bool(commit) for commit in made] == [False, False, True]


async def test_a_rollback_restarts_the_interval() -> None:
    manager = managed(checkpoint_interval=3)
    await talk(manager, 2)
    await manager.checkpoint("mine")
    await talk(manager, 1, start=2)
    await manager.rollback()
    made = [(await manager.process_turn(f"turn {number}")).checkpoint_created for number in range(3)]
    assert [bool(commit) for commit in made] == [False, False, True]


async def test_without_auto_checkpoint_none_is_made() -> None:
    manager = managed(checkpoint_interval=1, auto_checkpoint=False)
    await talk(manager, 4)
    with pytest.raises(ContextMemoryError):
        await manager.rollback()


async def test_a_rollback_restores_memory_and_session() -> None:
    memory = VolatileMemory()
    await memory.remember("The harbour is called Sund.")
    manager = managed(Scribe("A move was planned."), memory, recent_turns_to_keep=1, checkpoint_interval=99)
    await talk(manager, 3)
    await manager.summarize()
    commit = await manager.checkpoint("good")
    before, scores = manager.get_context_messages(), manager.quality_history
    await talk(manager, 4, start=3)
    await manager.summarize()
    await memory.remember("The harbour is called Skagen.")
    done = await manager.rollback()
    assert (done.commit_restored, done.turns_lost) == (commit, 4)
    assert manager.get_context_messages() == before and manager.quality_history == scores
    assert manager.turn_count == 3
    assert not any("Skagen" in match.memory.text for match in await memory.search("harbour", 9))


async def test_each_checkpoint_is_restored_once_and_then_the_one_before_it() -> None:
    manager = managed(checkpoint_interval=99)
    commits = [await manager.checkpoint("empty")]
    for number in range(3):
        await talk(manager, 1, start=number)
        commits.append(await manager.checkpoint(f"after {number}"))
    done = [await manager.rollback() for _ in commits]
    assert [result.commit_restored for result in done] == commits[::-1]
    assert [result.turns_lost for result in done] == [0, 1, 1, 1]
    with pytest.raises(ContextMemoryError, match="No checkpoint"):
        await manager.rollback()


@pytest.mark.parametrize("down", ["checkout", "session"])
async def test_a_checkout_that_fails_leaves_everything_as_it_is(down: str) -> None:
    class Failing(Fragile):
        async def session_at(self, commit: str) -> Any:
            self._tried("session")
            return await super().session_at(commit)

    memory = Failing()
    manager = managed(memory=memory)
    await talk(manager, 2)
    commit = await manager.checkpoint("good")
    await talk(manager, 2, start=2)
    await memory.remember("kept")
    before, log = manager.to_json(), await memory.log()
    memory.down.add(down)
    with pytest.raises(ConnectionError):
        await manager.rollback()
    assert manager.to_json() == before and await memory.log() == log
    assert await memory.search("kept", 1)
    memory.down.clear()
    assert (await manager.rollback()).commit_restored == commit


async def test_a_failing_commit_raises_by_hand_and_is_retried_at_the_next_turn() -> None:
    memory = Fragile("commit")
    manager = managed(memory=memory, checkpoint_interval=2)
    await talk(manager, 1)
    result = await manager.process_turn("two")
    assert result.checkpoint_created is None and any("checkpoint" in problem for problem in result.trouble)
    with pytest.raises(ConnectionError):
        await manager.checkpoint()
    memory.down.clear()
    assert (await manager.process_turn("three")).checkpoint_created


async def test_a_degraded_session_is_rolled_back_only_with_auto_rollback() -> None:
    manager = managed(scorer=Bad(), checkpoint_interval=2)
    results = [await manager.process_turn(f"turn {number}") for number in range(5)]
    assert all(result.quality_score == 0.1 and not result.rollback_triggered for result in results)
    assert manager.turn_count == 5


async def test_an_automatic_rollback_keeps_the_current_prompt() -> None:
    manager = managed(scorer=Bad(), auto_rollback=True, auto_checkpoint=False)
    await manager.process_turn("good")
    manager.add_response("yes")
    await manager.checkpoint("good")
    result = await manager.process_turn("and now?")
    assert result.rollback_triggered and result.checkpoint_created is None
    assert manager.turn_count == 2 and manager.add_response("this")
    assert not (await manager.process_turn("again?")).rollback_triggered


async def test_an_answer_that_arrives_during_a_rollback_is_kept() -> None:
    class Slow(VolatileMemory):
        async def checkout(self, commit: str) -> None:
            assert manager.add_response("already answered")
            await super().checkout(commit)

    manager = managed(memory=Slow(), scorer=Bad(), auto_rollback=True, auto_checkpoint=False)
    await talk(manager, 1)
    await manager.checkpoint("good")
    assert (await manager.process_turn("and now?")).rollback_triggered
    assert said(manager.transcript())[-2:] == ["and now?", "already answered"]
    assert not manager.add_response("once more")


async def test_a_rollback_is_made_before_a_new_checkpoint() -> None:
    manager = managed(scorer=Bad(), auto_rollback=True, checkpoint_interval=1)
    first = await manager.process_turn("one")
    second = await manager.process_turn("two")
    assert first.checkpoint_created and not first.rollback_triggered
    assert second.rollback_triggered and second.checkpoint_created is None
    with pytest.raises(ContextMemoryError):
        await manager.rollback()


async def test_a_failing_rollback_does_not_end_the_turn() -> None:
    memory = Fragile("checkout")
    manager = managed(memory=memory, scorer=Bad(), auto_rollback=True, checkpoint_interval=1)
    await manager.process_turn("one")
    result = await manager.process_turn("two")
    assert not result.rollback_triggered and manager.turn_count == 2
    assert any("rollback" in problem for problem in result.trouble)


async def test_a_repository_without_sessions_can_still_restore_them() -> None:
    repo, memory = Plain(), VolatileMemory()
    manager = managed(memory=memory).with_versioning(memory, repo, Scribe())
    await talk(manager, 2)
    before = manager.get_context_messages()
    await manager.checkpoint("good")
    await talk(manager, 2, start=2)
    assert (await manager.rollback()).turns_lost == 2
    assert manager.get_context_messages() == before
    assert (repo.commits, repo.restored) == (["context-manager: good"], ["commit-1"])


async def test_another_manager_resumes_where_the_first_one_stopped() -> None:
    memory = VolatileMemory()
    first = managed(memory=memory, checkpoint_interval=99)
    await talk(first, 2)
    commit = await first.checkpoint("good")
    await talk(first, 2, start=2)
    await first.process_turn("open")
    second = managed(memory=memory)
    assert await second.resume()
    assert second.to_json().replace(second.session_id, "") == first.to_json().replace(first.session_id, "")
    assert (await second.rollback()).commit_restored == commit
    assert not await managed().resume()
