"""The local engine: MiniStack, an AWS emulator in one process, started and ended as ours.

A function must find only what Lambda gives it, so MiniStack runs on the interpreter of an
environment that holds boto3 alone, with its own packages appended to `sys.path` in its process
and in no other: a dependency that the layer lacks then fails here as it would on AWS.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import asdict, dataclass
from pathlib import Path

from wakala.home import checkout, exclusively, home, write_private
from wakala.output import Problem

DEFAULT_PORT = 4566
REGION = "us-east-1"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
"""The engine's root user; it knows no other secret."""

START_SECONDS_MAX = 30.0
STOP_SECONDS_MAX = 10.0
LOOPBACK = "127.0.0.1"

STARTER = "import sys; sys.path.append(sys.argv.pop(1))\nfrom ministack.app import main; main()"


@dataclass(frozen=True, slots=True)
class Engine:
    """A running engine of this home. `auth`: whether it enforces IAM."""

    pid: int
    port: int
    auth: bool
    started_at_ms: int

    @property
    def endpoint_url(self) -> str:
        """Where it answers for every AWS service."""
        return f"http://{LOOPBACK}:{self.port}"


def running() -> Engine | None:
    """The engine that this home's `up` started, if it still runs.

    The engine holds a lock from its start to its last breath, and the kernel frees it: a pid
    file that outlived its process, or whose number another process has now, misleads nobody.
    """
    try:
        with _lock_path().open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return None
    except BlockingIOError:
        return Engine(**json.loads(_state_path().read_text(encoding="utf-8")))
    return None


def prepare() -> str:
    """Make the two environments where they are missing or their pins changed; what they hold."""
    environment("ministack", "engine.txt")
    environment("lambda", "runtime.txt")
    return " + ".join(
        f"{name} {_pinned_version(pins, name)}"
        for name, pins in (("ministack", "engine.txt"), ("boto3", "runtime.txt"))
    )


def start(port: int, *, auth: bool) -> Engine:
    """Start the engine on a free loopback port and wait until it answers."""
    _require_free(port)
    shutil.rmtree(_tmp_path(), ignore_errors=True)  # of an engine that was killed
    for folder in (_tmp_path(), _log_path().parent):
        folder.mkdir(parents=True, exist_ok=True)
    with _lock_path().open("a") as lock, _log_path().open("w") as log:
        fcntl.flock(lock, fcntl.LOCK_EX)
        process = subprocess.Popen(
            [_python("lambda"), "-I", "-c", STARTER, _site_packages("ministack")],
            cwd=_tmp_path(),
            env=_engine_environment(port, auth=auth),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            pass_fds=(lock.fileno(),),
            start_new_session=True,
        )
        engine = Engine(process.pid, port, auth, time.time_ns() // 1_000_000)
        write_private(_state_path(), json.dumps(asdict(engine)))
    try:
        _await_health(process, engine)
    except BaseException:
        stop(engine)
        raise
    return engine


def stop(engine: Engine) -> None:
    """End the engine and the worker processes of its functions; its data goes with it."""
    _signal_group(engine.pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_SECONDS_MAX
    while running() is not None and time.monotonic() < deadline:
        time.sleep(0.05)
    _signal_group(engine.pid, signal.SIGKILL)
    with exclusively(_lock_path()):
        _state_path().unlink(missing_ok=True)
        shutil.rmtree(_tmp_path(), ignore_errors=True)


def environment(name: str, pins: str) -> None:
    """A virtual environment with exactly what `requirements/<pins>` lists, made once."""
    folder = _environment_path(name)
    wanted = hashlib.sha256(
        (checkout() / "requirements" / pins).read_bytes() + sys.version.encode()
    ).hexdigest()
    stamp = folder / "pins.sha256"
    with exclusively(folder.with_suffix(".lock")):
        if stamp.is_file() and stamp.read_text(encoding="utf-8") == wanted:
            return
        _run(name, sys.executable, "-m", "venv", "--clear", str(folder))
        _run(
            name,
            *(_python(name), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
            *("--require-hashes", f"--requirement={checkout() / 'requirements' / pins}"),
        )
        stamp.write_text(wanted, encoding="utf-8")


def _run(name: str, *command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or ["no message"]
        raise Problem(f"cannot make the environment {name}: {lines[-1]}")


def _require_free(port: int) -> None:
    if not 0 < port < 65_536:
        raise Problem(f"port {port}: a port is a number from 1 to 65535")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError as error:
            raise Problem(
                f"port {port} is busy with something that wakala did not start:"
                " free it, or choose another with --port or WAKALA_PORT"
            ) from error


def _await_health(process: subprocess.Popen[bytes], engine: Engine) -> None:
    deadline = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise Problem(f"the engine ended while starting: {_last_log_line()}")
        if healthy(engine.endpoint_url):
            return
        time.sleep(0.05)
    raise Problem(f"the engine did not answer in {START_SECONDS_MAX:.0f} s; see {_log_path()}")


def healthy(endpoint_url: str) -> bool:
    """Whether the engine answers."""
    try:
        with urllib.request.urlopen(f"{endpoint_url}/_ministack/health", timeout=2) as answer:  # noqa: S310
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _engine_environment(port: int, *, auth: bool) -> dict[str, str]:
    """Nothing of the caller's: the functions inherit it, and must not come to depend on it."""
    return CREDENTIALS | {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(_tmp_path()),
        "TMPDIR": str(_tmp_path()),
        "LANG": "C.UTF-8",
        "GATEWAY_PORT": str(port),
        "BIND_HOST": LOOPBACK,
        "IOT_MTLS_ENABLED": "0",
        "AUTH": str(auth).lower(),
        "AWS_DEFAULT_REGION": REGION,
    }


def _signal_group(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):  # the engine and all its workers have ended
        os.killpg(pid, number)


def _last_log_line() -> str:
    lines = _log_path().read_text(encoding="utf-8", errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")


def _pinned_version(pins: str, name: str) -> str:
    for line in (checkout() / "requirements" / pins).read_text(encoding="utf-8").splitlines():
        if line.startswith(f"{name}=="):
            return line.removeprefix(f"{name}==").split()[0]
    return "?"


def _environment_path(name: str) -> Path:
    # Not in `home()`: environments are the same for every engine of this checkout.
    return checkout() / ".wakala" / "environments" / name


def _python(name: str) -> str:
    return str(_environment_path(name) / "bin" / "python")


def _site_packages(name: str) -> str:
    major, minor = sys.version_info[:2]
    return str(_environment_path(name) / "lib" / f"python{major}.{minor}" / "site-packages")


def _state_path() -> Path:
    return home() / "engine.json"


def _lock_path() -> Path:
    return home() / "engine.lock"


def _log_path() -> Path:
    return home() / "logs" / "engine.log"


def _tmp_path() -> Path:
    return home() / "tmp"
