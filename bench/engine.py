"""An engine of the bench's own, and how a command that may use one is started."""

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from botocore.exceptions import BotoCoreError, ClientError
from cyclopts import App, CycloptsError

from tests import dynamodb_local
from tests.engine import free_port
from wakala import engine
from wakala.output import Problem, problem, step


def started(app: App, arguments: Sequence[str]) -> int:
    """Run a command; the exit status, 1 where it answers False.

    Whatever a person can mend is told in one line.
    """
    met = False
    try:
        met = app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
    except CycloptsError as error:
        problem(f"{error} (see --help)")
    except (Problem, BotoCoreError, ClientError) as error:
        problem(str(error))
    return 1 if met is False else 0  # None: it was asked for help alone, or has nothing to meet


@contextmanager
def own_engine(*, amazons: bool) -> Iterator[None]:
    """An engine of the bench's own, on a free port, and the environment of what calls it."""
    with tempfile.TemporaryDirectory() as home:
        variables = {
            **engine.CREDENTIALS,
            "WAKALA_HOME": home,
            "AWS_DEFAULT_REGION": engine.REGION,
            "AWS_XRAY_SDK_ENABLED": "false",
            "POWERTOOLS_SERVICE_NAME": "bench",
            "POWERTOOLS_METRICS_NAMESPACE": "Wakala",
        }
        serve = _dynamodb_local(Path(home)) if amazons else _emulator()
        with (
            mock.patch.dict(os.environ, variables),
            serve as url,
            mock.patch.dict(os.environ, AWS_ENDPOINT_URL=url),
        ):
            yield


@contextmanager
def _emulator() -> Iterator[str]:
    with step("Engine") as current:
        current.note = engine.prepare()
        running = engine.start(free_port(), auth=False)
    try:
        yield running.endpoint_url
    finally:
        engine.stop(running)


@contextmanager
def _dynamodb_local(home: Path) -> Iterator[str]:
    try:
        with step("Engine") as current:
            folder = dynamodb_local.fetched()
            current.note = f"DynamoDB Local {dynamodb_local.VERSION}"
    except dynamodb_local.Missing as error:
        raise Problem(f"no DynamoDB Local: {error}") from error
    with dynamodb_local.running(folder, home / "dynamodb-local.log") as url:
        yield url
