"""The tests' own proxy and pooler do what they are for: a test behind a tame one proves nothing."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from tests.postgres.pooler import pooled
from tests.postgres.proxy import BEFORE, COMMIT, COMMITTED, proxied


def rows(url: str) -> int:
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT count(*) FROM fermata.api_keys").fetchone()
    return int(row[0]) if row else 0


def insert(url: str, *, autocommit: bool) -> None:
    """The gateway's statement `create_key`, as its client library sends it."""
    text = (
        "INSERT INTO fermata.api_keys (id, digest, tenant, subject, roles)\n"
        "VALUES (%(id)s, %(digest)s, %(tenant)s, %(subject)s, %(roles)s::text[]);"
    )
    key = {"id": "key", "digest": b"0" * 32, "tenant": "t", "subject": "s", "roles": []}
    with psycopg.connect(url, autocommit=autocommit) as connection:
        connection.execute(text, key)


@pytest.mark.parametrize("autocommit", [True, False], ids=["autocommit", "transaction"])
@pytest.mark.parametrize(
    ("when", "stored"), [(BEFORE, 0), (COMMIT, 0), (COMMITTED, 1)], ids=["before", "commit", "done"]
)
def test_a_trap_holds_a_transaction_at_its_point(
    database_url: str, when: str, stored: int, autocommit: bool
) -> None:
    with proxied(database_url) as proxy, ThreadPoolExecutor() as pool:
        with proxy.trap("create_key", when) as trap:
            done = pool.submit(insert, proxy.url, autocommit=autocommit)
            trap.wait()
            assert rows(database_url) == stored
            assert not done.done()
            trap.cut()
            with pytest.raises(psycopg.OperationalError):
                done.result()
        assert rows(database_url) == stored
        with psycopg.connect(database_url) as connection:
            connection.execute("DELETE FROM fermata.api_keys")
        with proxy.trap("create_key", when) as trap:
            done = pool.submit(insert, proxy.url, autocommit=autocommit)
            trap.wait()
            trap.release()
            done.result()
        assert rows(database_url) == 1


def test_a_database_that_is_away_is_away_for_everybody(database_url: str) -> None:
    with proxied(database_url) as proxy:
        with psycopg.connect(proxy.url) as connection:
            connection.execute("SELECT 1")
            with proxy.away():
                with pytest.raises(psycopg.OperationalError):
                    connection.execute("SELECT 1")
                with pytest.raises(psycopg.OperationalError):
                    psycopg.connect(proxy.url)
        assert rows(proxy.url) == 0


def test_behind_the_pooler_every_transaction_may_meet_another_backend(database_url: str) -> None:
    question = "SELECT pg_backend_pid()"
    with (
        pooled(database_url, size=3) as pooler,
        psycopg.connect(pooler.url, autocommit=True, prepare_threshold=None) as client,
    ):
        alone = {client.execute(question).fetchone() for _ in range(6)}
        with client.transaction():
            together = {client.execute(question).fetchone() for _ in range(6)}
    assert len(alone) == 3
    assert len(together) == 1


def test_behind_the_pooler_session_state_is_lost(database_url: str) -> None:
    with (
        pooled(database_url) as pooler,
        psycopg.connect(pooler.url, autocommit=True, prepare_threshold=0) as preparing,
        psycopg.connect(pooler.url, autocommit=True, prepare_threshold=None) as client,
    ):
        # It is prepared in one transaction and used in the next.
        with pytest.raises(psycopg.errors.InvalidSqlStatementName):
            preparing.execute("SELECT 1")
        client.execute("SET statement_timeout = 12345")
        shown = client.execute("SHOW statement_timeout").fetchone()
        assert shown != ("12345ms",)
        client.execute("SELECT pg_advisory_lock(1)")
        unlocked = client.execute("SELECT pg_advisory_unlock(1)").fetchone()
        assert unlocked == (False,), "another session's"


def test_what_a_client_left_in_the_middle_is_nobody_elses(database_url: str) -> None:
    with pooled(database_url, size=1) as pooler:
        client = psycopg.connect(pooler.url)
        client.execute("CREATE TABLE left_behind ()")
        client.close()
        with psycopg.connect(pooler.url, prepare_threshold=None) as other:
            there = other.execute("SELECT to_regclass('left_behind')").fetchone()
    assert there == (None,)
