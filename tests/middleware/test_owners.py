"""One agent for many tenants: `owner=` keeps conversations, compiles, windows and layers of one from every other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent, RunContext
from pydantic_ai.capabilities import ProcessHistory

from context_compiler import (
    ContextCompiler,
    RecordHistory,
    SQLiteStore,
    build_compiling_history_processor,
    compile_view,
)
from context_compiler.errors import SettingsError, TemplateError
from context_compiler.layers import Layers
from context_compiler.record.copying import copy_record
from context_compiler.record.store import MemoryStore
from context_compiler.template import TemplateLibrary
from tests.middleware.faulty import look
from tests.support.agents import Notes, Talker, compiler
from tests.support.histories import long_history

LONG = long_history(14)


def tenant(ctx: Any) -> str:
    return ctx.deps


async def ask(given: Any, owner: str, prompt: str = "And now?", **more: Any) -> Any:
    talker = Talker()
    agent = Agent(talker.model, deps_type=str, capabilities=[given])
    result = await agent.run(prompt, deps=owner, conversation_id="chat", **more)
    return talker, result


async def test_the_same_history_of_two_owners_is_compiled_for_each(tmp_path: Path) -> None:
    notes = Notes(lambda number: f"- **Goal**: notes number {number}, about src/file_0.py.")
    path = tmp_path / "context.db"
    for owner, calls in (("ann", 1), ("bob", 2), ("ann", 2)):
        talker, _ = await ask(compiler(notes, owner=tenant, store=path), owner, message_history=LONG)
        assert notes.asked == calls
        assert f"notes number {1 if owner == 'ann' else 2}" in talker.last.text
    every = SQLiteStore(path).scoped(None)
    assert [(info.owner, info.sessions) for info in await every.owners()] == [("ann", 1), ("bob", 1)]
    assert await every.verify() == ()
    await every.close()


async def test_owners_share_neither_cycles_nor_compiles_in_memory() -> None:
    notes = Notes(lambda number: f"- **Goal**: notes number {number}, about src/file_0.py.")
    for record in ("full", "off"):
        capability = compiler(notes, owner=tenant, record=record)
        before = notes.asked
        for owner in ("ann", "bob"):
            await ask(capability, owner, message_history=LONG)
        assert notes.asked == before + 2


async def test_a_run_of_a_deleted_conversation_does_not_use_the_compile_of_another_owner() -> None:
    compilers, store = {}, MemoryStore()
    for owner in ("ann", "bob"):
        notes = Notes(f"- **Goal**: notes of {owner}, about src/file_0.py.")
        compilers[owner] = compiler(notes, owner=owner, store=store)
    _, result = await ask(compilers["ann"], "ann", message_history=LONG)
    assert await store.scoped("ann").delete("chat") == 1
    await ask(compilers["bob"], "bob", message_history=LONG)
    talker, _ = await ask(compilers["ann"], "ann", message_history=result.all_messages())
    (mine,) = await store.scoped("ann").views()
    (other,) = await store.scoped("bob").views()
    assert mine.status.startswith("cycle") and "notes of ann" in talker.last.text
    assert mine.compile is None and "its row is gone" in mine.status
    assert other.compile is not None and other.compile.owner == "bob" and await store.verify() == ()


@pytest.mark.parametrize("calls", [0, 1])
async def test_requests_name_the_compile_of_their_view_after_a_restart_and_in_a_copy(calls: int) -> None:
    store, copy = MemoryStore(), MemoryStore()
    other = Notes("- **Goal**: notes of bob, about src/file_0.py.")
    await ask(compiler(other, store=copy), "bob", message_history=LONG)
    messages, steps = LONG, iter([[("look", {"path": "a"})]] * calls + ["done", "ok.", "ok."])
    for current in (store, store, copy):
        notes = Notes("- **Goal**: notes of ann, about src/file_0.py.")
        talker = Talker(lambda messages, info: next(steps))
        agent = Agent(talker.model, tools=[look], capabilities=[compiler(notes, owner="ann", store=current)])
        if current is copy:
            assert (await copy_record(store, copy, lambda table: None)).defects == ()
        messages = (await agent.run("And now?", message_history=messages, conversation_id="talk")).all_messages()
    made = [view.compile and (view.compile.owner, view.compile.summary) for view in await copy.scoped("ann").views()]
    assert len(made) == 3 + calls and len(set(made)) == 1 and made[0] is not None and made[0][0] == "ann"
    assert await copy.verify() == ()


async def test_a_window_is_joined_only_with_messages_of_its_owner(tmp_path: Path) -> None:
    first = compiler(owner=tenant, store=tmp_path / "context.db", budget=30_000)
    await ask(first, "ann", "My badge has the number 47110815.", message_history=LONG)
    window = LONG[-8:]
    for owner, joined in (("bob", False), ("ann", True)):
        for capability in (first, compiler(owner=tenant, store=tmp_path / "context.db", budget=30_000)):
            talker, _ = await ask(capability, owner, message_history=window)
            assert (len(talker.last.messages) > len(window) + 1) == joined


async def test_a_redacted_message_is_stored_as_its_own_conversation_has_it() -> None:
    capability = compiler(owner=tenant, store=MemoryStore(), redact=lambda text: text)
    agent = Agent(Talker().model, deps_type=str, capabilities=[capability])
    agent.system_prompt(dynamic=True)(name_owner)
    for owner in ("ann", "bob"):
        for name in ("chat", "other"):
            result = await agent.run("Hello.", deps=owner, conversation_id=name)
            stored = await capability.transcript(name, owner=owner)
            assert f"You talk with {owner}." in str(stored)
            assert [message.run_id for message in stored] == [message.run_id for message in result.all_messages()]


async def test_a_redacted_conversation_that_begins_again_contains_nothing_that_was_deleted() -> None:
    store = MemoryStore()
    capability = compiler(store=store, redact=lambda text: text)
    talker = Talker([[("look", {"path": "a"})], "ok."] * 2)
    agent = Agent(talker.model, deps_type=str, tools=[look], capabilities=[capability])
    agent.system_prompt(dynamic=True)(name_owner)
    for user in ("ann", "bob"):
        await store.delete("chat")
        result = await agent.run("Hello.", deps=user, conversation_id="chat")
        stored = await capability.transcript("chat")
        assert f"You talk with {user}." in str(stored)
        assert [message.run_id for message in stored] == [message.run_id for message in result.all_messages()]


def name_owner(ctx: RunContext[str]) -> str:
    return f"You talk with {ctx.deps}."


async def test_views_and_transcripts_are_those_of_the_named_owner(tmp_path: Path) -> None:
    capability = compiler(owner=tenant, store=tmp_path / "context.db")
    for owner in ("ann", "bob"):
        await ask(capability, owner, f"I am {owner}.")
    for owner in ("ann", "bob"):
        assert [view.owner for view in await capability.views("chat", owner=owner)] == [owner]
        assert f"I am {owner}." in str(await capability.transcript("chat", owner=owner))
    for reading in (capability.views(), capability.transcript("chat")):
        with pytest.raises(SettingsError, match="name the owner"):
            await reading


@pytest.mark.parametrize("owner", [lambda ctx: ctx.nothing, lambda ctx: None, lambda ctx: 7, lambda ctx: "a\x00b"])
async def test_a_run_without_an_owner_continues_and_stores_nothing(tmp_path: Path, owner: Any) -> None:
    path, errors = tmp_path / "context.db", list[Exception]()
    await ask(compiler(store=path), "", message_history=LONG)
    capability = compiler(owner=owner, store=path, on_error=errors.append)
    talker, result = await ask(capability, "ann", "A secret: 47110815.", message_history=LONG)
    assert result.output == "ok." and talker.last.tokens <= 1_500 and errors
    store = SQLiteStore(path).scoped(None)
    assert len(await store.views()) == 1 and "47110815" not in str([row async for row in store.export()])
    await store.close()


async def test_a_static_owner_and_a_scoped_store_are_equivalent(tmp_path: Path) -> None:
    path = tmp_path / "context.db"
    await ask(compiler(owner="ann", store=path), "", "first")
    await ask(compiler(store=SQLiteStore(path).scoped("ann")), "", "second")
    capability = compiler(owner="ann", store=path)
    assert [view.owner for view in await capability.views("chat")] == ["ann", "ann"]
    assert await compiler(store=path).views() == []


async def test_a_source_of_histories_is_that_of_one_owner() -> None:
    store = MemoryStore()
    for owner in ("ann", "bob"):
        await ask(compiler(owner=owner, store=store), "", f"I am {owner}.")
    text = str(await RecordHistory(store.scoped("ann")).run_history(run_id="chat"))
    assert "I am ann." in text and "I am bob." not in text
    with pytest.raises(SettingsError, match="one owner"):  # the histories of all who have a "chat" would be joined
        RecordHistory(store.scoped(None))


async def test_wrong_owners_are_refused() -> None:
    for wrong in (7, "a\x00b"):
        with pytest.raises(SettingsError, match="owner="):
            ContextCompiler(owner=wrong, store=None)  # pyright: ignore[reportArgumentType]
    with pytest.raises(SettingsError, match="one owner"):
        ContextCompiler(store=MemoryStore().scoped(None))


async def test_a_processor_gives_each_owner_their_own_history_back(tmp_path: Path) -> None:
    processor = build_compiling_history_processor(
        "extractive", budget=700, store=tmp_path / "context.db", system=None, owner=tenant
    )
    agent = Agent(Talker().model, deps_type=str, capabilities=[ProcessHistory(processor)])
    for owner in ("ann", "bob"):
        history: list[Any] = []
        for number in range(12):
            prompt = f"Question {number} of {owner} about the quarterly figures of the company and its plans."
            done = await agent.run(prompt, deps=owner, conversation_id="chat", message_history=history)
            history = done.all_messages()
    for owner, other in (("ann", "bob"), ("bob", "ann")):
        raw = str(await processor.transcript("chat", owner=owner))
        assert raw.count(f"of {owner} about") == 12 and f"of {other} about" not in raw


async def test_layers_of_a_shared_session_id_belong_to_the_owner(tmp_path: Path) -> None:
    path = tmp_path / "context.db"
    layers = Layers(path)
    for owner in ("ann", "bob"):
        async with layers.scoped(owner).turn("chat", f"I am {owner}.") as turn:
            turn.registry.register_read("people", 1, f"The person {owner}")
            turn.answered("Hello.")
    assert layers.scoped("ann").place("chat") != layers.place("chat")
    capability = compiler(owner=tenant, store=path, layers=layers, role="reply", budget=8_000)
    for owner, other in (("ann", "bob"), ("bob", "ann")):
        talker, _ = await ask(capability, owner)
        assert f"The person {owner}" in talker.last.text and f"The person {other}" not in talker.last.text
    await layers.close()


async def test_a_run_without_an_owner_gets_no_layers_of_an_owner(tmp_path: Path) -> None:
    """Neither those that were kept without an owner, nor those of the owner whose store the layers were made for."""
    path = tmp_path / "context.db"
    for owner in ("", "ann"):
        async with Layers(path).scoped(owner).turn("chat", "Hello.") as turn:
            turn.registry.register_read("people", 1, f"The person of {owner or 'nobody'}")
            turn.answered("Hello.")
    for store, owner, whose in (
        (SQLiteStore(path), lambda ctx: None, None),
        (SQLiteStore(path), lambda ctx: ctx.nothing, None),
        (SQLiteStore(path).scoped("ann"), lambda ctx: "", "nobody"),
        (SQLiteStore(path).scoped("ann"), lambda ctx: "bob", None),
    ):
        capability = compiler(owner=owner, store=path, layers=Layers(store), role="reply", budget=8_000)
        talker, _ = await ask(capability, "ann")
        shown = [name for name in ("nobody", "ann") if f"The person of {name}" in talker.last.text]
        assert shown == ([whose] if whose else [])


def put(vault: Path, owner: str, text: str, name: str = "handover") -> Path:
    """A template of an owner, in the folder where the library looks for it."""
    library = TemplateLibrary(vault=vault / "{owner}", system=None, owner=owner)
    file = library.roots[0][1] / f"{name}.md"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"---\ncompiler: none\n---\n{text}")
    return file


async def test_each_owner_has_their_own_templates_and_shares_those_of_the_system(tmp_path: Path) -> None:
    """At a request, at a compile by hand, and at a later request of the same process."""
    shared = tmp_path / "system" / "ContextTemplates" / "handover.md"
    shared.parent.mkdir(parents=True)
    shared.write_text("---\ncompiler: none\n---\nThe handover of the team.")
    vault = tmp_path / "prompts"
    for owner in ("ann", "Ann", "bob"):
        put(vault, owner, f"The handover of {owner}.")
    (vault / "dan").symlink_to(vault / "bob")  # two who share a vault
    capability = compiler(
        template="handover", vault=vault / "{owner}", system=tmp_path / "system", owner=tenant, store=tmp_path / "c.db"
    )
    for _ in range(2):
        for owner, whose in (("ann", "ann"), ("Ann", "Ann"), ("bob", "bob"), ("dan", "bob"), ("cat", "the team")):
            talker, _ = await ask(capability, owner, message_history=LONG)
            assert f"The handover of {whose}." in talker.last.text and talker.last.text.count("The handover of") == 1
    assert "The handover of Ann." in (await capability.compile_now("chat", "all of it", owner="Ann")).summary
    store = SQLiteStore(tmp_path / "c.db")
    for owner in ("ann", "Ann", "bob"):
        rows = [row async for row in store.scoped(owner).export() if "template_path" in row]
        assert {Path(str(row["template_path"])).read_text()[-len(owner) - 4 :] for row in rows} == {f"of {owner}."}
    await store.close()


async def test_a_run_of_an_unknown_owner_gets_no_templates_of_an_owner(tmp_path: Path) -> None:
    for owner in ("ann", "none", "owner", "None"):
        put(tmp_path, owner, f"The handover of {owner}.")
    for unknown in (lambda ctx: None, lambda ctx: ctx.nothing, lambda ctx: ""):
        errors = list[Exception]()
        capability = compiler(
            template="handover", vault=str(tmp_path / "{owner}"), owner=unknown, on_error=errors.append
        )
        talker, result = await ask(capability, "ann", message_history=LONG)
        assert result.output == "ok." and "The handover of" not in talker.last.text
        assert any(isinstance(error, TemplateError) for error in errors)


async def test_a_vault_per_owner_requires_an_owner(tmp_path: Path) -> None:
    vault, store = tmp_path / "{owner}", MemoryStore()
    put(tmp_path, "ann", "The handover of ann.")
    for wrong in (
        lambda: compiler(vault=vault),
        lambda: compiler(vault=vault, owner=""),
        lambda: TemplateLibrary(vault=vault),
    ):
        with pytest.raises(SettingsError, match="each owner has a folder there; name the owner"):
            wrong()
    with pytest.raises(SettingsError, match="name the owner"):
        await compile_view(LONG, "handover", vault=vault, store=store, system=None)
    with pytest.raises(TemplateError):
        compiler(template="handover", vault=vault, owner="bob")
    view = await compile_view(LONG, "handover", 700, vault=vault, store=store.scoped("ann"), system=None)
    assert "The handover of ann." in str(view.messages)


async def test_links_and_names_cannot_leave_the_vault_of_an_owner(tmp_path: Path) -> None:
    """Whoever may write to a vault of their own cannot have the application read that of somebody else."""
    file = put(tmp_path, "bob", "The handover of bob.", name="secret")
    folder = put(tmp_path, "ann", "The handover of ann.").parent
    (folder / "linked.md").symlink_to(file)
    cat = tmp_path / "cat" / "AssistantMD"
    cat.mkdir(parents=True)
    (cat / "ContextTemplates").symlink_to(file.parent)
    (tmp_path / "dan").mkdir()
    (tmp_path / "dan" / "AssistantMD").symlink_to(file.parent.parent)
    for owner in ("ann", "cat", "dan"):
        library = TemplateLibrary(vault=tmp_path / "{owner}", system=None, owner=owner)
        for name in ("secret", "linked", str(file), f"../../../bob/AssistantMD/ContextTemplates/{file.name}"):
            with pytest.raises(TemplateError) as raised:
                library.find(name)
            assert "handover of bob" not in str(raised.value) and "secret or" not in str(raised.value)
        assert "secret" not in [info.name for info in library.list()]
    with pytest.raises(SettingsError, match="is everybody's"):
        compiler(vault="system/ContextTemplates/{owner}", system="system", owner=tenant)


async def test_a_node_and_a_processor_use_the_templates_of_their_owner(tmp_path: Path) -> None:
    put(tmp_path, "ann", "Layers as ann wants them: {{ user_intent }}", name="layers/reply")
    put(tmp_path, "bob", "The handover of bob.")
    vault, layers = tmp_path / "{owner}", Layers(tmp_path / "context.db")
    for owner in ("ann", "bob"):
        async with layers.scoped(owner).turn("chat", f"I am {owner}.") as turn:
            turn.registry.register_read("people", 1, f"The person {owner}")
            turn.answered("Hello.")
    capability = compiler(
        owner=tenant, store=tmp_path / "context.db", layers=layers, role="reply", budget=8_000, vault=vault
    )
    for owner in ("ann", "bob"):
        talker, _ = await ask(capability, owner)
        assert ("Layers as ann wants them" in talker.last.text) == (owner == "ann")
    await layers.close()
    processor = build_compiling_history_processor(
        "handover", budget=1_500, store=None, system=None, owner=tenant, vault=vault
    )
    for owner in ("ann", "bob"):
        talker = Talker()
        agent = Agent(talker.model, deps_type=str, capabilities=[ProcessHistory(processor)])
        await agent.run("And now?", deps=owner, message_history=LONG, conversation_id="chat")
        assert ("The handover of bob." in talker.last.text) == (owner == "bob")


async def test_folder_names_of_owners_are_unique(tmp_path: Path) -> None:
    """On a file system that does not tell capitals apart either; and none leads out of the vaults."""
    plain = ["ann", "team_7", "9", "a-b"]
    odd = ["Ann", "ANN", "ann ", "ann.", "../bob", "/etc", ".", "..", "a/b", "a\\b", "con", "lpt1", "-rf", "ännchen"]
    odd += ["{owner}", "x" * 100, "x" * 101, "\u0131", "ann\n", "~", "٣", "ſ", "K"]
    names = {
        owner: TemplateLibrary(vault="v/{owner}", system=None, owner=owner).roots[0][1].parts for owner in plain + odd
    }
    folders = [parts[1] for parts in names.values()]
    assert [folders[number] for number in range(len(plain))] == plain
    assert all(len(parts) == 4 and parts[0] == "v" for parts in names.values())
    for name in [*folders]:  # one who is named as the folder of another has one of their own too
        folders.append(TemplateLibrary(vault="v/{owner}", system=None, owner=f"{name}").roots[0][1].parts[1])
    made = folders[: len(names)] + [folder for folder in folders[len(names) :] if folder not in plain]
    assert len({folder.casefold() for folder in made}) == len(made)
    assert all(set(folder) <= set("abcdefghijklmnopqrstuvwxyz0123456789_-") and len(folder) <= 64 for folder in made)
