-- Writes everything that a request adds to the record, in one call, which is one transaction.
-- Returns the number of the request, or 0 for a history without a request. If the record is not in the state that the
-- caller assumes, it writes nothing and returns NULL.
-- Each statement sees what other transactions have committed by then. If one of them wrote the same row meanwhile, a unique
-- violation is raised, and the caller retries. A row that is numbered here is passed with the digest of its values in place
-- of its seal. Contents are passed as their stored bytes, and rows as row literals. A join checks that no message or content
-- is missing, because its plan starts in half the time of one that counts the existing rows.
CREATE FUNCTION {schema}.save_request(
    patience TEXT,         -- lock_timeout, or NULL
    anchors TEXT[],        -- messages that the new ones follow
    kept TEXT[],           -- contents that must already be stored
    kept_tools TEXT,       -- the hash of a request whose tools must already be stored, or NULL
    hashes TEXT[],
    bodies BYTEA[],
    new_ids TEXT[],        -- of messages
    new_parents TEXT[],
    new_contents TEXT[],
    new_positions BIGINT[],
    new_instructions TEXT[],
    text_nodes TEXT[],     -- messages of the texts for the search index
    text_bodies TEXT[],
    a_session TEXT,
    former_seal TEXT,      -- the seal of the session that the caller knows, or NULL if the session is new
    new_summary TEXT,
    new_cycles TEXT[],
    new_toolset TEXT,
    new_view TEXT          -- NULL for a history without a request
) RETURNS BIGINT LANGUAGE plpgsql
SET plan_cache_mode = 'force_generic_plan'  -- plan by keys, whatever the number of rows
SET enable_seqscan = 'off'
AS $$
DECLARE
    the_session {schema}.sessions := a_session::{schema}.sessions;
    the_summary {schema}.context_summaries;
    the_cycle {schema}.cycles;
    the_tools {schema}.toolsets;
    the_view {schema}.views := new_view::{schema}.views;
    a_row TEXT;
    ignored TEXT;
BEGIN
    IF patience IS NOT NULL THEN
        ignored := set_config('lock_timeout', patience, true);
    END IF;
    PERFORM pg_advisory_xact_lock_shared({lock}, 1);
    IF former_seal IS NULL THEN
        INSERT INTO {schema}.sessions SELECT the_session.*
        WHERE NOT EXISTS (SELECT FROM unnest(anchors) a LEFT JOIN {schema}.nodes n ON n.id = a WHERE n.id IS NULL)
            AND NOT EXISTS (SELECT FROM unnest(kept) k LEFT JOIN {schema}.contents c ON c.hash = k WHERE c.hash IS NULL);
    ELSE
        UPDATE {schema}.sessions s SET raw_tip = the_session.raw_tip, seal = the_session.seal
        WHERE s.id = the_session.id AND s.seal = former_seal
            AND NOT EXISTS (SELECT FROM unnest(anchors) a LEFT JOIN {schema}.nodes n ON n.id = a WHERE n.id IS NULL)
            AND NOT EXISTS (SELECT FROM unnest(kept) k LEFT JOIN {schema}.contents c ON c.hash = k WHERE c.hash IS NULL)
            AND (kept_tools IS NULL OR EXISTS (
                SELECT FROM {schema}.toolsets t WHERE t.session = s.id AND t.request_hash = kept_tools
            ));
    END IF;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    IF cardinality(hashes) > 0 THEN
        INSERT INTO {schema}.contents SELECT * FROM unnest(hashes, bodies) ON CONFLICT DO NOTHING;
    END IF;
    IF cardinality(new_ids) > 0 THEN
        INSERT INTO {schema}.nodes
            SELECT * FROM unnest(new_ids, new_parents, new_contents, new_positions, new_instructions);
    END IF;
    IF cardinality(text_nodes) > 0 THEN
        INSERT INTO {schema}.messages_fts (node, text) SELECT * FROM unnest(text_nodes, text_bodies);
    END IF;
    IF new_summary IS NOT NULL THEN
        the_summary := new_summary::{schema}.context_summaries;
        INSERT INTO {schema}.context_summaries VALUES (the_summary.*);
    END IF;
    FOREACH a_row IN ARRAY new_cycles LOOP
        the_cycle := a_row::{schema}.cycles;
        the_cycle.rowid := nextval('{schema}.cycles_numbers');
        the_cycle.seal := left(encode(sha256(convert_to(the_cycle.rowid || ':' || the_cycle.seal, 'UTF8')), 'hex'), 16);
        INSERT INTO {schema}.cycles VALUES (the_cycle.*)
            ON CONFLICT (raw_tip, config, session)
            DO UPDATE SET rowid = excluded.rowid, state = excluded.state, seal = excluded.seal;
    END LOOP;
    IF new_toolset IS NOT NULL THEN
        the_tools := new_toolset::{schema}.toolsets;
        the_tools.id := nextval('{schema}.toolsets_numbers');
        the_tools.seal := left(encode(sha256(convert_to(the_tools.id || ':' || the_tools.seal, 'UTF8')), 'hex'), 16);
        INSERT INTO {schema}.toolsets VALUES (the_tools.*);
    END IF;
    IF new_view IS NULL THEN
        RETURN 0;
    END IF;
    the_view.id := nextval('{schema}.views_numbers');
    the_view.seal := left(encode(sha256(convert_to(the_view.id || ':' || the_view.seal, 'UTF8')), 'hex'), 16);
    INSERT INTO {schema}.views VALUES (the_view.*);
    RETURN the_view.id;
END $$
