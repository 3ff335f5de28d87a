-- Everything that a request adds to the record, in one call, which is one transaction; migration 3 of the record.
-- Rows come as JSON of their tables, sealed, with their numbers; contents as their stored bytes. Each statement sees what
-- others have committed by then. A row that another transaction wrote or removed meanwhile is an error of a class after
-- which the caller begins anew: a unique violation, or `serialization_failure`.
CREATE FUNCTION {schema}.save_request(
    patience TEXT,         -- lock_timeout, or NULL
    anchors TEXT[],        -- messages that the new ones follow
    kept TEXT[],           -- contents of cycles and tools
    hashes TEXT[],
    bodies BYTEA[],
    new_nodes JSON,
    new_texts JSON,        -- of the search index
    a_session JSON,
    is_new_session BOOLEAN,
    new_summaries JSON,
    new_cycles JSON,
    new_toolsets JSON,
    new_views JSON
) RETURNS VOID LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('lock_timeout', patience, true) WHERE patience IS NOT NULL;
    PERFORM pg_advisory_xact_lock_shared({lock}, 1);
    IF is_new_session THEN
        INSERT INTO {schema}.sessions SELECT * FROM json_populate_record(NULL::{schema}.sessions, a_session);
    ELSE
        UPDATE {schema}.sessions s SET raw_tip = n.raw_tip, seal = n.seal
        FROM json_populate_record(NULL::{schema}.sessions, a_session) n WHERE s.id = n.id;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'the session was removed meanwhile' USING ERRCODE = 'serialization_failure';
        END IF;
    END IF;
    INSERT INTO {schema}.contents SELECT * FROM unnest(hashes, bodies) ON CONFLICT DO NOTHING;
    INSERT INTO {schema}.nodes SELECT * FROM json_populate_recordset(NULL::{schema}.nodes, new_nodes);
    INSERT INTO {schema}.messages_fts (node, text, words)
        SELECT node, text, words FROM json_populate_recordset(NULL::{schema}.messages_fts, new_texts);
    INSERT INTO {schema}.context_summaries
        SELECT * FROM json_populate_recordset(NULL::{schema}.context_summaries, new_summaries);
    DELETE FROM {schema}.cycles c USING json_populate_recordset(NULL::{schema}.cycles, new_cycles) n
        WHERE c.raw_tip = n.raw_tip AND c.config = n.config AND c.session = n.session;
    INSERT INTO {schema}.cycles SELECT * FROM json_populate_recordset(NULL::{schema}.cycles, new_cycles);
    INSERT INTO {schema}.toolsets SELECT * FROM json_populate_recordset(NULL::{schema}.toolsets, new_toolsets);
    INSERT INTO {schema}.views SELECT * FROM json_populate_recordset(NULL::{schema}.views, new_views);
    IF (SELECT count(*) FROM {schema}.nodes WHERE id = ANY(anchors)) < cardinality(anchors)
        OR (SELECT count(*) FROM {schema}.contents WHERE hash = ANY(kept)) < cardinality(kept) THEN
        RAISE EXCEPTION 'a message was removed meanwhile' USING ERRCODE = 'serialization_failure';
    END IF;
END $$
