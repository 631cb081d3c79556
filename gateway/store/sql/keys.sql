-- API keys. Parameters and comments as in queries.sql.

-- name: create_key
INSERT INTO fermata.api_keys (id, digest, tenant, subject, roles)
VALUES (%(id)s, %(digest)s, %(tenant)s, %(subject)s, %(roles)s::text[]);

-- name: find_key
-- By the id alone: the secret is compared by its digest, in constant time, in the process.
SELECT digest, tenant, subject, roles
  FROM fermata.api_keys
 WHERE id = %(id)s AND revoked_at IS NULL;

-- name: list_keys
SELECT id, tenant, subject, roles, created_at, revoked_at
  FROM fermata.api_keys
 ORDER BY created_at, id;

-- name: revoke_key
-- The first revocation stands. A row back means that there is such a key, revoked now or before.
UPDATE fermata.api_keys SET revoked_at = coalesce(revoked_at, now())
 WHERE id = %(id)s
RETURNING id;
