"""The command as it is called: exit statuses, one clear line where something is wrong."""

import fcntl
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, NoCredentialsError

from tests.template import TEMPLATE
from wakala import __main__ as entry
from wakala import deploy, engine, home, main, options, wallets
from wakala.engine import Engine
from wakala.info import DEAD_LETTERS, Info, Letters, QueueCount, command_options, posting
from wakala.output import Problem, escape, out
from wakala.stack import Stack, Where, reachable_api_url
from wakala.transactions import Answer

type Told = Callable[..., tuple[int, str]]

STACK = Stack(
    name="wakala",
    region="us-east-1",
    endpoint_url="http://127.0.0.1:4566",
    session=None,
    outputs={
        "ApiUrl": "https://abc123.execute-api.us-east-1.amazonaws.com/local",
        "TxDlqUrl": "http://localhost:4566/000000000000/wakala-TxDLQ.fifo",
    },
    parameters={"Currency": "KES", "DefaultRegion": "KE"},
)


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WAKALA_HOME", str(tmp_path / "home"))
    for name in ("AWS_ENDPOINT_URL", "WAKALA_PORT", "WAKALA_STACK", "WAKALA_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    return home.home()


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Told:
    """Run the command; its exit status and what it said on stderr."""

    def run(*arguments: str) -> tuple[int, str]:
        status = main.run(arguments)
        said = capsys.readouterr()
        assert said.out == ""
        return status, said.err

    return run


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("info", "error: the local engine is not running: start it with `wakala up`"),
        ("wallet show 0712345678", "error: the local engine is not running"),
        ("frobnicate", 'error: Unknown command "frobnicate"'),
        ("up --port http", "error: Invalid value for --port"),
        ("wallet show", "error: Command"),
        ("tx submit --agent AG-001", "error: give --agent, --phone and --amount, or --file"),
        ("tx submit --agent A --phone 07 --amount 1.5", "error: amount '1.5' is not an integer"),
        ("tx submit --file none.csv", "error: cannot read none.csv: No such file"),
        ("demo --run a#b", "error: --run 'a#b'"),
        ("info --profile nobody-of-that-name", "error: The config profile"),
    ],
)
def test_what_a_person_can_mend_is_one_line_and_status_1(
    told: Told, arguments: str, line: str
) -> None:
    status, said = told(*arguments.split(" "))
    assert status == 1
    assert said.startswith(line)
    assert said.count("\n") == 1


def test_the_demo_makes_up_no_money_in_production(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    production = replace(STACK, parameters={"Stage": "prod"})
    monkeypatch.setattr(options, "open_stack", lambda _: production)
    status, said = told("demo", "--region", "eu-west-1")
    assert (status, said.count("\n")) == (1, 1)
    assert "does not run on a stack whose Stage is prod" in said


def test_what_a_sender_wrote_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    sent = {"agentId": "AG-001", "idempotencyKey": "[red]k", "amount": 1}
    out.print(main._answers_table([Answer(sent, 400, {"code": "[bold]"}, False, 1)]))
    shown = capsys.readouterr().out
    assert "[red]k" in shown
    assert "[bold]" in shown


@pytest.mark.parametrize("amount", ["1.5", "1e3", "1_000", "１００", "0x10", "", " 1", "9" * 19])
def test_an_amount_that_is_no_integer_is_refused_before_anything_is_sent(
    told: Told, monkeypatch: pytest.MonkeyPatch, amount: str
) -> None:
    monkeypatch.setattr(options, "open_stack", lambda _: STACK)
    status, said = told("wallet", "credit", "0712345678", amount)
    assert (status, said.count("\n")) == (1, 1)
    assert "is not an integer in minor units" in said


@pytest.mark.parametrize(
    ("phone", "amount", "options", "line"),
    [
        ("0799", 5, {}, "phone: not a phone number that is in use anywhere"),
        ("0712345678", 0, {}, "amount: 1 to 1000000000000"),
        ("0712345678", -5, {}, "amount: 1 to 1000000000000"),
        ("0712345678", 5, {"credit_id": "a#b"}, "creditId: 1 to 64 of"),
        ("0712345678", 5, {"currency": "XXX"}, "currency: not a currency code"),
    ],
)
def test_a_credit_that_the_stack_would_not_read_is_refused_here(
    phone: str, amount: int, options: dict[str, str], line: str
) -> None:
    with pytest.raises(Problem) as caught:
        wallets.credit(STACK, phone, amount, **options)
    assert str(caught.value).startswith(line)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (NoCredentialsError(), "no AWS credentials: give --profile, or sign in"),
        (EndpointConnectionError(endpoint_url="http://e"), "is the engine running?"),
        (
            EndpointConnectionError(endpoint_url="https://cloudformation.eu-1.amazonaws.com/"),
            "is that a Region, and is this machine online?",
        ),
        (
            ClientError({"Error": {"Code": "ExpiredToken", "Message": "m"}}, "GetItem"),
            "the AWS session has expired",
        ),
        (
            ClientError({"Error": {"Code": "AccessDenied", "Message": "no\nway"}}, "GetItem"),
            "AWS refuses GetItem: AccessDenied: no way",
        ),
    ],
)
def test_what_aws_says_is_one_line(
    told: Told, monkeypatch: pytest.MonkeyPatch, error: Exception, line: str
) -> None:
    def fail(_: Where) -> Stack:
        raise error

    monkeypatch.setattr(options, "open_stack", fail)
    status, said = told("info")
    assert (status, said.count("\n")) == (1, 1)
    assert line in said


def test_a_wrong_python_is_told_before_anything_is_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 11, 7))
    with pytest.raises(SystemExit, match=r"wakala needs Python 3\.13, and this is 3\.11"):
        entry.main()


def test_the_entry_compiles_on_an_old_python() -> None:
    source = Path(entry.__file__).read_text(encoding="utf-8")
    compile(source, "entry", "exec", dont_inherit=True)
    assert source.index("version_info") < source.index("from wakala.main")


# --- the engine -----------------------------------------------------------------------------


def test_an_engine_runs_as_long_as_it_holds_its_lock(own_home: Path) -> None:
    known = Engine(pid=1, port=4601, auth=True, started_at_ms=5)
    assert engine.running() is None
    state = {"pid": 1, "port": 4601, "auth": True, "started_at_ms": 5}
    (own_home / "engine.json").write_text(json.dumps(state), encoding="utf-8")
    with (own_home / "engine.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert engine.running() == known
    assert engine.running() is None  # the file is still there, and its process is another's


def test_a_busy_port_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    class Busy:
        def __enter__(self) -> "Busy":
            return self

        def __exit__(self, *_: object) -> None:
            return None

        def setsockopt(self, *_: int) -> None:
            return None

        def bind(self, _: object) -> None:
            raise OSError(98, "Address already in use")

    monkeypatch.setattr("wakala.engine.socket.socket", Busy)
    with pytest.raises(Problem, match="port 4601 is busy with something that wakala did not start"):
        engine.start(4601, auth=False)


def test_up_keeps_the_engine_that_runs_and_says_where_it_cannot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine, "prepare", lambda: "")
    monkeypatch.setattr(engine, "running", lambda: Engine(1, 4601, False, 5))
    assert deploy._engine(None, auth=False).port == 4601
    assert deploy._engine(4601, auth=False).port == 4601
    with pytest.raises(Problem, match="an engine runs on port 4601"):
        deploy._engine(4602, auth=False)
    with pytest.raises(Problem, match="the engine runs without --auth"):
        deploy._engine(None, auth=True)


def test_down_without_an_engine_is_fine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["down"]) == 0
    assert capsys.readouterr().out == "Nothing is running.\n"


def test_a_failed_sam_run_is_told_by_its_own_error(tmp_path: Path) -> None:
    log = tmp_path / "sam.log"
    log.write_text(
        "Build Failed\nError: RelayFunction: make failed\n\nA newer sam is out\n", "utf-8"
    )
    assert deploy._reason(log) == "RelayFunction: make failed"


def test_what_is_deployed_changes_with_its_sources_and_not_with_caches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deploy, "checkout", lambda: tmp_path)
    package = tmp_path / "services" / "ingest"
    (package / "__pycache__").mkdir(parents=True)
    (package / "api.py").write_text("one", "utf-8")
    first = deploy.digest()
    (package / "__pycache__" / "api.pyc").write_text("compiled", "utf-8")
    assert deploy.digest() == first
    (package / "api.py").write_text("two", "utf-8")
    assert deploy.digest() != first


def test_sam_gets_no_aws_profile_of_the_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "production")
    environment = deploy._sam_environment()
    assert "AWS_PROFILE" not in environment
    assert environment["AWS_ACCESS_KEY_ID"] == "test"


# --- which stack ----------------------------------------------------------------------------


def test_a_profile_or_a_region_means_aws() -> None:
    assert not Where().on_aws
    assert Where(profile="ops").on_aws
    assert Where(region="eu-west-1").on_aws


@pytest.mark.parametrize(
    ("output", "endpoint_url", "reached"),
    [
        (
            "https://abc123.execute-api.eu-west-1.amazonaws.com/prod",
            None,
            "https://abc123.execute-api.eu-west-1.amazonaws.com/prod",
        ),
        (
            "https://abc123.execute-api.us-east-1.amazonaws.com/local",
            "http://127.0.0.1:4566",
            "http://127.0.0.1:4566/_aws/execute-api/abc123/local",
        ),
        ("http://localhost:4566/own", "http://127.0.0.1:4566", "http://localhost:4566/own"),
    ],
)
def test_an_engine_answers_for_the_gateway_at_its_own_address(
    output: str, endpoint_url: str | None, reached: str
) -> None:
    assert reachable_api_url(output, endpoint_url) == reached


def test_info_gives_scripts_what_was_promised() -> None:
    letters = Letters(6, 5, 4, False, None)
    view = Info(STACK, {"TxDlqUrl": QueueCount(1, 2, 3)}, 4, letters).view()
    assert view == {
        "apiUrl": "http://127.0.0.1:4566/_aws/execute-api/abc123/local",
        "endpointUrl": "http://127.0.0.1:4566",
        "region": "us-east-1",
        "stack": "wakala",
        "outputs": STACK.outputs,
        "queues": {"TxDlqUrl": {"waiting": 1, "inFlight": 2, "delayed": 3}},
        "openTransactions": 4,
        "deadLetters": {"open": 6, "parked": 5, "held": 4, "more": False, "problem": None},
    }


def test_every_queue_of_letters_is_one_in_which_nothing_should_lie() -> None:
    urls = {name for name in TEMPLATE["Outputs"] if name.endswith("Url")}
    letters = {name for name in urls if re.search("Dlq|Failed|Failures", name)}
    assert letters == DEAD_LETTERS


def test_commands_to_paste_name_the_stack_where_it_is_not_the_usual_one() -> None:
    elsewhere = Stack("pilot", "eu-west-1", None, None, STACK.outputs)
    assert command_options(STACK) == ""
    assert command_options(elsewhere) == " --region eu-west-1 --stack pilot"
    assert f"curl -i {STACK.api_url}/tx/offline" in posting(STACK).plain


def test_a_missing_output_is_one_line() -> None:
    with pytest.raises(Problem, match="the stack wakala has no output UserPoolId"):
        STACK.output("UserPoolId")


def test_a_private_file_is_its_owners_alone(own_home: Path) -> None:
    path = own_home / "agents" / "pool" / "AG-001"
    for text in ("first", "second"):
        home.write_private(path, text)
    assert path.read_text(encoding="utf-8") == "second"
    assert path.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in path.parent.iterdir()] == ["AG-001"]


GROUPS = ("agent", "wallet", "tx", "refund", "dead-letters", "events")


@pytest.mark.parametrize("group", ["", *GROUPS])
def test_every_command_has_help_with_an_example_and_json(
    capsys: pytest.CaptureFixture[str], group: str
) -> None:
    app = main.app[group] if group else main.app
    names = [name for name in app if not name.startswith("-")]
    for name in names:
        if group == "" and name in GROUPS:
            continue
        words = [group, name] if group else [name]
        assert main.run([*words, "--help"]) == 0
        shown = capsys.readouterr().out
        assert "--json" in shown
        assert "For example:" in shown
        assert f"wakala {' '.join(words)}" in shown.split("For example:")[1]


def test_what_nobody_expected_is_one_line_too(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: object) -> Stack:
        raise KeyError("phone")

    monkeypatch.setattr(options, "open_stack", broken)
    status, said = told("info")
    assert (status, said.count("\n")) == (1, 1)
    assert "unexpected KeyError" in said


def test_a_reader_that_has_enough_ends_a_command_quietly() -> None:
    """As in `wakala dead-letters export --out - | head -1`."""
    sources = os.pathsep.join(str(home.checkout() / name) for name in ("cli", "shared"))
    script = (
        "from wakala import main, options\n"
        "def closed(_):\n    raise BrokenPipeError\n"
        "options.open_stack = closed\n"
        "raise SystemExit(main.run(['info']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"PYTHONPATH": sources},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_port_that_is_none_is_a_clear_problem() -> None:
    with pytest.raises(Problem, match="1 to 65535"):
        engine.start(99_999, auth=False)


def test_who_interrupts_a_command_is_told_that_it_may_be_repeated(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: object) -> Stack:
        raise KeyboardInterrupt

    monkeypatch.setattr(options, "open_stack", interrupted)
    status, said = told("info")
    assert status == 130
    assert "nothing counts twice" in said


def test_text_from_elsewhere_is_printed_whatever_is_in_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    out.print(escape("[red]\ud800"))
    assert capsys.readouterr().out == "[red]\\ud800\n"
