-- Vectors that pgvector searches, for archives that chose it. This file can run several times. If the extension is not installed,
-- or this user may not create it, nothing happens, and the next start of a server tries again. The type has no dimension, since
-- models differ. Partitions with many vectors each get a separate index, which does not belong to the schema.
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_available_extensions WHERE name = 'vector') THEN
        RETURN;
    END IF;
    CREATE EXTENSION IF NOT EXISTS vector;
    -- Filters before the limit need 0.8.
    IF (SELECT string_to_array(extversion, '.')::int[] < ARRAY[0, 8] FROM pg_extension WHERE extname = 'vector') THEN
        RETURN;
    END IF;
    CREATE TABLE IF NOT EXISTS search_pgvector (
        partition TEXT COLLATE "C" NOT NULL,
        model TEXT COLLATE "C" NOT NULL,
        document BIGINT NOT NULL,
        dimension BIGINT NOT NULL,
        created_at BIGINT NOT NULL,
        role TEXT COLLATE "C" NOT NULL,
        conversation TEXT COLLATE "C" NOT NULL,
        user_id TEXT COLLATE "C" NOT NULL,
        tags TEXT[] COLLATE "C" NOT NULL,
        embedding VECTOR NOT NULL,
        CONSTRAINT pk_search_pgvector PRIMARY KEY (partition, model, document)
    );
EXCEPTION WHEN OTHERS THEN
    -- Whatever it is, nobody needs pgvector to start; this block leaves nothing behind then.
    RAISE WARNING 'pgvector cannot be used: %', SQLERRM;
END
$$
