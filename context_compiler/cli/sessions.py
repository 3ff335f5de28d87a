"""`sessions`: list recorded conversations; the other commands are in `session_commands`."""

from __future__ import annotations

from context_compiler.cli.deferred import Sessions
from context_compiler.cli.options import DB, Db, Json, Owner, example, group
from context_compiler.cli.records import with_record
from context_compiler.cli.screen import Column, print_list
from context_compiler.cli.text import number, timestamp
from context_compiler.record.values import SessionInfo

app = group("List, show, compact and delete recorded conversations.", shown="sessions list", cls=Sessions)

SESSIONS = (
    Column("session", style="bold", names=True),
    Column("vault", spare=2),
    Column("requests", right=True),
    Column("compiles", right=True, spare=3),
    Column("raw tokens", right=True, spare=1),
    Column("sent", right=True),
    Column("last used", spare=2),
)
OWNER = Column("owner", spare=4)


@app.command("list", epilog=example("sessions list"))
def list_(db: Db = DB, owner: Owner = None, json: Json = False) -> None:
    """List conversations, the most recently used first."""
    infos = with_record(lambda store: store.sessions(), db, owner)
    empty = f"{db} contains no sessions yet; create one with `context-compiler import` or `compile --db`"
    owned = any(info.owner for info in infos)
    columns = (SESSIONS[0], OWNER, *SESSIONS[1:]) if owned else SESSIONS
    rows = (_row(info, owned=owned) for info in infos)
    print_list({"db": str(db), "sessions": infos}, columns, rows, json=json, empty=empty)


def _row(info: SessionInfo, *, owned: bool) -> tuple[object, ...]:
    return (
        info.session_id,
        *((info.owner,) if owned else ()),
        info.vault_name,
        number(info.requests),
        number(info.compiles),
        number(info.tokens_raw),
        number(info.tokens_sent) if info.tokens_sent else "–",
        timestamp(info.last_at),
    )
