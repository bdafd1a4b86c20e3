"""The commands: each reads its options, calls one module, and shows what came back."""

import os
import re
import sys
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    EndpointConnectionError,
    NoCredentialsError,
)
from cyclopts import App, CycloptsError, Parameter

from wakala import (
    agents,
    audit,
    dead_letters,
    demo,
    deploy,
    events,
    info,
    refunds,
    replay,
    transactions,
    uploads,
    wallets,
)
from wakala.options import LOCAL, Amount, Flag, Json, On, StackName
from wakala.output import (
    Problem,
    coloured,
    escape,
    out,
    problem,
    progress,
    progress_bar,
    show,
    table,
)
from wakala.stack import DEFAULT_STACK, Stack, Where, open_stack
from wakala.transactions import AgentApi, Answer
from wallet_ledger.domain.ids import is_id
from wallet_ledger.domain.postings import Entry
from wallet_ledger.domain.wallets import Wallet

app = App(
    name="wakala",
    help="Offline transactions of mobile-money agents, settled exactly once: the local engine,"
    " the demo, and an operator's tools. Amounts are integers in minor units.",
    help_format="markdown",
    version_flags=(),
    suppress_keyboard_interrupt=False,
)
agent_app = App(name="agent", help="Enroll agents and get their tokens.")
wallet_app = App(name="wallet", help="Open, fund, freeze and read wallets.")
tx_app = App(name="tx", help="Submit, follow and refund transactions as an agent's app does.")
refund_app = App(name="refund", help="Refund transactions as a back office does, over the bus.")
for group in (agent_app, wallet_app, tx_app, refund_app, dead_letters.app, events.app):
    app.command(group)
app.command(replay.command, name="replay")


@Parameter(name="*", group="One transaction")
@dataclass(frozen=True, slots=True)
class OneTransaction:
    """A transaction given by options."""

    agent: Annotated[
        str | None, Parameter(help="Whose it is; with --file, where a line names no agent.")
    ] = None
    phone: Annotated[str | None, Parameter(help="The wallet to debit.")] = None
    amount: Annotated[
        str | None, Parameter(help="Minor units: 15000 is KES 150.00.", allow_leading_hyphen=True)
    ] = None
    key: Annotated[str | None, Parameter(help="Idempotency key; made up where you give none.")] = (
        None
    )
    currency: Annotated[str | None, Parameter(help="ISO 4217; the stack's where not given.")] = None
    captured_at: Annotated[
        str | None, Parameter(help="When the device recorded it, RFC 3339 with offset.")
    ] = None

    def document(self) -> transactions.Document:
        """The request's body. Problem where something is missing."""
        if self.agent is None or self.phone is None or self.amount is None:
            raise Problem("give --agent, --phone and --amount, or --file")
        optional = {"currency": self.currency, "capturedAt": self.captured_at}
        return {
            "agentId": self.agent,
            "phone": self.phone,
            "amount": _minor_units(self.amount),
            "idempotencyKey": self.key or str(uuid.uuid4()),
        } | {name: value for name, value in optional.items() if value is not None}


@Parameter(name="*", group="One refund")
@dataclass(frozen=True, slots=True)
class OneRefund:
    """A refund given by options."""

    agent: Annotated[str, Parameter(help="Whose transaction it is.")]
    reason: Annotated[str, Parameter(help="Why, in up to 140 bytes; kept in the ledger.")]
    amount: Annotated[
        str | None,
        Parameter(help="Minor units; all that remains if not given.", allow_leading_hyphen=True),
    ] = None
    refund_id: Annotated[
        str | None, Parameter(help="For a safe repetition; `full` unless you say otherwise.")
    ] = None

    def document(self, key: str) -> transactions.Document:
        """The request's members, as they travel both ways."""
        optional = {
            "refundId": self.refund_id,
            "amount": None if self.amount is None else _minor_units(self.amount),
        }
        return {"agentId": self.agent, "idempotencyKey": key, "reason": self.reason} | {
            name: value for name, value in optional.items() if value is not None
        }


@app.command
def up(
    *,
    port: Annotated[int | None, Parameter(env_var="WAKALA_PORT")] = None,
    auth: Flag = False,
    stack: StackName = DEFAULT_STACK,
    json: Json = False,
) -> None:
    """Start the local engine, build, and deploy the stack to it; again redeploys what changed.

    State lives in `.wakala/`, or where WAKALA_HOME says. With AWS_ENDPOINT_URL set, the engine
    there is used and none is started.

    For example:

        wakala up
        wakala up --auth             # IAM enforced: each function may do only what its role says
        WAKALA_HOME=/tmp/second wakala up --port 4600

    Parameters
    ----------
    port
        Port of the engine on 127.0.0.1 (4566 unless you say otherwise).
    auth
        Enforce IAM.
    """
    deploy.up(stack, port, auth=auth)
    deployed = info.describe(open_stack(Where(stack)))
    show(json, deployed.view(), lambda: f"\nWakala is up: {deployed.stack.api_url}")
    if not json:
        out.print("", info.posting(deployed.stack), sep="\n", soft_wrap=True)


@app.command
def down(*, json: Json = False) -> None:
    """End the local engine that `wakala up` started, and all that was on it.

    For example:

        wakala down
    """
    ended = deploy.down()
    show(
        json, {"ended": ended}, lambda: "The engine has ended." if ended else "Nothing is running."
    )


@app.command(name="info")
def show_info(*, on: On = LOCAL, json: Json = False) -> None:
    """Show the stack's addresses, what lies in its queues, what is open, and the dead letters.

    For example:

        wakala info
        wakala info --json | jq -r .apiUrl
        wakala info --profile ops --region eu-west-1 --stack wakala
    """
    found = info.describe(on.open())
    show(json, found.view(), found.render)


@app.command(name="demo")
def run_demo(*, run: str | None = None, on: On = LOCAL, json: Json = False) -> None:
    """Play a bundled day of transactions and refunds through API and bus, then audit the tables.

    Six agents, 321 transactions: phones in every spelling, resends, a whole batch sent twice,
    overdrafts, wallets that are unknown or frozen, two agents on one wallet. Then what goes back:
    transactions that are cancelled at once, refunds by agents and over the bus, whole, in parts,
    too much, and twice. Exit status 1 where a promise is broken or a transaction does not end.

    For example:

        wakala demo
        wakala demo --run monday    # and once more: everything is a replay, no money moves

    Parameters
    ----------
    run
        Id of this run, which its keys begin with; from the clock where you give none.
    """
    run = run or time.strftime("day-%Y%m%d-%H%M%S")
    if not is_id(run) or len(run) > demo.RUN_LENGTH_MAX:
        raise Problem(f"--run {run!r}: up to {demo.RUN_LENGTH_MAX} of A-Z a-z 0-9 . _ : -")
    stack = on.open()
    if stack.parameter("Stage") == "prod":
        raise Problem("the demo makes money up: it does not run on a stack whose Stage is prod")
    result = demo.run_day(stack, run)
    show(json, {"ok": result.ok, **result.view()}, result.render)
    if not json:
        out.print("", info.posting(stack, prepared=True), sep="\n", soft_wrap=True)
    if not result.ok:
        raise SystemExit(1)


@app.command(name="audit")
def run_audit(
    *,
    reveal: Annotated[Flag, Parameter(help="Show whole phone numbers.")] = False,
    on: On = LOCAL,
    json: Json = False,
) -> None:
    """Check the promises on the live tables, and name each row that breaks one.

    It only reads, and may run while money moves. On AWS, give it a profile that assumes the
    stack's AuditorRoleArn. Exit status 1 where a promise is broken.

    For example:

        wakala audit
        wakala audit --json | jq .ok
        wakala audit --profile auditor --region eu-west-1
    """
    stack = on.open()
    with progress.status("Auditing") as status:
        report = audit.audit(
            stack, int(time.time()), lambda done: status.update(f"Auditing: {done}")
        )
    show(json, report.view(reveal=reveal), lambda: audit.render(report, reveal=reveal))
    if not report.ok:
        raise SystemExit(1)


@agent_app.command
def enroll(
    agent_id: str, *, password: str | None = None, on: On = LOCAL, json: Json = False
) -> None:
    """Enroll an agent; one who is enrolled already stays so.

    For example:

        wakala agent enroll AG-001
        wakala agent enroll AG-001 --password "$SECRET" --profile ops

    Parameters
    ----------
    agent_id
        The agent's id, as its transactions name it.
    password
        The agent's password; without it one is made up and kept in `.wakala/`, for you alone.
    """
    enrolled = agents.enroll(on.open(), agent_id, password)
    word = "enrolled" if enrolled.new else "was enrolled before"
    show(json, {"agentId": agent_id, "new": enrolled.new}, lambda: f"{agent_id} {word}")


@agent_app.command
def token(
    agent_id: str, *, password: str | None = None, on: On = LOCAL, json: Json = False
) -> None:
    """Print a fresh ID token of an agent, and nothing else.

    For example:

        curl -H "Authorization: $(wakala agent token AG-001)" …

    Parameters
    ----------
    agent_id
        An enrolled agent.
    password
        The agent's password where it is not known here (or WAKALA_AGENT_PASSWORD).
    """
    id_token = agents.token(on.open(), agent_id, password)
    if json:
        show(json, {"idToken": id_token}, lambda: "")
    else:
        print(id_token)


@wallet_app.command(name="open")
def open_wallet(phone: str, *, on: On = LOCAL, json: Json = False) -> None:
    """Open a wallet in the stack's currency; one that is there stays as it is.

    For example:

        wakala wallet open '0712 345 678'
    """
    stack = on.open()
    _show_wallet(json, wallets.open_wallet(stack, phone))


@wallet_app.command
def credit(
    phone: str,
    amount: Amount,
    *,
    id: str | None = None,
    currency: str | None = None,
    source: str = wallets.SOURCE,
    on: On = LOCAL,
    json: Json = False,
) -> None:
    """Put money into a wallet, and return once it is posted. The first credit opens the wallet.

    The same id and amount again posts nothing new; the id with another amount is refused.

    For example:

        wakala wallet credit 0712345678 250000 --id float-2026-07-01
        wakala wallet credit +254712345678 250000 --id float-2026-07-01 --json

    Parameters
    ----------
    phone
        The wallet, in any usual spelling of the number.
    amount
        Minor units: 250000 is KES 2,500.00.
    id
        What makes this credit this one, for a safe repetition; made up where you give none.
    currency
        ISO 4217; the stack's own unless you say otherwise.
    source
        The funding account on the other side.
    """
    stack = on.open()
    request = wallets.credit(stack, phone, _minor_units(amount), id, currency, source)
    entry = wallets.settle(stack, [request])[0]
    wallet = wallets.wallet_view(wallets.show(stack, phone))
    show(
        json,
        wallets.entry_view(entry) | {"id": entry.reference, "wallet": wallet},
        lambda: (
            f"credited {entry.amount_minor:,} {entry.currency} to +{entry.phone}"
            f" (--id {entry.reference}); the balance is now {wallet['balance']:,}"
        ),
    )


@wallet_app.command(name="show")
def show_wallet(phone: str, *, on: On = LOCAL, json: Json = False) -> None:
    """Show a wallet's balance, in minor units, and status.

    For example:

        wakala wallet show 0712345678
        wakala wallet show 0712345678 --json | jq .balance
    """
    _show_wallet(json, wallets.show(on.open(), phone))


@wallet_app.command
def statement(phone: str, *, on: On = LOCAL, json: Json = False) -> None:
    """List every entry of a wallet, oldest first: what was posted, and what was refused.

    A person gets refunds below the debit that they give back; a script gets every entry in its
    time, with its `refundId`.

    For example:

        wakala wallet statement 0712345678
    """
    entries = wallets.statement(on.open(), phone)
    show(
        json,
        [wallets.entry_view(entry) for entry in entries],
        lambda: _statement_table(wallets.under_their_debits(entries)),
    )


@wallet_app.command
def freeze(
    phone: str,
    *,
    id: str | None = None,
    on: On = LOCAL,
    json: Json = False,
) -> None:
    """Freeze a wallet: debits are refused, credits still taken.

    For example:

        wakala wallet freeze 0712345678

    Parameters
    ----------
    phone
        The wallet.
    id
        Request id, for a safe repetition; made up where you give none.
    """
    _change_status(on.open(), phone, "frozen", id, json=json)


@wallet_app.command
def unfreeze(
    phone: str,
    *,
    id: str | None = None,
    on: On = LOCAL,
    json: Json = False,
) -> None:
    """Let a frozen wallet be debited again.

    For example:

        wakala wallet unfreeze 0712345678

    Parameters
    ----------
    phone
        The wallet.
    id
        Request id, for a safe repetition; made up where you give none.
    """
    _change_status(on.open(), phone, "active", id, json=json)


@tx_app.command
def submit(
    *,
    one: OneTransaction = OneTransaction(),
    file: Annotated[Path | None, Parameter(help="CSV or NDJSON of many.")] = None,
    on: On = LOCAL,
    json: Json = False,
) -> None:
    """Submit one offline transaction, or a file of them, as the agent's app does.

    A repetition is safe: each counts once for its agent and key. So a file of which some is unsent
    is submitted again. Exit status 1 where one was refused or is unsent. A CSV has the columns
    agentId, phone, amount, idempotencyKey and, if you like, currency and capturedAt; a line of
    NDJSON is a request's body.

    For example:

        wakala tx submit --agent AG-001 --phone 0712345678 --amount 15000 --key t-0001
        wakala tx submit --file day.csv
        wakala tx submit --file day.ndjson --agent AG-001 --json
    """
    if file is not None:
        documents = transactions.read_file(file, one.agent)
        _submit_file(on.open(), documents, json=json)
        return
    document = one.document()
    stack = on.open()
    answer = AgentApi(stack.api_url, agents.token(stack, document["agentId"])).submit(document)
    if not answer.accepted and not json:
        raise Problem(transactions.why(answer))
    show(json, answer.view(), lambda: _answers_table([answer]))
    if not answer.accepted:
        raise SystemExit(1)


@tx_app.command(name="status")
def tx_status(key: str, *, agent: str, on: On = LOCAL, json: Json = False) -> None:
    """Ask the API what became of a transaction.

    For example:

        wakala tx status --agent AG-001 t-0001

    Parameters
    ----------
    key
        Its idempotency key.
    agent
        Whose it is; another agent's key is unknown.
    """
    stack = on.open()
    answer = AgentApi(stack.api_url, agents.token(stack, agent)).status(key)
    body = transactions.body_of(answer)
    if answer.is_success and body.get("idempotencyKey") == key:
        show(json, body, lambda: _members_table(body))
        return
    if json:
        show(json, body, lambda: "")
        raise SystemExit(1)
    unknown = answer.status_code == 404
    raise Problem(f"{agent} has no transaction {key}" if unknown else str(body.get("detail")))


@tx_app.command(name="refund")
def tx_refund(
    key: str,
    *,
    one: OneRefund,
    no_wait: Annotated[Flag, Parameter(help="Return as soon as it is under way.")] = False,
    dry_run: Annotated[Flag, Parameter(help="Say what would happen, and do nothing.")] = False,
    on: On = LOCAL,
    json: Json = False,
) -> None:
    """Ask for a transaction back as the agent's app does, and wait for the end.

    One that is not settled yet is cancelled, and no money moves. The same request again is a
    replay; each part of a transaction needs a --refund-id of its own. Exit status 1 where it was
    refused.

    For example:

        wakala tx refund t-0001 --agent AG-001 --reason 'wrong customer' --dry-run
        wakala tx refund t-0001 --agent AG-001 --reason 'wrong customer'
        wakala tx refund t-2 --agent AG-001 --reason 'short' --amount 500 --refund-id r-1

    Parameters
    ----------
    key
        The transaction's idempotency key.
    """
    wanted = one.document(key)
    stack = on.open()
    if dry_run:
        _show_foreseen(json, refunds.foresee_over_http(stack, wanted, _now_ms()))
        return
    api = AgentApi(stack.api_url, agents.token(stack, one.agent))
    answer = api.refund(wanted) if no_wait else refunds.ask_api(api, wanted)
    if not answer.accepted and not json:
        raise Problem(refunds.why(answer))
    show(json, answer.view(), lambda: _members_table(answer.body))
    if not answer.accepted:
        raise SystemExit(1)


@refund_app.command
def request(
    key: str,
    *,
    phone: str,
    one: OneRefund,
    print_only: Annotated[
        Flag, Parameter(name="--print", help="Print the aws command that sends it, send nothing.")
    ] = False,
    dry_run: Annotated[Flag, Parameter(help="Say what would happen, and do nothing.")] = False,
    on: On = LOCAL,
    json: Json = False,
) -> None:
    """Put a refund on the bus as a back office does, and wait until it is decided.

    It needs no agent and no session, and works a year later. What is decided stands for its
    --refund-id: the same again refunds nothing twice. Exit status 1 where it was refused.

    For example:

        wakala refund request t-1 --agent A-1 --phone 0712345678 --reason fee --dry-run
        wakala refund request t-1 --agent A-1 --phone 0712345678 --reason fee --print
        wakala refund request t-1 --agent A-1 --phone 0712345678 --reason fee

    Parameters
    ----------
    key
        The transaction's idempotency key.
    phone
        The wallet that was debited.
    """
    members = one.document(key) | {"phone": phone}
    stack = on.open()
    asked = refunds.ask(stack, members)
    if print_only:
        command = refunds.put_events_command(stack, asked, on.profile)
        if json:
            show(json, {"command": command}, lambda: "")
        else:
            print(command)
        return
    if dry_run:
        _show_foreseen(json, refunds.foresee(stack, asked.refund, _now_ms()))
        return
    (told,) = refunds.settle(stack, [asked])
    if told.outcome == "rejected" and not json:
        raise Problem(told.words())
    show(json, told.view(), lambda: escape(told.words()))
    if told.outcome == "rejected":
        raise SystemExit(1)


def run(arguments: Sequence[str]) -> int:
    """Run one command; the exit status. Whatever a person can mend is told in one line."""
    try:
        app(arguments, exit_on_error=False, print_error=False, result_action="return_none")
        sys.stdout.flush()
    except CycloptsError as error:
        problem(f"{error} (see --help)")
    except Problem as error:
        problem(str(error))
    except (ClientError, BotoCoreError) as error:
        problem(_aws_problem(error))
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 1
    except KeyboardInterrupt:
        progress.print("interrupted: the same command again goes on, and nothing counts twice")
        return 130
    except BrokenPipeError:  # the reader has enough; Python would complain of it once more
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:  # a row that no function wrote, a bug: one line, and how to see more
        if os.environ.get("WAKALA_DEBUG"):
            raise
        problem(f"unexpected {type(error).__name__}: {error} (WAKALA_DEBUG=1 shows where)")
    else:
        return 0
    return 1


def _aws_problem(error: ClientError | BotoCoreError) -> str:
    if isinstance(error, NoCredentialsError):
        return "no AWS credentials: give --profile, or sign in"
    if isinstance(error, EndpointConnectionError):
        return f"{error}: {_where_it_was(str(error))}"
    if not isinstance(error, ClientError):
        return str(error)
    said = error.response["Error"]
    code = said.get("Code", "")
    if code in ("ExpiredToken", "ExpiredTokenException", "RequestExpired"):
        return "the AWS session has expired: sign in again"
    return f"AWS refuses {error.operation_name}: {code}: {said.get('Message', '')}"


def _where_it_was(said: str) -> str:
    """What to look at, by the address that did not answer."""
    if ".amazonaws.com" in said:
        return "is that a Region, and is this machine online?"
    return "is the engine running? (`wakala info`)"


def _minor_units(text: str) -> int:
    if not re.fullmatch(r"-?[0-9]{1,18}", text, re.ASCII):
        raise Problem(f"amount {text!r} is not an integer in minor units (12.50 is 1250)")
    return int(text)


def _now_ms() -> int:
    return int(time.time() * 1000)


def _show_foreseen(as_json: bool, foreseen: refunds.Foreseen) -> None:
    show(as_json, foreseen.view(), lambda: escape(f"would {foreseen.words}"))


def _change_status(
    stack: Stack,
    phone: str,
    status: str,
    request_id: str | None,
    *,
    json: bool,
) -> None:
    wallets.show(stack, phone)  # a request for a wallet that is not there would open it
    wallets.settle(stack, [wallets.status_change(stack, phone, status, request_id)])
    _show_wallet(json, wallets.show(stack, phone))


def _show_wallet(as_json: bool, wallet: Wallet) -> None:
    view = wallets.wallet_view(wallet)
    show(as_json, view, lambda: _members_table(view))


def _members_table(members: dict[str, Any]) -> object:
    made = table("", "")
    made.show_header = False
    for name, value in members.items():
        match name:
            case "amount" | "balance" | "refunded":
                made.add_row(name, f"{value:,}")
            case "createdAt" | "updatedAt":
                made.add_row(name, wallets.rfc3339(value))
            case _:
                made.add_row(name, coloured(str(value)))
    return made


def _statement_table(entries: Sequence[Entry]) -> object:
    numbers = frozenset({"version", "amount", "balance after"})
    made = table("at", "entry", "outcome", "version", "amount", "balance after", right=numbers)
    debits: set[tuple[str, str]] = set()
    for entry in entries:
        view = wallets.entry_view(entry)
        original = (entry.actor, entry.reference)
        if entry.kind == "debit":
            debits.add(original)
        below = entry.kind == "refund" and original in debits
        name = f"  ↳ refund {entry.refund_id}" if below else entry.entry_id.replace("#", " ")
        sign = "-" if entry.kind == "debit" else ""
        made.add_row(
            str(view["createdAt"])[:19].replace("T", " "),
            escape(name),
            coloured(str(view["reason"] or view["outcome"])),
            str(view["version"] or ""),
            f"{sign}{entry.amount_minor:,}" if entry.amount_minor else "",
            "" if view["balanceAfter"] is None else f"{view['balanceAfter']:,}",
        )
    return made


def _submit_file(stack: Stack, documents: list[transactions.Document], *, json: bool) -> None:
    apis: dict[str, AgentApi] = {}

    def api_of(agent_id: str) -> AgentApi:
        if agent_id not in apis:
            apis[agent_id] = AgentApi(stack.api_url, agents.token(stack, agent_id))
        return apis[agent_id]

    for agent_id in dict.fromkeys(str(document["agentId"]) for document in documents):
        api_of(agent_id)  # an agent that nobody enrolled is told before anything is sent
    with progress_bar("submitting", len(documents)) as advance:
        answers = uploads.upload_all(documents, api_of, advance)
    counts = transactions.count(answers)
    results = [{**_sent_id(answer), **answer.view()} for answer in answers]
    show(json, counts | {"results": results}, lambda: _answers_table(answers))
    if not json:
        out.print("\n" + ", ".join(f"{number} {word}" for word, number in counts.items()))
    if counts["refused"] or counts["unsent"]:
        raise SystemExit(1)


def _sent_id(answer: Answer) -> dict[str, Any]:
    return {name: answer.sent.get(name) for name in ("agentId", "idempotencyKey")}


def _answers_table(answers: list[Answer]) -> object:
    made = table("agent", "key", "amount", "outcome", "status", "why", right=frozenset({"amount"}))
    for answer in answers:
        made.add_row(
            escape(answer.sent["agentId"]),
            escape(answer.sent.get("idempotencyKey", "")),
            f"{answer.sent['amount']:,}" if isinstance(answer.sent.get("amount"), int) else "",
            coloured(answer.outcome),
            coloured(str(answer.body["status"])) if answer.accepted else str(answer.status),
            escape(transactions.why(answer)),
        )
    return made
