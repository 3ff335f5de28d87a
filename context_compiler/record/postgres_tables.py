"""The tables of the record in PostgreSQL, with the same columns, values and seals as in SQLite.

References between rows that are named by their content are not foreign keys, because deleting a row would then search
for all rows that may refer to it; `verify` checks them. Names are compared byte by byte (`COLLATE "C"`).
"""

from __future__ import annotations

from pathlib import Path

from context_compiler.record.pool import Component
from context_compiler.record.schema import VERSION

NAME = 'TEXT COLLATE "C"'

CREATE = (
    f"CREATE TABLE {{schema}}.contents (hash {NAME} PRIMARY KEY, body BYTEA NOT NULL)",
    f"""CREATE TABLE {{schema}}.nodes (
        id {NAME} PRIMARY KEY,
        parent {NAME},
        content {NAME} NOT NULL,
        position BIGINT NOT NULL,
        instructions {NAME}
    )""",
    f"""CREATE TABLE {{schema}}.sessions (
        id BIGINT PRIMARY KEY,
        session_id TEXT NOT NULL,
        vault_name TEXT NOT NULL,
        raw_tip {NAME},
        created_at {NAME} NOT NULL,
        owner TEXT NOT NULL,
        seal TEXT NOT NULL,
        UNIQUE (owner, session_id, vault_name)
    )""",
    f"""CREATE TABLE {{schema}}.copies (
        session BIGINT NOT NULL REFERENCES {{schema}}.sessions(id),
        node {NAME} NOT NULL,
        content {NAME} NOT NULL,
        PRIMARY KEY (session, node)
    )""",
    f"""CREATE TABLE {{schema}}.context_summaries (
        id BIGINT PRIMARY KEY,
        session BIGINT NOT NULL REFERENCES {{schema}}.sessions(id),
        turn_index BIGINT NOT NULL,
        run_id TEXT,
        covered_tip {NAME} NOT NULL,
        cache_key {NAME} UNIQUE,
        template_name TEXT NOT NULL,
        template_source TEXT NOT NULL,
        template_path TEXT,
        template_hash TEXT NOT NULL,
        fidelity TEXT NOT NULL,
        model_alias TEXT NOT NULL,
        compiled_prompt TEXT,
        raw_output TEXT,
        summary TEXT,
        summary_json TEXT,
        input_payload TEXT,
        sections_included TEXT NOT NULL,
        sections_dropped TEXT NOT NULL,
        budget_used BIGINT NOT NULL,
        survival DOUBLE PRECISION,
        latency_ms DOUBLE PRECISION NOT NULL,
        usage TEXT NOT NULL,
        status TEXT NOT NULL,
        error TEXT,
        created_at {NAME} NOT NULL,
        seal TEXT NOT NULL
    )""",
    """CREATE INDEX summaries_of_session ON {schema}.context_summaries (
        session, template_name, model_alias, usage, latency_ms
    )""",
    f"""CREATE TABLE {{schema}}.cycles (
        rowid BIGINT NOT NULL UNIQUE,
        session BIGINT NOT NULL REFERENCES {{schema}}.sessions(id),
        raw_tip {NAME} NOT NULL,
        config TEXT NOT NULL,
        state {NAME} NOT NULL,
        seal TEXT NOT NULL,
        PRIMARY KEY (raw_tip, config, session)
    )""",
    "CREATE INDEX cycles_of_session ON {schema}.cycles (session)",
    f"""CREATE TABLE {{schema}}.views (
        id BIGINT PRIMARY KEY,
        session BIGINT NOT NULL REFERENCES {{schema}}.sessions(id),
        turn_index BIGINT NOT NULL,
        run_id TEXT,
        request_index BIGINT NOT NULL,
        raw_tip {NAME},
        view_tip {NAME},
        summary BIGINT REFERENCES {{schema}}.context_summaries(id),
        status TEXT NOT NULL,
        error TEXT,
        budget BIGINT,
        tokens_raw BIGINT NOT NULL,
        tokens_sent BIGINT NOT NULL,
        tokens_exact BIGINT NOT NULL,
        ratio DOUBLE PRECISION NOT NULL,
        ledger TEXT NOT NULL,
        request_hash TEXT,
        latency_ms DOUBLE PRECISION NOT NULL,
        created_at {NAME} NOT NULL,
        model TEXT NOT NULL,            -- this and the next four repeat values of the ledger
        provider TEXT,
        cached BIGINT NOT NULL,
        cached_raw BIGINT NOT NULL,
        tokens_recall BIGINT NOT NULL,
        seal TEXT NOT NULL
    )""",
    """CREATE UNIQUE INDEX views_once ON {schema}.views (
        session, coalesce(run_id, ''), request_index, coalesce(raw_tip, ''), coalesce(view_tip, '')
    )""",
    "CREATE INDEX views_of_session ON {schema}.views (session, id)",
    "CREATE INDEX views_of_summary ON {schema}.views (summary, session)",
    """CREATE INDEX views_summed ON {schema}.views (
        session, model, provider, tokens_raw, tokens_sent, cached, cached_raw, tokens_recall, status, latency_ms,
        created_at
    )""",
    f"""CREATE TABLE {{schema}}.memories (
        id {NAME} PRIMARY KEY,
        parent {NAME},
        content {NAME} NOT NULL,
        position BIGINT NOT NULL,
        created_at {NAME} NOT NULL
    )""",
    "CREATE INDEX memories_by_content ON {schema}.memories (content)",
    f"""CREATE TABLE {{schema}}.commits (
        id {NAME} PRIMARY KEY,
        session BIGINT NOT NULL REFERENCES {{schema}}.sessions(id),
        parent {NAME},
        memory_tip {NAME},
        turns_tip {NAME},
        state {NAME},
        memories BIGINT NOT NULL,
        turns BIGINT NOT NULL,
        author TEXT NOT NULL,
        message TEXT NOT NULL,
        created_at {NAME} NOT NULL
    )""",
    "CREATE INDEX commits_of_session ON {schema}.commits (session)",
    f"""CREATE TABLE {{schema}}.spaces (
        session BIGINT PRIMARY KEY REFERENCES {{schema}}.sessions(id),
        memory_tip {NAME},
        head {NAME},
        turns_tip {NAME},
        state TEXT
    )""",
    f"""CREATE TABLE {{schema}}.scores (
        id BIGINT PRIMARY KEY,
        session BIGINT NOT NULL REFERENCES {{schema}}.sessions(id),
        turn_index BIGINT NOT NULL,
        turns_tip {NAME},
        quality DOUBLE PRECISION NOT NULL,
        health DOUBLE PRECISION NOT NULL,
        tokens BIGINT NOT NULL,
        summarized BIGINT NOT NULL,
        checkpoint TEXT,
        rolled_back BIGINT NOT NULL,
        trouble TEXT,
        created_at {NAME} NOT NULL,
        seal TEXT NOT NULL
    )""",
    "CREATE INDEX scores_of_session ON {schema}.scores (session)",
    f"""CREATE TABLE {{schema}}.live_memories (
        id BIGINT PRIMARY KEY,
        session BIGINT NOT NULL REFERENCES {{schema}}.sessions(id),
        memory {NAME} NOT NULL,
        UNIQUE (session, memory)
    )""",
    """CREATE TABLE {schema}.layers (
        rowid BIGINT NOT NULL UNIQUE,
        session BIGINT NOT NULL UNIQUE REFERENCES {schema}.sessions(id),
        version BIGINT NOT NULL,
        state TEXT NOT NULL,
        seal TEXT NOT NULL
    )""",
    f"""CREATE TABLE {{schema}}.actions (
        rowid BIGINT NOT NULL UNIQUE,
        session BIGINT NOT NULL REFERENCES {{schema}}.sessions(id),
        number BIGINT NOT NULL,
        kind TEXT NOT NULL,
        tip {NAME} NOT NULL,
        state TEXT NOT NULL,
        summary BIGINT REFERENCES {{schema}}.context_summaries(id),
        created_at {NAME} NOT NULL,
        seal TEXT NOT NULL,
        UNIQUE (session, number)
    )""",
    "CREATE INDEX actions_of_summary ON {schema}.actions (summary)",
    """CREATE TABLE {schema}.conversations (
        rowid BIGINT NOT NULL UNIQUE,
        session BIGINT NOT NULL UNIQUE REFERENCES {schema}.sessions(id),
        scope TEXT,
        head TEXT,
        tips TEXT NOT NULL,
        state TEXT NOT NULL,
        revision TEXT NOT NULL,
        updated_at TEXT NOT NULL,
        seal TEXT NOT NULL
    )""",
    f"""CREATE TABLE {{schema}}.entries (
        owner TEXT NOT NULL,
        id TEXT NOT NULL,
        parent TEXT,
        node {NAME} NOT NULL,
        content {NAME},
        PRIMARY KEY (owner, id)
    )""",
    "CREATE INDEX entries_by_id ON {schema}.entries (id)",
    f"""CREATE TABLE {{schema}}.messages_fts (
        number BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        node {NAME} NOT NULL,
        text TEXT,
        words TSVECTOR NOT NULL
    )""",
    "CREATE INDEX messages_by_word ON {schema}.messages_fts USING gin (words)",
    "CREATE INDEX messages_by_node ON {schema}.messages_fts (node)",
    "CREATE TABLE {schema}.memories_fts (id BIGINT PRIMARY KEY, terms TEXT[] NOT NULL)",
    "CREATE INDEX memories_by_term ON {schema}.memories_fts USING gin (terms)",
)

RECORD_TOOLS = (
    f"""CREATE TABLE {{schema}}.toolsets (
        id BIGINT PRIMARY KEY,
        session BIGINT NOT NULL REFERENCES {{schema}}.sessions(id),
        request_hash TEXT NOT NULL,
        content {NAME} NOT NULL,
        seal TEXT NOT NULL,
        UNIQUE (session, request_hash)
    )""",
    f"""CREATE TABLE {{schema}}.under_way (
        session BIGINT PRIMARY KEY REFERENCES {{schema}}.sessions(id),
        model TEXT NOT NULL,
        started_at {NAME} NOT NULL,
        expires_at {NAME} NOT NULL
    )""",
)

WAITING = (
    "ALTER TABLE {schema}.messages_fts ALTER words DROP NOT NULL",
    "CREATE INDEX messages_waiting ON {schema}.messages_fts (number) WHERE words IS NULL",
    "ALTER TABLE {schema}.contents ALTER body SET STORAGE EXTERNAL",  # bodies are already compressed
)
"""Allows texts without words, which are not indexed yet; a search reads them one by one."""

RECORD_LAYER_PAGES = (
    f"""CREATE TABLE {{schema}}.layer_pages (
        session BIGINT NOT NULL REFERENCES {{schema}}.sessions(id),
        name {NAME} NOT NULL,
        body TEXT NOT NULL,
        UNIQUE (session, name)
    )""",
)

RECORD_COUNTERS = (
    f"CREATE TABLE {{schema}}.counters (name {NAME} PRIMARY KEY, number BIGINT NOT NULL, at DOUBLE PRECISION NOT NULL)",
)

RECORD_CLAIMS = (
    f"CREATE TABLE {{schema}}.claims (name {NAME} PRIMARY KEY, holder TEXT NOT NULL, until DOUBLE PRECISION NOT NULL)",
)

ONLY_WORDS = (
    "DROP INDEX {schema}.messages_by_word",
    "CREATE INDEX messages_by_word ON {schema}.messages_fts USING gin (words) WHERE words IS NOT NULL",
)
"""Leaves texts that are not indexed yet out of the index of words."""

NUMBERED = (
    *("sessions", "context_summaries", "views", "scores", "cycles", "layers", "live_memories"),
    *("conversations", "actions", "toolsets"),
)
"""Tables with row numbers. A number is drawn before its row is written, because the seal covers it."""

TABLES = (
    *("contents", "nodes", "sessions", "copies", "context_summaries", "cycles", "views", "layers", "actions"),
    *(
        "layer_pages",
        "memories",
        "commits",
        "spaces",
        "scores",
        "live_memories",
        "conversations",
        "entries",
        "toolsets",
        "under_way",
        "counters",
        "claims",
        "messages_fts",
        "memories_fts",
    ),
)

REFERENCES = (
    ("nodes", "parent", "nodes", "id"),
    ("nodes", "content", "contents", "hash"),
    ("nodes", "instructions", "contents", "hash"),
    ("copies", "node", "nodes", "id"),
    ("copies", "content", "contents", "hash"),
    ("cycles", "state", "contents", "hash"),
    ("memories", "parent", "memories", "id"),
    ("memories", "content", "contents", "hash"),
    ("commits", "parent", "commits", "id"),
    ("commits", "memory_tip", "memories", "id"),
    ("commits", "state", "contents", "hash"),
    ("spaces", "memory_tip", "memories", "id"),
    ("spaces", "head", "commits", "id"),
    ("live_memories", "memory", "memories", "id"),
    ("entries", "node", "nodes", "id"),
    ("entries", "content", "contents", "hash"),
    ("toolsets", "content", "contents", "hash"),
)
"""References that are not foreign keys, as `(table, column, referenced table, referenced column)`."""

SAVE = Path(__file__).with_name("save_request.sql")
"""File with the SQL function that saves a request."""

RECORD = Component(
    name="record",
    version=VERSION,
    statements=(
        *CREATE,
        *RECORD_TOOLS,
        *WAITING,
        *ONLY_WORDS,
        *RECORD_LAYER_PAGES,
        *RECORD_COUNTERS,
        *RECORD_CLAIMS,
        *(f"CREATE SEQUENCE {{schema}}.{table}_numbers" for table in NUMBERED),
        SAVE,
    ),
)
