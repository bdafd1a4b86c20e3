"""Where the command keeps its state, and where it finds the checkout that it builds from."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from wakala.output import Problem


def checkout() -> Path:
    """The repository that this command runs from. Problem where it was installed without one."""
    root = Path(__file__).resolve().parents[2]
    if not (root / "requirements" / "engine.txt").is_file():
        raise Problem(f"{root} is no clone of the repository: run wakala from one")
    return root


def home() -> Path:
    """The folder of all local state: `.wakala` in the checkout, or what WAKALA_HOME names."""
    named = os.environ.get("WAKALA_HOME")
    folder = Path(named).resolve() if named else Path(__file__).resolve().parents[2] / ".wakala"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


@contextmanager
def exclusively(lock: Path) -> Iterator[None]:
    """Wait until no other process holds `lock`, then hold it for the body."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def write_private(path: Path, text: str) -> None:
    """Replace `path` at once, readable by its owner alone."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    fresh.replace(path)
