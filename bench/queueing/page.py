"""The tables and the picture of docs/scale.md, made by the model."""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from bench.queueing import times
from bench.queueing.limits import FIFO_LOOKED_AT, LIMITS, READ_ON
from bench.queueing.scenarios import (
    AGENTS,
    OFFERED,
    PER_HOUR,
    Curve,
    HotWallet,
    Scale,
    advised,
    aws,
    curves,
    hot_wallet_ceilings,
    ladder,
    month_end_peak,
    scales,
    seconds_until_others_wait,
)

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "scale.md"
PICTURE = ROOT / "docs" / "scale.svg"

LEFT, TOP, WIDTH, HEIGHT = 56, 44, 560, 300
LEAST, MOST = 10, 6_000
"""Of both axes, transactions a second."""
COLOURS = ("#2f7d4f", "#2f5f9d", "#d98c3f", "#b03a3a")
STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#333}.t{font-weight:600;font-size:14px}"
    ".n{fill:#777;font-size:11px}.g{stroke:#ddd}.l{stroke:#999}"
)


def tables() -> Mapping[str, str]:
    """Each table of the page, in Markdown, by the name of its place."""
    return {
        "limits": _limits(),
        "times": _times(),
        "ladder": _ladder(),
        "scales": _scales(),
        "advised": _advised(),
        "hot": _hot(hot_wallet_ceilings()),
    }


def placed(text: str, made: Mapping[str, str]) -> str:
    """The page with each table in its place, between `<!-- name -->` and `<!-- end -->`."""
    for name, table in made.items():
        places = re.findall(rf"<!-- {name} -->\n.*?<!-- end -->", text, flags=re.DOTALL)
        if len(places) != 1:
            raise ValueError(f"{PAGE.name}: {len(places)} places for the table {name}, not one")
        text = text.replace(places[0], f"<!-- {name} -->\n{table}<!-- end -->")
    return text


def write(made: Mapping[str, str], drawn: str) -> None:
    """Put tables and picture where they belong."""
    PAGE.write_text(placed(PAGE.read_text(encoding="utf-8"), made), encoding="utf-8")
    PICTURE.write_text(drawn, encoding="utf-8")


def _markdown(header: Sequence[str], rows: Iterable[Sequence[str]], *, words: int = 1) -> str:
    """`words`: the columns from the left that hold words; the others hold numbers."""
    rule = ["---"] * words + ["--:"] * (len(header) - words)
    lines = [f"| {' | '.join(header)} |", f"|{'|'.join(rule)}|"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join(lines) + "\n"


def _limits() -> str:
    return _markdown(
        ["What", "Limit", "Can be raised"],
        (
            (
                each.what,
                f"[{each.value:,.0f}]({each.page}) {each.unit}".strip(),
                "yes" if each.can_grow else "no",
            )
            for each in LIMITS
        ),
        words=3,
    )


def _times() -> str:
    here, there = times.measured(), aws()
    ten = [10]
    steps: list[tuple[str, Callable[[times.ServiceTimes], float]]] = [
        ("accept one", lambda t: t.accept_s() * 1000),
        ("settle one of one wallet", lambda t: t.settle_s([1], group_commit=True) * 1000),
        ("settle ten of one wallet, as one", lambda t: t.settle_s(ten, group_commit=True) * 1000),
        ("the same, one by one", lambda t: t.settle_s(ten, group_commit=False) * 1000),
        ("settle one of ten wallets", lambda t: t.settle_s([1] * 10, group_commit=True) * 1000),
        ("send ten messages", lambda t: t.send_ms),
        ("put ten events", lambda t: t.put_events_ms),
        ("hand over a batch of the queue (assumed)", lambda t: t.hand_over_ms),
    ]
    return _markdown(
        ["Milliseconds to", here.name, there.name],
        ((name, f"{of(here):.0f}", f"{of(there):.0f}") for name, of in steps),
    )


def _ladder() -> str:
    return _markdown(
        ["Full first", "Raised by", "Carries, tx/s", "Simulated"],
        (
            (
                each.station.name,
                each.station.raised_by,
                f"{each.station.carries:,.0f}",
                f"{each.played.per_second:,.0f}",
            )
            for each in ladder()
        ),
        words=2,
    )


def _scales() -> str:
    header = ["Agents", "Set", "Full first", "tx/s", "Busy", "Settled, tx/s", "p99"]
    header += ["Busy at a month-end", "An hour of its spike leaves", "p99 of it"]
    pairs = [("as deployed", each) for each in scales(as_advised=False)]
    pairs += [("as advised", each) for each in scales(as_advised=True)]
    return _markdown(header, (_scale(name, each) for name, each in pairs), words=3)


def _scale(name: str, each: Scale) -> list[str]:
    month_end = each.month_end
    return [
        f"{each.agents:,}",
        name,
        each.first.name,
        f"{each.rate:,.0f}",
        f"{each.busy:,.0%}",
        f"{each.even.per_second:,.0f}",
        "grows" if each.busy >= 1 else f"{each.even.percentile_s(99):.1f} s",
        f"{each.busy * month_end_peak():,.0%}",
        f"{each.left_by_an_hour:,.0f}",
        f"{month_end.percentile_s(99):.1f} s" if month_end else "grows",
    ]


def _advised() -> str:
    rows = []
    for agents in AGENTS:
        peak = agents * PER_HOUR / 3_600 * month_end_peak()
        each = advised(peak)
        rows.append(
            [
                f"{agents:,}",
                f"{peak:,.0f}",
                f"{each.api_rate:,}",
                f"{each.api_burst:,}",
                f"{each.relay_parallelism}",
                f"{each.reconcile_concurrency}",
                _warm(each.offline_tx_writes),
                _warm(each.wallet_ledger_writes),
            ]
        )
    names = ["ApiRateLimit", "ApiBurstLimit", "RelayParallelism", "ReconcileConcurrency"]
    names += ["OfflineTxWarmWrites", "WalletLedgerWarmWrites"]
    return _markdown(["Agents", "Peak, tx/s", *(f"`{name}`" for name in names)], rows, words=0)


def _warm(writes: float) -> str:
    """What a new table has needs no warming: 0, the parameter's default."""
    return "0" if writes <= 4_000 else f"{writes:,.0f}"


def _hot(found: Sequence[HotWallet]) -> str:
    header = ["Wallets", "Settled", "By write units, tx/s", "By turns, AWS", "Simulated"]
    header += ["By turns, local engine", "Simulated", "Others wait after"]
    half = len(found) // 2
    rows = []
    for there, here in zip(found[:half], found[half:], strict=True):
        until_s = seconds_until_others_wait(
            there.by_turns, 2 * there.by_turns, FIFO_LOOKED_AT.value
        )
        rows.append(
            [
                str(there.wallets),
                "by groups" if there.group_commit else "one by one",
                f"{there.by_units:,.0f}",
                f"{there.by_turns:,.0f}",
                f"{there.played:,.0f}",
                f"{here.by_turns:,.0f}",
                f"{here.played:,.0f}",
                f"{until_s / 60:,.0f} min",
            ]
        )
    return _markdown(header, rows, words=2)


def picture() -> str:
    """What is settled by what is offered; dashed, what the utilisation law says at most."""
    found = curves()
    tall = TOP + HEIGHT + 52 + 18 * len(found)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 30} {tall}">',
        f"<style>{STYLE}</style>",
        '<rect width="100%" height="100%" fill="#fff"/>',
        _text(LEFT, 20, "Settled a second, by what agents send a second", "t"),
        *_axes(),
    ]
    for number, (curve, colour) in enumerate(zip(found, COLOURS, strict=True)):
        parts += _drawn(curve, colour, TOP + HEIGHT + 48 + 18 * number)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _axes() -> list[str]:
    base, parts = TOP + HEIGHT, []
    for at in (10, 100, 1_000):
        parts += [
            f'<path class="g" d="M{_x(at)} {TOP}V{base}M{LEFT} {_y(at)}H{LEFT + WIDTH}"/>',
            _text(LEFT - 40, _y(at) + 4, f"{at:,}", "n"),
            _text(_x(at) - 4, base + 15, f"{at:,} (of {at * 3_600 // PER_HOUR:,} agents)", "n"),
        ]
    return [*parts, f'<path class="l" fill="none" d="M{LEFT} {TOP}V{base}H{LEFT + WIDTH}"/>']


def _drawn(curve: Curve, colour: str, legend_y: int) -> list[str]:
    places = [(_x(rate), _y(curve.points[rate])) for rate in OFFERED]
    line = "L".join(f"{x} {y}" for x, y in places)
    bound = _y(curve.bound)
    return [
        f'<path d="M{LEFT} {bound}H{LEFT + WIDTH}" stroke="{colour}" stroke-dasharray="4 3"/>',
        f'<path d="M{line}" stroke="{colour}" stroke-width="2" fill="none"/>',
        *(f'<circle cx="{x}" cy="{y}" r="3" fill="{colour}"/>' for x, y in places),
        f'<rect x="{LEFT}" y="{legend_y - 9}" width="10" height="10" fill="{colour}"/>',
        _text(LEFT + 16, legend_y, f"{curve.name}: {curve.bound:,.0f} at most"),
    ]


def _x(rate: float) -> int:
    return LEFT + round(WIDTH * _share(rate))


def _y(rate: float) -> int:
    return TOP + HEIGHT - round(HEIGHT * _share(rate))


def _share(rate: float) -> float:
    return math.log(max(rate, LEAST) / LEAST) / math.log(MOST / LEAST)


def _text(x: int, y: int, text: str, kind: str = "") -> str:
    marked = f' class="{kind}"' if kind else ""
    return f'<text{marked} x="{x}" y="{y}">{text}</text>'


def read_on() -> str:
    """When the limits were read, and the times measured."""
    return f"limits read on {READ_ON}, times measured on {times.measured_on()}"
