"""Forks gateways from a process that has imported everything: a start costs a tenth of a second.

Importing LangGraph takes seconds of processor time, and a test that kills its server hundreds of
times pays for it each time. A zygote pays once. It imports, waits, and forks a child for each
start; the child gets its environment, its standard output and its log, and runs the command line
as `python -m gateway` would. It forks before any event loop or thread exists.

The zygote belongs to the process that made it: when that one is gone, so are all gateways.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, Any, NoReturn

ROOT = Path(__file__).parents[2]
PRELOADED = (
    "gateway.__main__",
    "tests.acceptance.serve_graphs",
    "tests.acceptance.chaos_graphs",
)
_MESSAGE = 1 << 20  # bytes; longer than any environment
_POLL = 0.005  # seconds


class Child:
    """A forked gateway, with as much of `subprocess.Popen` as tests use.

    `stdout` is what it prints. Its exit status is -N if signal N ended it.
    """

    def __init__(self, zygote: Zygote, pid: int, stdout: IO[str]) -> None:
        self.pid = pid
        self.stdout = stdout
        self.returncode: int | None = None
        self._zygote = zygote

    def poll(self) -> int | None:
        """The exit status, None while it runs."""
        if self.returncode is None:
            self.returncode = self._zygote.ask({"poll": self.pid})["status"]
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit status, once it is there. Raises `subprocess.TimeoutExpired`."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (status := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("gateway", timeout or 0)
            time.sleep(_POLL)
        return status

    def send_signal(self, number: int) -> None:
        """Nothing, if it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)


class Zygote:
    """The process that forks; made once by `zygote`, ended with this process."""

    def __init__(self) -> None:
        self._mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process = subprocess.Popen(
            [sys.executable, "-m", __spec__.name, str(theirs.fileno())],
            cwd=ROOT,
            pass_fds=[theirs.fileno()],
        )
        theirs.close()
        self._turn = threading.Lock()  # a question and its answer belong together

    def start(self, arguments: Sequence[str], environ: Mapping[str, str], log: IO[str]) -> Child:
        """`python -m gateway` with these arguments and this environment; its log goes to `log`."""
        ours, theirs = os.pipe()
        task = json.dumps({"argv": list(arguments), "environ": dict(environ)}).encode()
        with self._turn:
            socket.send_fds(self._mine, [task], [theirs, log.fileno()])
            os.close(theirs)
            pid = self._answer()["pid"]
        return Child(self, pid, os.fdopen(ours))

    def run(self, arguments: Sequence[str], environ: Mapping[str, str], log: IO[str]) -> int:
        """The exit status of a command that ends by itself; what it prints goes unread."""
        child = self.start(arguments, environ, log)
        with child.stdout as printed:
            printed.read()
        return child.wait(60)

    def ask(self, question: Mapping[str, Any]) -> Any:
        """One question, one answer."""
        with self._turn:
            self._mine.send(json.dumps(question).encode())
            return self._answer()

    def close(self) -> None:
        self._mine.close()
        self._process.wait()

    def _answer(self) -> Any:
        answer = self._mine.recv(_MESSAGE)
        assert answer, "the zygote ended"
        return json.loads(answer)


@cache
def zygote() -> Zygote:
    """The one of this process."""
    made = Zygote()
    atexit.register(made.close)
    return made


# --- in the zygote -----------------------------------------------------------------------------


def _main(control: socket.socket) -> None:
    for name in PRELOADED:
        __import__(name)
    gc.collect()
    gc.freeze()  # children must not copy pages by counting what they never use
    children: dict[int, int | None] = {}
    while True:
        message, descriptors, *_ = socket.recv_fds(control, _MESSAGE, 2)
        if not message:
            break
        task = json.loads(message)
        if "poll" in task:
            _send(control, {"status": _reap(children, task["poll"])})
            continue
        pid = os.fork()
        if pid == 0:
            control.close()
            _become(task, *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        children[pid] = None
        _send(control, {"pid": pid})
    for pid, status in children.items():
        if status is None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _send(control: socket.socket, answer: Mapping[str, Any]) -> None:
    control.send(json.dumps(answer).encode())


def _reap(children: dict[int, int | None], pid: int) -> int | None:
    if children[pid] is None:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            children[pid] = os.waitstatus_to_exitcode(status)
    return children[pid]


def _become(task: Mapping[str, Any], stdout: int, log: int) -> NoReturn:
    """Be the gateway, in the forked child; never returns."""
    from gateway.__main__ import main

    status = 70
    try:
        os.environ.clear()
        os.environ.update(task["environ"])
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(stdout, 1)
        os.dup2(log, 2)
        os.closerange(3, 64)
        sys.argv = ["fermata", *task["argv"]]
        status = main(task["argv"])
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else 1
    except BaseException:  # noqa: BLE001  # as the interpreter does it at its end
        sys.excepthook(*sys.exc_info())
    finally:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    _main(socket.socket(fileno=int(sys.argv[1])))
