-- Row-level security for the record: a role that does not own the tables reads and writes only the rows of one owner.
-- `PostgresStore(…, row_security=True)` sets that owner on its connections:
--   context_compiler.owner   'o:' and the owner
--   context_compiler.prefix  'p:' and the prefix of the names of the owner's messages, contents and memories
-- A connection without these settings sees no rows. The owner of the tables, superusers and roles with BYPASSRLS see all.
-- To enable it, run `await store.enable_row_security("application")` as the owner of the tables. Or replace {schema} by the
-- schema of the record (context_compiler by default), and run this file after
--   SET context_compiler.role = 'application';
-- That role is granted the rights it needs on the tables of the record, and loses its rights on all other tables of the
-- schema, because pipeline runs have no owner, so a role that may read one could read all of them. Without a role, no rights
-- change. Running this file again has no effect.
DO $$
DECLARE
    own CONSTANT TEXT := '''o:'' || owner = current_setting(''context_compiler.owner'', true)';
    of_session CONSTANT TEXT := 'session IN (SELECT id FROM {schema}.sessions)';
    named CONSTANT TEXT := '''p:'' || left(%1$I, strpos(%1$I, ''/'')) = current_setting(''context_compiler.prefix'', true)';
    of_memory CONSTANT TEXT := 'id IN (SELECT id FROM {schema}.live_memories)';
    role CONSTANT TEXT := nullif(current_setting('context_compiler.role', true), '');
    one RECORD;
BEGIN
    IF role IS NOT NULL THEN
        EXECUTE format('REVOKE ALL ON ALL TABLES IN SCHEMA {schema} FROM %I', role);
        EXECUTE format('REVOKE ALL ON ALL SEQUENCES IN SCHEMA {schema} FROM %I', role);
        EXECUTE format('GRANT USAGE ON SCHEMA {schema} TO %I', role);
        EXECUTE format('GRANT SELECT ON {schema}.components TO %I', role);
        EXECUTE format('GRANT SELECT, INSERT, UPDATE ON {schema}.counters TO %I', role);
    END IF;
    FOR one IN SELECT * FROM (VALUES
        ('sessions', own),
        ('entries', own),
        ('contents', format(named, 'hash')),
        ('nodes', format(named, 'id')),
        ('memories', format(named, 'id')),
        ('messages_fts', format(named, 'node')),
        ('claims', format(named, 'name')),
        ('copies', of_session),
        ('context_summaries', of_session),
        ('cycles', of_session),
        ('views', of_session),
        ('layers', of_session),
        ('actions', of_session),
        ('toolsets', of_session),
        ('under_way', of_session),
        ('commits', of_session),
        ('spaces', of_session),
        ('scores', of_session),
        ('live_memories', of_session),
        ('conversations', of_session),
        ('memories_fts', of_memory)
    ) AS policies (name, condition)
    LOOP
        EXECUTE format('ALTER TABLE {schema}.%I ENABLE ROW LEVEL SECURITY', one.name);
        EXECUTE format('DROP POLICY IF EXISTS one_owner ON {schema}.%I', one.name);
        EXECUTE format('CREATE POLICY one_owner ON {schema}.%I USING (%s) WITH CHECK (%s)', one.name, one.condition, one.condition);
        IF role IS NOT NULL THEN
            EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON {schema}.%I TO %I', one.name, role);
            IF to_regclass(format('{schema}.%I', one.name || '_numbers')) IS NOT NULL THEN
                EXECUTE format('GRANT USAGE ON SEQUENCE {schema}.%I TO %I', one.name || '_numbers', role);
            END IF;
        END IF;
    END LOOP;
END $$;
