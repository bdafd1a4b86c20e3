"""What a replay measured, as its JSON for scripts and as its tables for a person."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType

from wakala.measures import Measures, Replayed
from wakala.output import coloured, table

if TYPE_CHECKING:
    from wakala.price import Cost


def view(replayed: Replayed, costs: Sequence["Cost"]) -> dict[str, Any]:
    """What scripts get: `measures` as they are, names in camelCase."""
    measures = _camel_case(asdict(replayed.measures))
    # Names of what was counted are no members of ours, and stay as they are.
    for name in ("requests", "statuses", "calls", "usage"):
        measures[name] = dict(getattr(replayed.measures, name))
    return {
        "ok": not replayed.broken,
        "broken": list(replayed.broken),
        "whole": replayed.is_whole,
        "measures": measures | {"duplicatesPerMillion": replayed.measures.duplicates_per_million},
        "notes": [*notes(replayed), *_price_notes(replayed.measures)],
        "costs": [cost.view() for cost in costs],
    }


def render(measures: Measures, costs: Sequence["Cost"]) -> RenderableType:
    """What a person gets."""
    from wakala.price import total

    facts = table("", "")
    facts.show_header = False
    for name, words in _facts(measures):
        facts.add_row(name, words)
    units = table("a million transactions", "write units", "read units", right=_NUMBERS)
    for each in measures.units:
        units.add_row(each.resource, f"{each.written:,.0f}", f"{each.read:,.0f}")
    calls = table("AWS calls of a transaction", "calls", right=_NUMBERS)
    for name, number in measures.calls.items():
        calls.add_row(name, f"{number:,.3f}")
    price = table("price of a million", "dollars", right=_NUMBERS)
    for cost in costs:
        price.add_row(cost.service, f"{cost.dollars:,.2f}")
    if costs:
        price.add_row("all", f"{total(costs):,.2f}")
    return Group("", facts, "", units, "", calls, "", price, *_price_notes(measures))


_NUMBERS = frozenset({"write units", "read units", "calls", "dollars"})


def _facts(measures: Measures) -> Iterator[tuple[str, str]]:
    asked, latency = measures.asked, measures.latency
    yield "replayed", f"{asked.shape}, seed {asked.seed}, {measures.seconds:,.1f} s"
    yield "debits a second", measures.rates()
    if measures.interrupted:
        yield "", coloured("interrupted")
    yield "requests", _listed(measures.requests)
    yield "transactions", f"{measures.transactions:,}: {_listed(measures.statuses)}"
    yield "duplicate debits", f"{measures.duplicates_per_million:,.0f} of a million"
    if latency is None:
        yield "settled after", "nothing was settled"
    else:
        quantiles = {"p50": latency.p50_ms, "p95": latency.p95_ms, "p99": latency.p99_ms}
        words = [f"{name} {ms:,.0f} ms" for name, ms in quantiles.items()]
        yield "settled after", ", ".join([*words, f"at most {latency.max_ms:,.0f} ms"])
    depth = max((each.letters for each in measures.depths), default=0)
    oldest_s = max((each.oldest_s for each in measures.depths), default=0.0)
    yield "dead letters", f"at most {depth:,} at a time, the oldest {oldest_s:,.1f} s old"
    yield "waits for a wallet", f"{measures.contention_retries:,.0f}"


def notes(replayed: Replayed) -> Iterator[str]:
    """What has to be known of the figures, a line each."""
    measures = replayed.measures
    if not replayed.is_whole:
        yield "some of the functions' lines did not come: calls, units and prices are too low"
    if measures.accepted_before:
        yield (
            f"{measures.accepted_before:,} transactions were accepted before this run: time, calls,"
            " units and prices are of the others alone"
        )


def _price_notes(measures: Measures) -> Iterator[str]:
    yield "Not in the price: X-Ray, polls of empty queues, alarms, storage, backups, sign-ins."
    if measures.local:
        yield "Lambda's GB-seconds in it are an emulator's, on this machine."


def _camel_case(value: Any) -> Any:
    match value:
        case dict():
            return {_camel(name): _camel_case(each) for name, each in value.items()}
        case list() | tuple():
            return [_camel_case(each) for each in value]
        case _:
            return value


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{number:,} {word}" for word, number in counts.items() if number) or "none"
