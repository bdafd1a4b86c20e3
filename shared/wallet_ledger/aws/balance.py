"""The one way in which a balance row is written."""

from typing import Any

from wallet_ledger.aws import items
from wallet_ledger.domain.ids import Phone
from wallet_ledger.domain.wallets import Wallet


def balance_write(
    table: str, phone: Phone, *, seen: Wallet | None, after: Wallet | None, needed_minor: int
) -> dict[str, Any]:
    """An item of a transaction: the balance moved where something is posted, else only held.

    A refusal is final, so it too stands on the balance as it is at the write. `needed_minor` is
    the smallest balance that all that is posted can be taken from.
    """
    condition, values = _still_as_seen(seen, needed_minor)
    row: dict[str, Any] = {
        "TableName": table,
        "Key": items.ledger_key(phone, items.BALANCE),
        "ConditionExpression": condition,
        "ExpressionAttributeNames": {"#version": "version"},
    }
    if after is None:  # nor was there any: no wallet is ever closed
        return {"ConditionCheck": row}
    row["ExpressionAttributeNames"]["#status"] = "status"
    row["ExpressionAttributeValues"] = values
    if after == seen:
        return {"ConditionCheck": row}
    values |= {
        ":change": {"N": str(after.balance_minor - (seen.balance_minor if seen else 0))},
        ":version": {"N": str(after.version)},
        ":status": {"S": after.status},
    }
    balance = "balanceMinor = balanceMinor + :change"
    if seen is None:  # it opens; no wallet ever changes its currency
        values[":currency"] = {"S": after.currency}
        balance = "currency = :currency, balanceMinor = :change"
    update = f"SET {balance}, #version = :version, #status = :status"
    return {"Update": row | {"UpdateExpression": update}}


def _still_as_seen(seen: Wallet | None, needed_minor: int) -> tuple[str, dict[str, Any]]:
    """The condition on the balance row, and its values.

    The version alone says that nothing moved since. The funds are a condition of their own all
    the same: whatever else may be wrong, this write cannot take a balance below zero.
    """
    if seen is None:
        return "attribute_not_exists(#version)", {}
    conditions = (
        "#version = :seen",
        "#status = :seenStatus",
        "currency = :seenCurrency",
        "balanceMinor >= :needed",
    )
    return " AND ".join(conditions), {
        ":seen": {"N": str(seen.version)},
        ":seenStatus": {"S": seen.status},
        ":seenCurrency": {"S": seen.currency},
        ":needed": {"N": str(needed_minor)},
    }
