"""A replay as one HTML file that needs nothing else: no script, no font, no request."""

import datetime
import html
from collections.abc import Mapping, Sequence
from decimal import Decimal
from importlib import resources
from pathlib import Path
from typing import Any, TypeGuard

from wakala import plots
from wakala.baseline import Baseline, Row, read_baseline
from wakala.measures import Latency, Measures
from wakala.output import Problem
from wakala.price import Cost, Line, total

NOTHING = "—"
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""What the browser may fetch: nothing."""


def write_html(
    measures: Measures, costs: Sequence[Cost], bench: Mapping[str, Any] | None, path: Path
) -> None:
    """Write the report of a replay. `bench`: the JSON of `make bench`, to stand beside it.

    Problem where the file cannot be written, or `bench` is another document; then nothing is.
    """
    baseline = None if bench is None else read_baseline(bench)
    sections = [
        _head(measures),
        _measures(measures),
        _price_and_work(measures, costs),
        _latency(measures.latency),
        _letters(measures),
        _units(measures),
        _calls(measures),
        _costs(costs),
        "" if baseline is None else _baseline(baseline),
        _traffic(measures),
    ]
    _write(path, _page(f"{measures.asked.shape} on {measures.stack}", "\n".join(sections)))


def write_plot(measures: Measures, bench: Mapping[str, Any] | None, path: Path) -> None:
    """Write one plot as an SVG file: the baseline against ours, or without it how soon all settled.

    Problem where there is neither, or the file cannot be written.
    """
    if bench is not None:
        _write(path, plots.alone(plots.comparison_at_a_glance(read_baseline(bench))))
    elif _is_plotted(measures.latency):
        _write(path, plots.alone(plots.latency_share(measures.latency)))
    else:
        raise Problem("there is nothing to plot: nothing settled, and there is no baseline")


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise Problem(f"{path}: cannot be written: {error.strerror}") from error


def _page(title: str, body: str) -> str:
    style = resources.files("wakala").joinpath("replay_report.css").read_text(encoding="utf-8")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Replay of {_text(title)}</title>
<link rel="icon" href="data:,">
<style>
{style}</style>
</head>
<body>
<main>
{body}
<footer><p>Written by <code>wakala replay --html</code>.</p></footer>
</main>
</body>
</html>
"""


def _head(measures: Measures) -> str:
    asked = measures.asked
    began = datetime.datetime.fromtimestamp(measures.started_at_ms // 1_000, datetime.UTC)
    where = "a local emulator" if measures.local else f"AWS, {measures.region}"
    facts = (
        f"Stack {measures.stack}, on {where}",
        f"{began:%Y-%m-%d %H:%M:%S} UTC, took {plots.duration(1_000 * measures.seconds)}",
        f"seed {asked.seed}",
        f"debits: {measures.rates()}",
    )
    notices = []
    if measures.accepted_before:
        notices.append(
            f"{_count(measures.accepted_before, 'transaction')} of {measures.transactions:,} had"
            " been accepted before this run: latency, calls, units and price are of the others."
        )
    if measures.interrupted:
        notices.append("It was interrupted: less was sent than was asked. All below is of that.")
    if measures.local:
        notices.append(
            "A local emulator answered, so the times below are this machine's and say nothing of"
            " AWS; so are the GB-seconds in the price. What holds there too: ratios within one"
            " run, units, and calls as its groups fell."
        )
    return f"""<header>
<p class="kind">Wakala replay</p>
<h1>{asked.number:,} debits, {_text(asked.shape)}, at {asked.rate:,.6g} a second</h1>
<p class="facts">{_text(" · ".join(facts))}</p>
{"".join(f'<p class="notice">{_text(notice)}</p>' for notice in notices)}
</header>"""


def _measures(measures: Measures) -> str:
    """The four that the article asks for."""
    latency, depths, units = measures.latency, measures.depths, measures.units
    duplicates = _card("Duplicate debits a million", NOTHING, "No transaction was accepted")
    if measures.transactions:
        among = _count(measures.transactions, "transaction")
        words = f"{measures.duplicates:,} beyond the first of {among}, by entries and balances"
        kind = "bad" if measures.duplicates else "good"
        number = _number(measures.duplicates_per_million)
        duplicates = _card("Duplicate debits a million", number, words, kind)
    median = _card("Settle latency, median", NOTHING, "Nothing has settled")
    if latency is not None:
        p50, p95, p99 = map(plots.duration, (latency.p50_ms, latency.p95_ms, latency.p99_ms))
        median = _card("Settle latency, median", p50, f"95 % within {p95}, 99 % within {p99}")
    letters = _card("Dead letters at most", NOTHING, "Nobody has looked")
    if depths:
        oldest = plots.duration(1_000 * max(each.oldest_s for each in depths))
        words = f"{depths[-1].letters:,} at the end; the oldest ever was {oldest} old"
        letters = _card("Dead letters at most", f"{max(d.letters for d in depths):,}", words)
    consumed = _card("Write units a million", NOTHING, "Nobody has counted")
    if units:
        words = f"{_number(sum(each.read for each in units))} read units, all tables and indexes"
        written = _number(sum(each.written for each in units))
        consumed = _card("Write units a million", written, words)
    return f'<ul class="cards">{duplicates}{median}{letters}{consumed}</ul>'


def _price_and_work(measures: Measures, costs: Sequence[Cost]) -> str:
    cards = [
        _card(
            "Price of a million",
            _dollars(total(costs)) if costs else NOTHING,
            f"At list prices of {costs[0].region}, {costs[0].date}" if costs else "Not priced",
        ),
        _card(
            "AWS calls a transaction",
            f"{sum(measures.calls.values()):,.2f}" if measures.calls else NOTHING,
            f"Of {_count(len(measures.calls), 'function')}" if measures.calls else "Not counted",
        ),
        _card(
            "Contention retries",
            _number(measures.contention_retries),
            "Writes that met another one of the same wallet and came again",
        ),
    ]
    return f'<ul class="cards">{"".join(cards)}</ul>'


def _latency(latency: Latency | None) -> str:
    note = (
        "From acceptance to the ledger's entry, by the servers' clocks, of what was posted. An"
        " entry is dated as it is written, so the round trip of its own commit is not in it. Time"
        " is on a logarithmic axis."
    )
    if latency is None:
        return _section("Settle latency", note, _quiet("Nothing has settled."))
    drawn = ""
    if _is_plotted(latency):
        share = _figure("Share settled within", plots.latency_share(latency))
        counts = _figure("Transactions that took as long", plots.latency_histogram(latency))
        drawn = f'<div class="plots">{share}{counts}</div>'
    return _section("Settle latency", f"{note} {plots.in_words(latency)}", drawn)


def _letters(measures: Measures) -> str:
    note = (
        "Transactions that a person or a retry must still bring to an end, as time went by: open"
        " letters, and messages that wait in the queues of what failed. A refusal's letter is filed"
        " and closed at once, so it is not among them; nor is a message while it is being read."
    )
    depths = measures.depths
    if not depths:
        return _section("Dead letters", note, _quiet("Nobody has looked."))
    if not any(each.letters for each in depths):
        looks = f"There was none, at {_count(len(depths), 'look')}."
        return _section("Dead letters", note, f'<p class="good">{looks}</p>')
    depth = _figure("Dead letters", plots.letters_depth(depths))
    age = _figure("Age of the oldest", plots.letters_age(depths))
    return _section("Dead letters", note, f'<div class="plots">{depth}{age}</div>')


def _units(measures: Measures) -> str:
    rows = [
        (
            "",
            [
                f"{each.resource}\ncounted by {each.told_by}",
                *map(_number, (each.written, each.read)),
            ],
        )
        for each in measures.units
    ]
    if len(rows) > 1:
        written = sum(each.written for each in measures.units)
        read = sum(each.read for each in measures.units)
        rows.append(("sum", ["Together", _number(written), _number(read)]))
    note = "What DynamoDB counts for a million transactions, from acceptance to their end."
    table = _table("", ("table or index", "write units", "read units"), rows)
    return _section("Consumed units", note, table or _quiet("Nobody has counted."))


def _calls(measures: Measures) -> str:
    rows = [("", [name, f"{calls:,.2f}"]) for name, calls in measures.calls.items()]
    if len(rows) > 1:
        rows.append(("sum", ["Together", f"{sum(measures.calls.values()):,.2f}"]))
    note = "Requests of our functions to AWS. A batch that is settled at once shares its calls."
    if not rows:
        return _section("AWS calls", note, _quiet("Nobody has counted."))
    bars = _figure("AWS calls a transaction", plots.call_bars(measures.calls))
    table = _table("", ("function", "calls a transaction"), rows)
    return _section("AWS calls", note, f'<div class="plots">{bars}{table}</div>')


def _costs(costs: Sequence[Cost]) -> str:
    if not costs:
        return _section("Price", "", _quiet("Nothing is priced."))
    note = (
        f"A million transactions at list prices of {costs[0].region}, {costs[0].date}: the first"
        " tier, no free tier, no tax. Not in it: X-Ray, the pollers' receives of empty queues,"
        " alarms, storage and its copies for recovery, sign-ins of Cognito. Parts are added as they"
        " are and rounded when they are shown."
    )
    rows = []
    for cost in costs:
        rows.append(("head", [cost.service, "", _dollars(cost.dollars)]))
        rows += [
            ("", [f"{line.name}\n{_price(line)}", _number(line.quantity), _dollars(line.dollars)])
            for line in cost.lines
        ]
    rows.append(("sum", ["Together", "", _dollars(total(costs))]))
    bars = _figure("Dollars by service", plots.cost_bars(costs), "lone")
    table = _table("", ("what is billed", "quantity", "dollars"), rows)
    return _section("Price", note, bars + table)


def _baseline(baseline: Baseline) -> str:
    note = (
        "One seeded load through the article's algorithm, a naive one and ours, on one emulator, in"
        f" turns: {_count(baseline.number, 'debit')} a load, {_count(baseline.rounds, 'round')},"
        f" seed {baseline.seed}; medians. Times are that emulator's, so only their ratios count;"
        " units hold on AWS, and calls where batches come as full as the benchmark's."
    )
    metrics = (plots.PER_SECOND, plots.CALLS, plots.WRITES, plots.DUPLICATES)
    drawn = "".join(
        _figure(metric.title, plots.comparison(f"bench-{at}", baseline, metric))
        for at, metric in enumerate(metrics)
    )
    rows = []
    for shape in baseline.shapes:
        rows.append(("head", [shape, *[""] * 7]))
        rows += [("", _backend(row)) for row in baseline.rows if row.shape == shape]
    columns = ("backend", "settled/s", "calls", "write units", "read units")
    table = _table("", (*columns, "duplicates", "overdrawn", "open"), rows)
    plotted = f'<div class="plots">{drawn}</div>'
    return _section("The baseline against ours", note, plotted + table + _targets(baseline))


def _backend(row: Row) -> list[str]:
    return [
        row.backend,
        plots.PER_SECOND.text(row.per_second),
        plots.CALLS.text(row.calls),
        *(
            NOTHING if units is None else plots.WRITES.text(units)
            for units in (row.write_units, row.read_units)
        ),
        *(f"{count:,}" for count in (row.duplicates, row.overdrawn, row.open)),
    ]


def _targets(baseline: Baseline) -> str:
    rows = [
        (
            "good" if each.met else "bad",
            [
                f"{each.name}\n{each.side} {each.target:,.6g}",
                _number(each.value),
                "✓ met" if each.met else "✗ not met",
            ],
        )
        for each in baseline.targets
    ]
    return _table("Targets", ("figure, and what it must be", "found", "verdict"), rows)


def _traffic(measures: Measures) -> str:
    """What was sent, what was answered, and where it is now."""
    shares = [("", [name, f"{100 * part:g} %"]) for name, part in measures.asked.shares.items()]
    sent = [("", [name, f"{count:,}"]) for name, count in measures.requests.items()]
    now = [("", [name, f"{count:,}"]) for name, count in measures.statuses.items()]
    tables = (
        _table("Asked for, of the debits", ("kind", "part"), shares),
        _table("Requests by their answer", ("answer", "requests"), sent),
        _table("Transactions by where they are now", ("status", "transactions"), now),
    )
    return _section("What was replayed", "", f'<div class="tables">{"".join(tables)}</div>')


def _section(title: str, note: str, body: str) -> str:
    words = f'<p class="quiet">{_text(note)}</p>' if note else ""
    return f"<section>\n<h2>{_text(title)}</h2>\n{words}\n{body}\n</section>"


def _card(title: str, figure: str, words: str, kind: str = "") -> str:
    return (
        f'<li><h2>{_text(title)}</h2><span class="figure {kind}">{_text(figure)}</span>'
        f"<p>{_text(words)}</p></li>"
    )


def _figure(caption: str, plot: plots.Plot, kind: str = "") -> str:
    words = f"<figcaption>{_text(caption)}</figcaption>"
    return f'<figure class="{kind}">{words}{plots.inline(plot)}</figure>'


def _table(caption: str, columns: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]]) -> str:
    """A table of rows, each with its kind and its cells; all but the first cell are numbers.

    The first cell may have a second line, which is small.
    """
    if not rows:
        return ""
    head = "".join(f'<th scope="col">{_text(name)}</th>' for name in columns)
    body = "".join(
        f'<tr class="{kind}"><th scope="row">{_lines(first)}</th>'
        + "".join(f"<td>{_text(cell)}</td>" for cell in numbers)
        + "</tr>\n"
        for kind, (first, *numbers) in rows
    )
    title = f"<caption>{_text(caption)}</caption>" if caption else ""
    return (
        f'<div class="table"><table>{title}\n<thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{body}</tbody></table></div>"
    )


def _lines(text: str) -> str:
    first, _, second = text.partition("\n")
    return f"{_text(first)}<br><small>{_text(second)}</small>" if second else _text(first)


def _quiet(text: str) -> str:
    return f'<p class="quiet">{_text(text)}</p>'


def _is_plotted(latency: Latency | None) -> TypeGuard[Latency]:
    return latency is not None and any(count for _, count in latency.bins)


def _text(text: str) -> str:
    """Text from elsewhere is no markup."""
    return html.escape(plots.plain(text))


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def _number(value: float | Decimal) -> str:
    """Whole from 100 on, where no fraction tells anything, and else to the hundredth."""
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:,.2f}"


def _dollars(dollars: Decimal) -> str:
    return "< $0.01" if 0 < dollars < Decimal("0.005") else f"${dollars:,.2f}"


def _price(line: Line) -> str:
    cents = round(line.price, 2)
    shown = f"{cents:.2f}" if line.price == cents else f"{line.price.normalize():f}"
    return f"${shown} each" if line.per == 1 else f"${shown} for {line.per:,}"
