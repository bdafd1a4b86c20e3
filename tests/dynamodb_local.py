"""Amazon's own DynamoDB Local: tables that obey DynamoDB's rules as its makers read them.

It is fetched once into the checkout's `.wakala/cache`, checked against a digest, and started for
each session on a port of its own. Where it cannot be had, a test that asks for it is skipped and
says why; on a machine that proves things (CI=true) that is an error.
"""

import base64
import contextlib
import hashlib
import os
import shutil
import signal
import socket
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.engine import Aws, free_port
from wakala import engine
from wakala.home import checkout, exclusively

PACKAGE: Final = "amplify-dynamodb-simulator"
PACKAGE_VERSION: Final = "2.9.30"
PACKAGE_SHA512: Final = (
    "xTeeRLvzEfqyd5lh3bH4c0kHvSHHmmhD5ZDsHFKAQ5g2Zl6JqlFdutaQhCLHzxEp6Ry1o7TB6niIoXuQAnSewQ=="
)
"""Of the package's archive, in base64. It is Amazon's, and holds DynamoDB Local in `emulator/`."""
VERSION: Final = "1.25.1"
"""Of DynamoDB Local itself."""

HEAP: Final = "-Xmx512m"
FETCH_SECONDS_MAX = 180
START_SECONDS_MAX = 30.0
STOP_SECONDS_MAX = 10.0

# Java ends when the session does, however that ends: then nobody holds the other end of stdin.
UNTIL_STDIN_CLOSES: Final = """
exec 3<&0
"$@" </dev/null 3<&- & java=$!
{ cat <&3 >/dev/null; kill "$java" 2>/dev/null; } &
exec 3<&-
wait "$java"
"""


class Missing(Exception):
    """DynamoDB Local cannot be had on this machine, and why."""


@pytest.fixture(scope="session")
def aws_dynamodb_local(aws: Aws, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Aws]:
    """Tables on DynamoDB Local; queues and buses, which it has not, on the other engine."""
    try:
        folder = fetched()
    except Missing as error:
        reason = f"no DynamoDB Local: {error}"
        if os.environ.get("CI") == "true":
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    with running(folder, tmp_path_factory.mktemp("dynamodb-local") / "log") as url:
        yield Aws(aws.endpoint_url, tables_url=url)


def fetched() -> Path:
    """The folder of DynamoDB Local, which is whole or is not there. Raises `Missing`."""
    require("java")
    cache = checkout() / ".wakala" / "cache"
    folder = cache / f"dynamodb-local-{VERSION}"
    with exclusively(cache / "dynamodb-local.lock"):
        if not folder.is_dir():
            require("npm")
            with tempfile.TemporaryDirectory(dir=cache, prefix="fetching-") as fetching:
                # Only a rename puts it in its place: a run that is killed leaves no half of it.
                unpacked(archive(Path(fetching)), Path(fetching)).rename(folder)
    return folder


def require(command: str) -> None:
    """Raise `Missing` where this machine has no such command."""
    if shutil.which(command) is None:
        raise Missing(f"it needs {command}")


def archive(folder: Path) -> Path:
    """The package as published, put into `folder`. Raises `Missing` where it cannot be had."""
    wanted = f"{PACKAGE}@{PACKAGE_VERSION}"
    said = run("npm", "pack", wanted, "--pack-destination", str(folder), "--ignore-scripts")
    found = next(folder.glob("*.tgz"), None)
    if found is None:
        raise Missing(f"npm gave no archive of {wanted}: {said}")
    require_digest(found, PACKAGE_SHA512)
    return found


def require_digest(file: Path, sha512: str) -> None:
    """Fail, CI or not, where the file is another than the one that was pinned."""
    with file.open("rb") as content:
        digest = hashlib.file_digest(content, "sha512").digest()
    found = base64.b64encode(digest).decode()
    assert found == sha512, f"{file.name} is not the one that was pinned: sha512 {found}"


def unpacked(package: Path, folder: Path) -> Path:
    """The folder of DynamoDB Local out of the package; it must start, and be the right version."""
    with tarfile.open(package) as tar:
        ours = [each for each in tar.getmembers() if each.name.startswith("package/emulator/")]
        tar.extractall(folder, ours, filter="data")
    found = folder / "package" / "emulator"
    version = run("java", "-jar", str(found / "DynamoDBLocal.jar"), "-version").strip()
    if version != VERSION:
        raise Missing(f"its version should be {VERSION}: java said {version!r}")
    return found


def run(*command: str) -> str:
    """What a command prints. Raises `Missing` where it fails."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=FETCH_SECONDS_MAX
        )
    except subprocess.CalledProcessError as error:
        raise Missing(f"{command[0]} failed: {last_line(error.stderr)}") from error
    except subprocess.TimeoutExpired as error:
        raise Missing(f"{command[0]} took more than {FETCH_SECONDS_MAX} s") from error
    return done.stdout


def last_line(text: str) -> str:
    """What a program said last."""
    return next((line for line in reversed(text.splitlines()) if line.strip()), "it said nothing")


@contextlib.contextmanager
def running(folder: Path, log: Path) -> Iterator[str]:
    """Start it with nothing in it, wait until it answers, give its address; end it after."""
    port = free_port()
    # It would tell its makers of every start.
    java = ("java", HEAP, "-Djava.library.path=DynamoDBLocal_lib", "-jar", "DynamoDBLocal.jar")
    options = ("-inMemory", "-disableTelemetry", "-port", str(port))
    with log.open("w") as output:
        process = subprocess.Popen(
            ["/bin/sh", "-c", UNTIL_STDIN_CLOSES, "sh", *java, *options],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # an interrupt is the session's, which then ends it in order
        )
    assert process.stdin is not None
    try:
        await_answer(process, port, log)
        yield f"http://{engine.LOOPBACK}:{port}"
    finally:
        process.stdin.close()
        try:
            process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)


def await_answer(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """Return when it takes connections; fail where it ends or stays silent."""
    deadline = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < deadline:
        if process.poll() is not None:
            pytest.fail(f"DynamoDB Local ended while starting: {last_line(log.read_text())}")
        with contextlib.suppress(OSError):
            socket.create_connection((engine.LOOPBACK, port), timeout=1).close()
            return
        time.sleep(0.05)
    pytest.fail(f"DynamoDB Local did not answer in {START_SECONDS_MAX:.0f} s; see {log}")
