"""What hardly any history meets by itself, put into one: some bugs show only there.

An item draws all that it needs from its number, so that the numbers here say on what, and how long.
"""

from dataclasses import replace

from tests.simulation.histories.plan import Deed, Fault, Item, Plan


def with_refunds_down_for_days(history: Plan) -> Plan:
    """Refunds that nobody gives, and more than a week."""
    at = history.steps // 2
    return _with(
        history,
        Item(at, Fault.DOWN, 1),  # of this number: refund, for nine days
        Item(at, Deed.REFUND, 1),
        Item(at, Deed.REFUND, 2),
        Item(at, Deed.BUS_REFUND, 1),
        *(Item(at + later, Deed.TIME, 2) for later in (40, 60, 80)),  # of this: eight days
    )


def with_events_given_up_twice(history: Plan) -> Plan:
    """Events that come twice, and for hours nobody who takes them, or does anything else."""
    at = history.steps // 3
    before = tuple(each for each in history.items if each.at < at)
    return _with(
        replace(history, steps=4 * history.steps, items=before),
        Item(at, Fault.CRASHING, 22),  # of this number: ingest-bus, for six hours
        *(Item(at, Fault.EVENT_TWICE, number) for number in (0, 6)),  # of these: two events
        *(Item(at, Deed.CREDIT, number) for number in range(4)),
    )


def with_keys_used_again_in_dollars(history: Plan) -> Plan:
    """Debits that are purged, whose keys then mean debits in dollars; and refunds of the first."""
    at = history.steps // 2
    before = tuple(each for each in history.items if each.at < at)
    dollars = (10, 70, 75, 81, 85, 94, 101, 104, 131, 144, 146, 185)
    later = at + history.steps
    return _with(
        replace(history, steps=3 * history.steps, retention_days=30, items=before),
        Item(at, Fault.PURGED, 1),  # of this number: a month
        *(Item(later, Deed.RESEND_OTHER, number) for number in dollars),  # of these: mostly so
        *(Item(later + 80, Deed.BUS_REFUND, number) for number in range(40)),
    )


def _with(history: Plan, *more: Item) -> Plan:
    return replace(history, items=tuple(sorted((*history.items, *more), key=lambda each: each.at)))
