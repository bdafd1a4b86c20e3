"""`replay`: traffic of a shape through the deployed stack, and what it measured."""

import json as json_text
import os
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

from cyclopts import Parameter
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from wakala import replay_account, replay_books, replay_run, replay_view
from wakala.desk import REAL, Clock
from wakala.measures import Asked, Measures, Replayed, Units
from wakala.options import LOCAL, Json, On
from wakala.output import Problem, problem, progress, progress_bar, show, step
from wakala.replay_account import Account
from wakala.replay_books import Books
from wakala.replay_run import Outcome
from wakala.stack import Stack
from wakala.traffic import Shape, Shares, Traffic, make_traffic
from wallet_ledger.aws import calls
from wallet_ledger.domain.transactions import Status

if TYPE_CHECKING:
    from wakala.price import Cost

NUMBER_MOST = 50_000
"""Whose every log line is read again: some minutes' work."""
RATE_LEAST, RATE_MOST = 0.1, 1_000.0
MINUTES_LEAST, MINUTES_MOST = 0.1, 50.0
"""An agent's token lasts an hour, and is asked for once, when the wallets are funded."""
SEED_MOST = 10**9
SHARES = Shares()
WRONG_SHOWN = 10
"""Wallets that are named; more of them are counted."""
INTERRUPTED = 130


@Parameter(name="*", group="What is sent")
@dataclass(frozen=True, slots=True)
class Load:
    """Which traffic, and for how long it may take."""

    shape: Annotated[
        Shape, Parameter(help="How it meets wallets: one debit each, an office's ten, one wallet…")
    ] = Shape.BRANCH
    number: Annotated[int, Parameter(help="Transactions.")] = 1_000
    rate: Annotated[float, Parameter(help="Transactions a second, on the average.")] = 20.0
    seed: Annotated[
        int | None, Parameter(help="The same seed again is all replays; a fresh one if not given.")
    ] = None
    duplicates: Annotated[float, Parameter(help="The part that is sent twice.")] = SHARES.duplicates
    reorders: Annotated[float, Parameter(help="The part that comes after its next.")] = (
        SHARES.reorders
    )
    overdrafts: Annotated[float, Parameter(help="The part that no wallet covers.")] = (
        SHARES.overdrafts
    )
    refunds: Annotated[float, Parameter(help="The part that is given back.")] = SHARES.refunds
    minutes_max: Annotated[
        float, Parameter(help="When it ends, whatever is open; funding before it has as long.")
    ] = 10.0

    def asked(self) -> Asked:
        """What is to be replayed. Problem for what cannot be."""
        _require("--number", self.number, 1, NUMBER_MOST)
        _require("--rate", self.rate, RATE_LEAST, RATE_MOST)
        _require("--minutes-max", self.minutes_max, MINUTES_LEAST, MINUTES_MOST)
        seed = secrets.randbelow(SEED_MOST) if self.seed is None else self.seed
        _require("--seed", seed, 0, SEED_MOST)
        shares = {name: getattr(self, name) for name in Shares.__dataclass_fields__}
        for name, part in shares.items():
            _require(f"--{name}", part, 0, 1)
        minutes = self.number / self.rate / 60
        if minutes > self.minutes_max:
            raise Problem(
                f"{self.number:,} at {self.rate:g} a second take {minutes:,.1f} minutes: more than"
                f" --minutes-max {self.minutes_max:g}"
            )
        return Asked(self.shape.value, self.number, self.rate, seed, shares)


@Parameter(name="*", group="What is written")
@dataclass(frozen=True, slots=True)
class Report:
    """Files to write and to read, and whose prices count."""

    html: Annotated[Path | None, Parameter(help="Write the report there, one file.")] = None
    plot: Annotated[
        Path | None, Parameter(help="Write one plot there, as SVG: of --bench, or of latency.")
    ] = None
    bench: Annotated[
        Path | None, Parameter(help="What `make bench` wrote, to stand beside it in the report.")
    ] = None
    prices: Annotated[Path | None, Parameter(help="A price table in place of the bundled one.")] = (
        None
    )
    price_region: Annotated[
        str | None, Parameter(help="Whose prices; the stack's Region if not given.")
    ] = None

    def baseline(self) -> Mapping[str, Any] | None:
        """The JSON of the benchmark. Problem where it cannot be read, or a file not be written."""
        for name, file in (("--html", self.html), ("--plot", self.plot)):
            if file is not None:
                _require_writable(name, file)
        if self.bench is None:
            return None
        if self.html is None and self.plot is None:
            raise Problem("--bench stands in the report: give --html or --plot, too")
        try:
            read = json_text.loads(self.bench.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise Problem(f"--bench {self.bench}: cannot be read: {error}") from error
        from wakala.baseline import read_baseline

        read_baseline(read)  # before minutes of replay, not after
        return cast("Mapping[str, Any]", read)


LOAD, REPORT = Load(), Report()


def command(
    *, load: Load = LOAD, report: Report = REPORT, on: On = LOCAL, json: Json = False
) -> None:
    """Send offline transactions at a rate through the deployed stack, and measure what they cost.

    Duplicate debits, the time to settle, dead letters, DynamoDB's units, AWS calls, and the price
    of a million. Wallets are opened and funded for it, so it runs on no stack whose Stage is prod;
    what else happens on the stack meanwhile is counted too. Ctrl-C stops the sending, once more the
    waiting, and what was measured is shown. Exit status 1 where a promise is broken or a
    transaction did not end.

    For example:

        wakala replay
        wakala replay --shape month-end --number 5000 --rate 40 --html report.html
        wakala replay --seed 7 --json | jq .measures.duplicates
        wakala replay --profile ops --region eu-west-1 --number 10000 --rate 80
    """
    asked = load.asked()
    bench = report.baseline()
    stack = _open(on)
    from wakala import price, replay_report

    region = report.price_region or stack.region
    prices = price.read_prices(report.prices or price.BUNDLED, region)
    try:
        replayed = replay(stack, asked, load.minutes_max * 60, REAL)
    except KeyboardInterrupt:
        progress.print(f"interrupted: with --seed {asked.seed} the same goes on, counting once")
        raise SystemExit(INTERRUPTED) from None
    measures = replayed.measures
    costs = price.costs(measures.usage, prices) if measures.usage else ()
    _tell(replayed, costs, json=json)
    if report.html is not None:
        replay_report.write_html(measures, costs, bench, report.html)
    if report.plot is not None:
        replay_report.write_plot(measures, bench, report.plot)
    if replayed.by_hand:
        raise SystemExit(INTERRUPTED)
    if replayed.broken:
        raise SystemExit(1)


def _tell(replayed: Replayed, costs: Sequence["Cost"], *, json: bool) -> None:
    """Show what was measured, and what is wrong with it."""
    told = replay_view.view(replayed, costs)
    show(json, told, lambda: replay_view.render(replayed.measures, costs))
    for note in replay_view.notes(replayed):
        progress.print(f"[yellow]note:[/] {note}", soft_wrap=True)
    for line in replayed.broken:
        problem(line)


def replay(stack: Stack, asked: Asked, seconds_max: float, clock: Clock) -> Replayed:
    """Prepare agents and wallets, send the traffic, follow it to its end, and measure."""
    traffic = _traffic(asked)
    progress.print(f"--seed {asked.seed}: the same again sends what is not sent yet", style="dim")
    apis, own = _prepare(stack, traffic, clock, seconds_max)
    started_ms = _now_ms()
    with _bars(traffic) as told, replay_run.Sampler(stack, clock) as sampler:
        run = replay_run.Run(stack, traffic, apis, clock, seconds_max, started_ms, told)
        outcome = run.until_the_end()
    with progress_bar("reading the books", len({row.phone for row in outcome.rows.values()})) as at:
        books = replay_books.read_books(stack, traffic, outcome, at)
    with step("The account") as done:
        told_of = _account(stack, started_ms, outcome, own, clock)
        done.note = f"units told by {told_of[1][0].told_by}"
    measures = _measures(stack, asked, started_ms, outcome, books, told_of)
    return Replayed(
        replace(measures, depths=tuple(sampler.depths)),
        _broken(outcome, books, len(traffic.sent)),
        replay_account.is_whole(told_of[0], outcome),
        outcome.by_hand,
    )


def _measures(
    stack: Stack,
    asked: Asked,
    started_ms: int,
    outcome: Outcome,
    books: Books,
    told_of: tuple[Account, tuple[Units, ...]],
) -> Measures:
    """All but the dead letters. What costs is divided by what this run brought, or is empty."""
    account, units = told_of
    accepted, new = outcome.rows.keys() | outcome.open, len(outcome.new)
    usage = replay_account.usage(account, units, new, outcome.seconds) if new else {}
    return Measures(
        stack=stack.name,
        region=stack.region,
        local=stack.local,
        started_at_ms=started_ms,
        seconds=outcome.seconds,
        asked=asked,
        rate_reached=_rate_reached(asked, outcome),
        interrupted=outcome.interrupted,
        requests=outcome.requests,
        transactions=len(accepted),
        accepted_before=len(accepted - outcome.new),
        statuses=_statuses(outcome),
        duplicates=books.duplicates,
        latency=replay_books.latency(books.settled_ms),
        depths=(),
        units=units if new else (),
        contention_retries=account.counted["ContentionRetries"],
        calls=replay_account.calls_each(account, new) if new else {},
        usage=usage,
    )


def _rate_reached(asked: Asked, outcome: Outcome) -> float:
    """Debits a second, in the time that they were planned for and that the last one was late."""
    planned_s = outcome.debits / asked.rate
    return outcome.debits / (planned_s + outcome.late_s) if outcome.debits else 0.0


def _open(on: On) -> Stack:
    stack = on.open()
    if stack.parameter("Stage") == "prod":
        raise Problem("a replay makes money up: it does not run on a stack whose Stage is prod")
    return stack


def _traffic(asked: Asked) -> Traffic:
    shape, shares = Shape(asked.shape), Shares(**asked.shares)
    return make_traffic(shape, asked.number, seed=asked.seed, shares=shares, rate=asked.rate)


def _prepare(
    stack: Stack, traffic: Traffic, clock: Clock, seconds_max: float
) -> tuple[replay_run.Apis, Account]:
    """Wallets and agents, ready; and what this command itself will have read from now on.

    Wallets are first, as many take a good part of the hour that an agent's token lasts.
    """
    began_ms = _now_ms()
    with step("Wallets") as done:
        replay_run.fund(stack, traffic, clock, seconds_max)
        done.note = f"{len(traffic.openings):,} funded"
    with step("Agents") as done:
        apis = replay_run.open_apis(stack, traffic)
        # What funding causes must not be taken for the replay's.
        replay_account.await_account(stack, began_ms, lambda _: True, clock)
        if not stack.local:  # CloudWatch counts whole minutes, so a replay begins with one
            clock.sleep(60 - time.time() % 60)
        done.note = f"{len(apis)} enrolled, their apps open"
    own = Account()
    calls.watched(stack.dynamodb, own.consume)
    return apis, own


def _account(
    stack: Stack, started_ms: int, outcome: Outcome, own: Account, clock: Clock
) -> tuple[Account, tuple[Units, ...]]:
    """What the functions did, and the units of a million transactions."""
    transactions = max(1, len(outcome.new))
    account = replay_account.await_account(
        stack, started_ms, lambda found: replay_account.is_whole(found, outcome), clock
    )
    if not stack.local:
        others = replay_account.read_account(stack, started_ms, replay_account.CLOCKED)
        others.read.update(own.read)
        window_ms = (started_ms, _now_ms())
        units = replay_account.told_by_cloudwatch(
            stack, window_ms, account, others, transactions, clock
        )
        if units is not None:
            return account, units
    return account, replay_account.told_by_clients(stack, account, transactions)


def _statuses(outcome: Outcome) -> dict[str, int]:
    counted: dict[str, int] = {}
    for row in outcome.rows.values():
        name = f"failed: {row.reason}" if row.status is Status.FAILED else row.status.value
        counted[name] = counted.get(name, 0) + 1
    unseen = len(outcome.open - outcome.rows.keys())
    return counted | ({"not looked at": unseen} if unseen else {})


def _broken(outcome: Outcome, books: Books, to_send: int) -> tuple[str, ...]:
    """What should not be, a line each."""
    sent = to_send - _unsent(outcome, to_send)
    lines = list(books.wrong[:WRONG_SHOWN])
    if len(books.wrong) > WRONG_SHOWN:
        lines.append(f"{len(books.wrong) - WRONG_SHOWN:,} wallets more hold what they should not")
    if books.duplicates:
        lines.append(f"{books.duplicates:,} debits took their money more than once")
    if outcome.open and not outcome.by_hand:
        lines.append(f"{len(outcome.open):,} transactions have not ended: look at `wakala info`")
    if outcome.unseen is not None:
        lines.append(f"the last look at the transactions failed: {outcome.unseen}")
    if outcome.interrupted and not outcome.by_hand:
        lines.append(f"the time was over: {sent:,} of {to_send:,} were sent")
    lines += [
        f"{outcome.requests[word]:,} requests: {word}"
        for word in ("refused", "unsent", "refundsRefused")
        if outcome.requests.get(word)
    ]
    return tuple(lines)


def _unsent(outcome: Outcome, to_send: int) -> int:
    words = ("accepted", "replayed", "refused", "unsent")
    return to_send - sum(outcome.requests.get(word, 0) for word in words)


@contextmanager
def _bars(traffic: Traffic) -> Iterator[Any]:
    """Two bars, of what was sent and of what has ended, on a terminal alone."""
    columns = (TextColumn("{task.description:<8}"), BarColumn(), MofNCompleteColumn())
    with Progress(
        *columns, console=progress, transient=True, disable=not progress.is_terminal
    ) as bars:
        sent = bars.add_task("sent", total=len(traffic.sent))
        first = sum(not each.repeated for each in traffic.sent)
        ended = bars.add_task("settled", total=first)

        def told(now_sent: int, now_ended: int) -> None:
            bars.update(sent, completed=now_sent)
            bars.update(ended, completed=now_ended)

        yield told


def _require(name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        shown = value if isinstance(value, int) else f"{value:g}"
        limit = f"{most:,}" if isinstance(most, int) else f"{most:,g}"
        raise Problem(f"{name} {shown}: {least:g} to {limit}")


def _require_writable(name: str, file: Path) -> None:
    """Told before minutes of replay, not after; nothing is written yet."""
    folder = file.absolute().parent
    if not folder.is_dir():
        raise Problem(f"{name} {file}: there is no such folder")
    if file.is_dir():
        raise Problem(f"{name} {file}: is a folder")
    if not os.access(file if file.exists() else folder, os.W_OK):
        raise Problem(f"{name} {file}: may not be written")


def _now_ms() -> int:
    return int(time.time() * 1000)
