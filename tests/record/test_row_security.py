"""Row-level security in PostgreSQL: a role that does not own the tables has one owner's rows, whatever it asks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from urllib.parse import urlsplit
from uuid import uuid4

import pytest

from context_compiler.manager.memory import SQLiteMemory
from context_compiler.pipeline import PostgresRuns
from context_compiler.record.postgres import PostgresStore
from context_compiler.record.postgres_tables import TABLES
from tests.record.entries import Talk, compiled, cycle, request, talk
from tests.support.postgres import Cluster

pytestmark = pytest.mark.slow
SAID = "SELECT set_config('context_compiler.owner', 'o:{0}', false), set_config('context_compiler.prefix', 'p:', false)"


@pytest.fixture
def role(postgres: Cluster, postgres_url: str) -> Iterator[str]:
    """A role without rights of its own."""
    name = f"tenant_{uuid4().hex}"
    postgres.execute(f"CREATE ROLE {name} LOGIN")
    yield name
    database = urlsplit(postgres_url).path[1:]
    postgres.execute(f"DROP OWNED BY {name}", database)
    postgres.execute(f"DROP ROLE {name}")


@pytest.fixture
async def operator(postgres_url: str, postgres: Cluster, role: str) -> AsyncIterator[PostgresStore]:
    """The record as the owner of its tables has it, which that role may use."""
    store, database = PostgresStore(postgres_url), urlsplit(postgres_url).path[1:]
    await PostgresRuns(store.database).runs()  # which makes their tables
    postgres.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA context_compiler TO {role}", database)  # as some did before
    await store.enable_row_security(role)
    await store.enable_row_security(role)
    yield store
    assert await store.verify() == ()
    await store.close()


async def fill(store: PostgresStore) -> None:
    """Something in every table for an owner."""
    raw, owner = talk(3), store.owner
    made = compiled(raw.ids[2], cache_key="k", summary=f"for {owner}")
    await store.save(request(raw, Talk(f"of {owner}"), compile=made, cycle=cycle(raw.ids[2], f'"{owner}"')))
    await store.save_layers("s", "", f'"{owner}"', after=0)
    memory = SQLiteMemory("s", store)
    await memory.remember(f"the user is {owner}")
    await memory.commit(f"of {owner}")


async def test_a_role_sees_the_rows_of_its_owner_only(operator: PostgresStore, postgres_url: str, role: str):
    shared = PostgresStore(postgres_url.replace("postgres@", f"{role}@"), row_security=True)
    ann, bob = shared.scoped("ann"), shared.scoped("bob")
    for store in (ann, bob):
        await fill(store)
    for store in (ann, bob):
        assert await store.transcript("s") == talk(3).bodies
        stored = await store.find_compile("k")
        assert stored is not None and stored[1].summary == f"for {store.owner}"
        assert [match.memory.text for match in await SQLiteMemory("s", store).search("who is the user ann bob", 5)] == [
            f"the user is {store.owner}"
        ]
    assert await shared.scoped(None).sessions() == []  # who sees everyone connects as another role
    assert {info.owner for info in await operator.scoped(None).owners()} == {"ann", "bob"}
    assert await ann.prune(keep_last=0) == 1 and await bob.erase() == 1
    await ann.erase()
    await shared.close()
    left = {row["table"] async for row in operator.scoped(None).export()}
    assert left == set()


async def test_statements_of_another_program_are_restricted_too(
    operator: PostgresStore, postgres_url: str, postgres: Cluster, role: str
):
    database = urlsplit(postgres_url).path[1:]
    for owner in ("ann", "bob", ""):
        await fill(operator.scoped(owner))
    as_role = f"SET ROLE {role};"
    for table in TABLES:
        count = f"DO $$ BEGIN ASSERT (SELECT count(*) FROM context_compiler.{table}) = 0; END $$"
        postgres.execute(f"{as_role}{count}", database)
        postgres.execute(f"{as_role}{SAID.format('nobody').replace('p:', 'p:none/')};{count}", database)
    mine = "DO $$ BEGIN ASSERT (SELECT string_agg(owner, ',') FROM context_compiler.sessions) = 'bob'; END $$"
    postgres.execute(f"{as_role}{SAID.format('bob')};{mine}", database)
    with pytest.raises(Exception, match="row-level security"):
        theirs = (
            "INSERT INTO context_compiler.sessions (id, session_id, vault_name, created_at, owner, seal)"
            " VALUES (99, 'x', '', '', 'ann', '')"
        )
        postgres.execute(f"{as_role}{SAID.format('bob')};{theirs}", database)
    postgres.execute(f"{as_role}{SAID.format('bob')};DELETE FROM context_compiler.layers", database)
    assert await operator.scoped("ann").layers("s") is not None and await operator.scoped("bob").layers("s") is None


async def test_the_role_has_no_rights_beyond_the_record(
    operator: PostgresStore, postgres_url: str, postgres: Cluster, role: str
):
    database = urlsplit(postgres_url).path[1:]
    others = postgres.run(
        "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'context_compiler'::regnamespace", database
    )
    others = {row[0] for row in others} - {*TABLES, "components"}
    assert {"pipeline_runs", "pipeline_cells", "pipeline_queue", "pipeline_leases"} <= others
    for table in others:
        for what in (f"SELECT FROM context_compiler.{table}", f"DELETE FROM context_compiler.{table}"):
            with pytest.raises(Exception, match=f"permission denied for table {table}"):
                postgres.execute(f"SET ROLE {role};{what}", database)
    with pytest.raises(Exception, match="permission denied for table components"):
        postgres.execute(f"SET ROLE {role};UPDATE context_compiler.components SET version = 99", database)


async def test_a_store_that_writes_for_a_reader_is_for_one_owner_too(
    operator: PostgresStore, postgres_url: str, role: str
):
    await operator.scoped("ann").save(request(talk(3)))
    reader = PostgresStore(postgres_url.replace("postgres@", f"{role}@"), row_security=True, read_only=True)
    writer = reader.writer().scoped("ann")
    assert [session.session_id for session in await writer.sessions()] == ["s"]
    await writer.save(request(talk(4)))
    assert await reader.scoped("bob").sessions() == [] and await reader.scoped("ann").transcript("s") == talk(4).bodies
    await reader.close()
