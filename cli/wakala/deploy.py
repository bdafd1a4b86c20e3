"""`up` and `down`: the engine, and the real `sam build` and `sam deploy` on it."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from wakala import engine
from wakala.engine import Engine
from wakala.home import checkout, exclusively, home, write_private
from wakala.output import Problem, step

ENDPOINT_VARIABLE = "AWS_ENDPOINT_URL"
SOURCES = ("template.yaml", "samconfig.toml", "services", "shared")


def up(stack: str, port: int | None, *, auth: bool) -> None:
    """Engine, build and deployment, each only where it is missing or something changed.

    With AWS_ENDPOINT_URL set, the engine there is the caller's own and none is started.
    """
    with exclusively(home() / "up.lock"):
        own = os.environ.get(ENDPOINT_VARIABLE)
        if own:
            endpoint_url, engine_id = own, None
        else:
            started = _engine(port, auth=auth)
            endpoint_url, engine_id = started.endpoint_url, str(started.started_at_ms)
        with step("Build") as done:
            done.note = build()
        with step("Deploy") as done:
            done.note = f"stack {stack}: {deploy(stack, endpoint_url, engine_id)}"


def down() -> bool:
    """End the engine that `up` started, and with it every stack on it; whether there was one."""
    with exclusively(home() / "up.lock"):
        started = engine.running()
        if started is not None:
            engine.stop(started)
        return started is not None


def build() -> str:
    """Build every function and the layer into `build/` of the home; what was done, in a word."""
    wanted = digest()
    stamp = home() / "build.sha256"
    if _read(stamp) == wanted and (_build_path() / "template.yaml").is_file():
        return "unchanged"
    stamp.unlink(missing_ok=True)
    _sam(
        "build",
        # The engine runs the functions on this machine: wheels of its interpreter, not Lambda's.
        {"LAYER_PLATFORM": "local", "LAYER_PYTHON": sys.executable},
        "--parallel",
        f"--template-file={checkout() / 'template.yaml'}",
        f"--build-dir={_build_path()}",
    )
    write_private(stamp, wanted)
    return "built"


def deploy(stack: str, endpoint_url: str, engine_id: str | None) -> str:
    """Deploy what is built; what was done, in a word.

    `engine_id` tells one run of an engine from the next, which knows nothing of this stack; None
    where nobody can tell them apart.
    """
    wanted = json.dumps([stack, endpoint_url, engine_id, digest()])
    stamp = home() / f"deployed-{stack}.json"
    if engine_id is not None and _read(stamp) == wanted:
        return "unchanged"
    stamp.unlink(missing_ok=True)
    _sam(
        "deploy",
        {ENDPOINT_VARIABLE: endpoint_url, "SAM_CLI_POLL_DELAY": "0.5"},
        f"--template-file={_build_path() / 'template.yaml'}",
        f"--config-file={checkout() / 'samconfig.toml'}",
        "--config-env=local",
        f"--stack-name={stack}",
    )
    write_private(stamp, wanted)
    return "deployed"


def digest() -> str:
    """SHA-256 over everything that the build and the stack are made of."""
    total = hashlib.sha256()
    for name in SOURCES:
        path = checkout() / name
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in files:
            if file.is_file() and file.parent.name != "__pycache__":
                total.update(f"{file.relative_to(checkout())}\n".encode())
                total.update(hashlib.sha256(file.read_bytes()).digest())
    return total.hexdigest()


def _engine(port: int | None, *, auth: bool) -> Engine:
    with step("Environments") as done:
        done.note = engine.prepare()
    with step("Engine") as done:
        started = engine.running()
        if started is None:
            started = engine.start(port or engine.DEFAULT_PORT, auth=auth)
        elif port not in (None, started.port):
            raise Problem(f"an engine runs on port {started.port}: `wakala down` first")
        elif auth and not started.auth:
            raise Problem("the engine runs without --auth: `wakala down` first")
        done.note = started.endpoint_url + (", IAM enforced" if started.auth else "")
    return started


def _sam(command: str, settings: dict[str, str], *options: str) -> None:
    """Run sam with the engine's credentials alone, its words in a log. Problem where it fails."""
    log_path = home() / "logs" / f"sam-{command}.log"
    log_path.parent.mkdir(exist_ok=True)
    with log_path.open("w", encoding="utf-8") as log:
        done = subprocess.run(
            [_sam_path(), command, *options],
            cwd=checkout(),
            env=_sam_environment() | settings,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if done.returncode != 0:
        raise Problem(f"sam {command} failed: {_reason(log_path)} (all of it: {log_path})")


def _sam_path() -> str:
    found = shutil.which("sam", path=str(Path(sys.executable).parent)) or shutil.which("sam")
    if found is None:
        raise Problem("the SAM command line is not installed: run `make run` once")
    return found


def _sam_environment() -> dict[str, str]:
    """The caller's environment without his AWS profile: nothing here may reach an account."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    tools = str(Path(sys.executable).parent)
    return (
        kept
        | engine.CREDENTIALS
        | {
            "AWS_DEFAULT_REGION": engine.REGION,
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "PATH": os.pathsep.join([tools, os.environ.get("PATH", os.defpath)]),
            "SAM_CLI_TELEMETRY": "0",
        }
    )


def _reason(log_path: Path) -> str:
    lines = [line.strip() for line in log_path.read_text(encoding="utf-8").splitlines()]
    errors = [line for line in lines if line.startswith(("Error:", "Build Failed"))]
    spoken = errors or [line for line in lines if line] or ["no message"]
    return spoken[-1].removeprefix("Error: ")


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None


def _build_path() -> Path:
    return home() / "build"
