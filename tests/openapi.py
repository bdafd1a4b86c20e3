"""Writes docs/openapi.yaml: the API as its users are told of it, made from what the code goes by.

`make openapi` writes it; tests/shape/test_openapi.py keeps it equal. Bodies come from the
contracts, statuses and codes from the edge's table, the gateway's own answers from the template,
and every example of an answer is one that the edge gave (tests/exchanges.py).
"""

import hashlib
import json
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from ingest.api import BODY_BYTES_MAX, PROBLEMS
from tests.exchanges import (
    DEFAULTS,
    OPERATIONS,
    PARAMETERS,
    REFUND,
    TRANSACTION,
    Exchange,
    Json,
    exchanges,
)
from tests.template import RESOURCES, ROOT
from wallet_ledger.contracts import BATCH_MAX, RefundBody, TransactionBody, read_transaction
from wallet_ledger.domain.transactions import Reason, Status

PATH = ROOT / "docs" / "openapi.yaml"
JSON, PROBLEM = "application/json", "application/problem+json"

STATUSES: Mapping[Status, str] = {
    Status.QUEUED: "accepted and stored; it will be settled, refused, or expire. Ask again",
    Status.SYNCED: "settled: the wallet was debited",
    Status.FAILED: "refused, for `reason`; nothing was debited. Final",
    Status.CANCELLED: "taken back before it was settled; nothing was debited. Final",
    Status.EXPIRED: f"open for {PARAMETERS['OpenDays']} days; nothing was debited. Final",
    Status.REFUND_REQUESTED: "settled, and a refund that its agent asked for is under way",
    Status.PARTIALLY_REFUNDED: "settled, and `refunded` of it went back",
    Status.REFUNDED: "settled, and all of it went back. Final",
}

REASONS: Mapping[Reason, str] = {
    Reason.WALLET_NOT_FOUND: "the phone has no wallet",
    Reason.INSUFFICIENT_FUNDS: "the wallet held less when it was this transaction's turn",
    Reason.WALLET_FROZEN: "the wallet may not be debited",
    Reason.CURRENCY_MISMATCH: "the wallet is kept in another currency",
    Reason.KEY_REUSED: "the books know this key with other content",
    Reason.DISCARDED: "it could not be settled, and a person gave it up",
}
"""Why a transaction failed."""

REFUND_REASONS: Mapping[Reason, str] = {
    Reason.NOTHING_TO_REFUND: "no money moved",
    Reason.EXCEEDS_ORIGINAL: "more than what remains",
    Reason.MISMATCH: "this refund id was refused: another currency",
    Reason.ORIGINAL_NOT_FOUND: "this refund id was refused: it came before its transaction",
}
"""Why a refund is refused for good."""

MEANINGS: Mapping[str, str] = {
    "VALIDATION_FAILED": "Nothing was stored. `errors` names each member and the rule.",
    "UNAUTHENTICATED": "No token, one that has lapsed, or one that names no agent. Get a new ID"
    " token; then the same request again.",
    "AGENT_MISMATCH": "`agentId` is not the token's agent.",
    "ACCESS_DENIED": "The gateway lets nobody with this token do that.",
    "BLOCKED": "A firewall in front refused the request, which says nothing about a transaction. If"
    " it stays so, tell the operator.",
    "NOT_FOUND": "The agent has no such transaction. From the gateway: no such path and method.",
    "REFUND_IN_PROGRESS": "Another refund of the transaction is under way.",
    "NOT_REFUNDABLE": "Retryable while the transaction is not settled: in full it can be cancelled"
    " at once, in part it has to wait. Else final, for `reason`.",
    "TOO_LARGE": f"A body has at most {BODY_BYTES_MAX} bytes, a batch {BATCH_MAX} items.",
    "KEY_REUSED": "The key, or the refund id, stands for a request with other content; `errors`"
    " names what differs. A mistake of the app: show it to a person.",
    "THROTTLED": "More requests than the API admits now.",
    "UNAVAILABLE": "Not now. It may even have been done: the same request again tells.",
}
"""What a code means, and what to do."""

FIELD_CODES: Mapping[str, str] = {
    "missing": "the member is required",
    "unknown_member": "there is no such member",
    "wrong_type": "another JSON type is expected; `1.0` and `1e3` are no integers",
    "out_of_range": "too small or too large",
    "bad_id": "not an id",
    "bad_phone": "not a phone number that is in use",
    "bad_currency": "not a currency of ISO 4217",
    "bad_timestamp": "not RFC 3339 with an offset, in the years 2000 to 2100",
    "bad_text": "not printable, or too long",
    "bad_batch": f"not a list of 1 to {BATCH_MAX}",
    "not_json": "the body is no JSON document",
    "not_strict_json": "a member occurs twice, or NaN, or an endless integer",
    "differs": "not what the key was accepted with",
}

MEMBERS: Mapping[str, Mapping[str, str]] = {
    "TransactionBody": {
        "agentId": "The agent that the token names.",
        "idempotencyKey": "Made by the app when the transaction is recorded, and kept: a UUID is"
        " fine. It names the transaction for good.",
        "phone": "Whose wallet is debited.",
        "amount": "What is debited.",
        "currency": f"Absent or null: the deployment's ({DEFAULTS.currency} unless it was told"
        " otherwise).",
        "capturedAt": "The device's clock when it was recorded. Kept for people, trusted by"
        " nothing; it does not make another request of it.",
    },
    "RefundBody": {
        "refundId": "One refund, one outcome, for good. Each part of a transaction needs an id of"
        " its own.",
        "amount": "Absent: all that remains when it is decided. Null is refused.",
        "reason": "For people. Not part of what makes two requests the same.",
    },
    "BatchBody": {"transactions": "In the order in which they were recorded."},
    "Transaction": {
        "idempotencyKey": "As it was sent.",
        "status": "\n".join(f"- `{each}`: {said}" for each, said in STATUSES.items()),
        "reason": "With `failed` only:\n"
        + "\n".join(f"- `{each}`: {said}" for each, said in REASONS.items()),
        "amount": "As it was accepted.",
        "currency": "As it was accepted.",
        "createdAt": "When it was accepted: milliseconds since 1970, by the server's clock.",
        "updatedAt": "When its status last changed, likewise.",
        "refunded": "What went back so far, in minor units; absent for nothing.",
    },
    "Problem": {
        "title": "The HTTP status in words.",
        "status": "The HTTP status.",
        "code": "What went wrong. Go by this and by `retryable`, not by the texts.",
        "detail": "For developers, in English.",
        "retryable": "Whether the same request may fare better later.",
        "reason": "With `NOT_REFUNDABLE`, where it is final:\n"
        + "\n".join(f"- `{each}`: {said}" for each, said in REFUND_REASONS.items()),
        "errors": "What is wrong, or what differs, member by member.",
    },
    "FieldError": {
        "field": "The member, `$` for the whole document or a member whose name is no name.",
        "code": "\n".join(f"- `{code}`: {said}" for code, said in FIELD_CODES.items()),
        "message": "For developers, in English. Never the value.",
    },
}

TYPES: Mapping[str, str] = {
    "Id": "1 to 64 of A-Z a-z 0-9 . _ : - with a letter or digit first.",
    "PhoneText": "Any usual spelling: digits, spaces, -(). and a leading +. With a leading 0 it is"
    f" national ({DEFAULTS.region} unless the deployment was told otherwise), else international."
    " It must be a number that is in use somewhere; one person is one number, however spelt.",
    "AmountMinor": "Minor units of the currency: 125000 KES are 1,250 shillings. Written as"
    ' digits: `1.0`, `1e3` and `"1"` are refused.',
    "CurrencyCode": "An active code of ISO 4217.",
    "Timestamp": "RFC 3339 with an offset, years 2000 to 2100.",
    "Note": "Printable text of 1 to 140 bytes in UTF-8.",
}

SUMMARIES: Mapping[str, str] = {
    "submitTransaction": "Submit one transaction",
    "submitBatch": f"Submit up to {BATCH_MAX} transactions",
    "getStatus": "Ask what became of a transaction",
    "requestRefund": "Ask for a transaction back, in full or in part",
}
DESCRIPTIONS: Mapping[str, str] = {
    "submitTransaction": "Stores it under its key and answers at once; it is settled within"
    " seconds. Safe to repeat for as long as no answer has come: the first request decides.",
    "submitBatch": "Each gets an answer of its own, in the order of the request, and one bad item"
    " spoils no other. Transactions of one phone are stored in their order; after one that could"
    " not be stored (`UNAVAILABLE`) no later one of that phone is.",
    "getStatus": "As of now. Where an answer was lost, this tells what happened, and so does the"
    " same request again. 404: it was never accepted, or it ended so long ago that this"
    " deployment has forgotten it; in both cases the same request again debits at most once.",
    "requestRefund": "Not settled yet and in full: cancelled at once (200). Settled: on its way"
    " (202), and the status tells when it is done. Safe to repeat with the same `refundId`.",
}

ANSWERS: Mapping[tuple[str, int], str] = {
    ("submitTransaction", 202): "New, and stored durably: the device may forget it now.",
    ("submitTransaction", 200): "The same request was accepted before; this is what became of it.",
    ("submitBatch", 200): "One result for each item, in their order.",
    ("getStatus", 200): "The transaction as it is now.",
    ("requestRefund", 200): "Cancelled now; or the same refund was asked for before.",
    ("requestRefund", 202): "The refund is on its way.",
}

INTRODUCTION = """\
What an agent's app needs: hand over what was recorded without network, learn what became of it,
ask for it back.

## The rules

- **One key, one transaction, for good.** The app makes `idempotencyKey` when the transaction is
  recorded and never changes it. The first request decides what the key means. The same request
  again, a second or a year later, answers 200 with `Idempotent-Replayed: true` and debits nothing.
  With other content it is refused (`KEY_REUSED`), and the first one stands.
- **No answer says nothing.** After a timeout, a dropped connection, or any answer that is
  `retryable`, send the same request again with the same key. Never make a new key for it.
- **Go by `retryable`.** Wait before each retry: a random time between nothing and a bound that
  doubles up to minutes, on top of `Retry-After` where it is given. A thousand phones come online
  in the same second. Whatever is no problem document of this API is retryable too.
- **202 is durable.** What is accepted reaches an end, and the device may be lost.
- **Nothing is guessed at.** A member that occurs twice or is not known here is an error, and so is
  an amount that is not written as an integer. In answers, ignore members that you do not know: more
  may come.
- One item of a batch may be refused while the others are taken; look at each.

The Python SDK `wakala_agent` does all of this.

## Problems

Every answer but 200 and 202 is `application/problem+json` (RFC 9457), the gateway's too.

| `code` | HTTP | Retry | |
|---|---|---|---|
{problems}

## What makes two requests the same

Two requests for a debit are the same if their fingerprints are equal. The server computes them;
an app can, too, to know before it sends:

1. Take six texts: `debit:v1`, `agentId`, `idempotencyKey`, the phone in E.164 without the `+`,
   the amount in decimal digits, the currency (the deployment's where the request names none).
2. Join them with line feeds (U+000A), none at the end, in UTF-8.
3. The fingerprint is the SHA-256 of that, in 64 hexadecimal digits, lower case.

`capturedAt`, the order of members, white space and the spelling of the phone play no part. Refunds
likewise: `refund:v1`, `agentId`, `idempotencyKey`, `refundId` (absent: `full`), the transaction's
phone, and the amount or, where none is given, `full`. `x-fingerprint` has a worked example.
"""


# --- what the sources say --------------------------------------------------------------------


def gateway_problems() -> list[Json]:
    """What the gateway itself answers, by the template; what it says twice, once."""
    responses = RESOURCES["Api"]["Properties"]["GatewayResponses"]
    by_status = sorted(responses.values(), key=lambda each: str(each["StatusCode"]))
    told = dict.fromkeys(each["ResponseTemplates"][JSON] for each in by_status)
    return [json.loads(each) for each in told]


def _codes() -> dict[str, int]:
    """Code → HTTP status, of function and gateway."""
    told = {code: int(status) for code, status in PROBLEMS.items()}
    return told | {each["code"]: each["status"] for each in gateway_problems()}


def _by_status() -> list[tuple[str, int]]:
    return sorted(_codes().items(), key=lambda each: each[1])


def retryable() -> dict[str, bool | None]:
    """Code → whether the same request may fare better later; None: it depends on the answer."""
    told: dict[str, set[bool]] = defaultdict(set)
    for problem in [*gateway_problems(), *(each.body for each in exchanges() if each.code)]:
        told[problem["code"]].add(problem["retryable"])
    return {code: values.pop() if len(values) == 1 else None for code, values in told.items()}


def _problems_table() -> str:
    words, retry = {True: "yes", False: "no", None: "see the answer"}, retryable()
    return "\n".join(
        f"| `{code}` | {status} | {words[retry[code]]} | {MEANINGS[code]} |"
        for code, status in _by_status()
    )


def _fingerprint() -> Json:
    """The worked example: what is digested is written out here, not asked of the domain."""
    request = read_transaction(TRANSACTION, DEFAULTS)
    names = [request.agent_id, request.idempotency_key]
    debit = ["debit:v1", *names, request.phone, str(request.amount_minor), request.currency]
    refund = ["refund:v1", *names, REFUND["refundId"], request.phone, str(REFUND["amount"])]
    return {
        "algorithm": "SHA-256 over the lines, joined by U+000A, in UTF-8; hexadecimal, lower case",
        "defaults": {"currency": DEFAULTS.currency, "region": DEFAULTS.region},
        "debit": {"request": TRANSACTION, "lines": debit, "fingerprint": _digest(debit)},
        "refund": {"request": REFUND, "lines": refund, "fingerprint": _digest(refund)},
    }


def _digest(lines: list[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


# --- schemas ---------------------------------------------------------------------------------


def _ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def _clean(schema: Any) -> Any:
    """A schema of pydantic's as the document has it."""
    match schema:
        case dict():
            kept = {
                name: _clean(each)
                for name, each in schema.items()
                if name not in {"$defs", "title"} and (name, each) != ("default", None)
            }
            if "$ref" in kept:
                kept["$ref"] = kept["$ref"].replace("#/$defs/", "#/components/schemas/")
            return kept
        case list():
            return [_clean(each) for each in schema]
        case _:
            return schema


def _object(properties: Json, required: Iterable[str], **more: Any) -> Json:
    return {"type": "object", "required": list(required), "properties": properties, **more}


def _requests() -> Json:
    """The bodies of requests and the types of their members, by the contracts."""
    schemas: Json = {}
    for model in (TransactionBody, RefundBody):
        schema = model.model_json_schema()
        schemas |= {name: _clean(each) for name, each in schema["$defs"].items()}
        schemas[model.__name__] = _clean(schema)
        schemas[model.__name__].pop("description")
    items = {
        "type": "array",
        "minItems": 1,
        "maxItems": BATCH_MAX,
        "items": _ref("TransactionBody"),
    }
    schemas["BatchBody"] = _object(
        {"transactions": items}, ["transactions"], additionalProperties=False
    )
    return schemas


def _answers() -> Json:
    """The bodies of answers."""
    instant = {"type": "integer", "format": "int64", "minimum": 0}
    transaction = {
        "idempotencyKey": _ref("Id"),
        "status": {"type": "string", "enum": [str(each) for each in STATUSES]},
        "reason": {"type": "string", "enum": [str(each) for each in REASONS]},
        "amount": _ref("AmountMinor"),
        "currency": _ref("CurrencyCode"),
        "createdAt": instant,
        "updatedAt": dict(instant),
        "refunded": _ref("AmountMinor"),
    }
    optional = {"reason", "refunded"}
    taken = _object({"replayed": {"type": "boolean"}}, ["replayed"])
    taken["properties"]["replayed"]["description"] = "Whether it had been accepted before."
    problem = {
        "title": {"type": "string"},
        "status": {"type": "integer", "enum": sorted(set(_codes().values()))},
        "code": {"type": "string", "enum": [code for code, _ in _by_status()]},
        "detail": {"type": "string"},
        "retryable": {"type": "boolean"},
        "reason": {"type": "string", "enum": [str(each) for each in REFUND_REASONS]},
        "errors": {"type": "array", "minItems": 1, "items": _ref("FieldError")},
    }
    strings = {"type": "string"}
    codes = {"type": "string", "enum": list(FIELD_CODES)}
    field_error = {"field": strings, "code": codes, "message": dict(strings)}
    return {
        "Transaction": _object(transaction, [n for n in transaction if n not in optional]),
        "Taken": {"allOf": [_ref("Transaction"), taken]},
        "Refused": _object({"idempotencyKey": _ref("Id"), "error": _ref("Problem")}, ["error"]),
        "BatchAnswer": _object(
            {"results": {"type": "array", "items": {"oneOf": [_ref("Taken"), _ref("Refused")]}}},
            ["results"],
        ),
        "Problem": _object(problem, ["title", "status", "code", "detail", "retryable"]),
        "FieldError": _object(field_error, field_error),
    }


def _schemas() -> Json:
    schemas = _requests() | _answers()
    for name, said in TYPES.items():
        schemas[name] = {"description": said, **schemas[name]}
    for name, members in MEMBERS.items():
        properties = schemas[name]["properties"]
        for member, said in members.items():
            properties[member] = {"description": said, **properties[member]}
    return dict(sorted(schemas.items()))


# --- operations ------------------------------------------------------------------------------


def _example(summary: str, value: Any) -> Json:
    return {"summary": summary, "value": value}


def _request_body(operation: str) -> Json:
    schema = {
        "submitTransaction": "TransactionBody",
        "submitBatch": "BatchBody",
        "requestRefund": "RefundBody",
    }[operation]
    wanted = {
        "submitTransaction": {"transaction": _example("A debit", TRANSACTION)},
        "submitBatch": {
            "two": _example(
                "Two debits",
                {
                    "transactions": [
                        TRANSACTION,
                        TRANSACTION | {"idempotencyKey": "2026-11-02.0043", "amount": 8_000},
                    ]
                },
            )
        },
        "requestRefund": {
            "part": _example("A part of it", REFUND),
            "all": _example("All that remains", {"reason": "wrong customer"}),
        },
    }[operation]
    return {"required": True, "content": {JSON: {"schema": _ref(schema), "examples": wanted}}}


def _answer(operation: str, status: int, given: list[Exchange]) -> Json:
    """An answer that was asked for."""
    schema = "BatchAnswer" if operation == "submitBatch" else "Transaction"
    headers = {"Cache-Control": {"$ref": "#/components/headers/Cache-Control"}}
    replays = ["Idempotent-Replayed" in each.headers for each in given]
    if any(replays):
        said = {"$ref": "#/components/headers/Idempotent-Replayed"}
        headers["Idempotent-Replayed"] = said
    answer = {
        "description": ANSWERS[operation, status],
        "headers": headers,
        "content": {
            JSON: {
                "schema": _ref(schema),
                "examples": {each.name: _example(each.summary, each.body) for each in given},
            }
        },
    }
    if operation == "submitTransaction":
        answer["links"] = {"status": {"$ref": "#/components/links/status"}}
    return answer


def _refusal(status: int, given: list[Exchange], gateway: list[Json]) -> Json:
    """A problem: of the function, of the gateway, or of both."""
    codes = list(
        dict.fromkeys([each.body["code"] for each in given] + [p["code"] for p in gateway])
    )
    retryable = {each.body["retryable"] for each in given} | {p["retryable"] for p in gateway}
    narrowed: Json = {"status": {"const": status}, "code": {"enum": codes}}
    if len(retryable) == 1:
        narrowed["retryable"] = {"const": retryable.pop()}
    examples = {each.name: _example(each.summary, each.body) for each in given}
    for problem in gateway:
        name = "firewall" if problem["code"] == "BLOCKED" else "gateway"
        examples[name] = _example(f"By the {name}", problem)
    answer: Json = {"description": _meanings(codes)}
    if any("Retry-After" in each.headers for each in given) or status in {429, 503}:
        answer["headers"] = {"Retry-After": {"$ref": "#/components/headers/Retry-After"}}
    schema = {"allOf": [_ref("Problem"), {"properties": narrowed}]}
    answer["content"] = {PROBLEM: {"schema": schema, "examples": examples}}
    return answer


def _meanings(codes: list[str]) -> str:
    lines = [f"`{code}`: {MEANINGS[code]}" for code in codes]
    return lines[0] if len(lines) == 1 else "\n".join(f"- {line}" for line in lines)


def _responses(operation: str, seen: list[Exchange]) -> Json:
    given: dict[int, list[Exchange]] = defaultdict(list)
    for each in seen:
        given[each.status].append(each)
    gateway: dict[int, list[Json]] = defaultdict(list)
    for problem in gateway_problems():
        if OPERATIONS[operation][0] == "POST" or problem["code"] != "TOO_LARGE":
            gateway[problem["status"]].append(problem)
    return {
        str(status): _answer(operation, status, given[status])
        if status < 400
        else _refusal(status, given[status], gateway[status])
        for status in sorted(given.keys() | gateway.keys())
    }


def _paths() -> Json:
    seen = exchanges()
    paths: dict[str, Json] = defaultdict(dict)
    for operation, (method, path) in OPERATIONS.items():
        own = [each for each in seen if each.operation == operation]
        told: Json = {
            "operationId": operation,
            "summary": SUMMARIES[operation],
            "description": DESCRIPTIONS[operation],
        }
        if "{idempotencyKey}" in path:
            told["parameters"] = [{"$ref": "#/components/parameters/idempotencyKey"}]
        if method == "POST":
            told["requestBody"] = _request_body(operation)
        told["responses"] = _responses(operation, own)
        paths[path][method.lower()] = told
    return dict(paths)


# --- the document ----------------------------------------------------------------------------


def _servers() -> list[Json]:
    stage = {"default": PARAMETERS["Stage"], "description": "The deployment's parameter Stage."}
    api = {
        "default": "a1b2c3d4e5",
        "description": "Told by `wakala info`, as is the whole address.",
    }
    return [
        {
            "url": "https://{api}.execute-api.{region}.amazonaws.com/{stage}",
            "description": "On AWS",
            "variables": {"api": api, "region": {"default": "eu-west-1"}, "stage": stage},
        },
        {
            "url": "http://localhost:{port}/_aws/execute-api/{api}/{stage}",
            "description": "On one machine, after `make run`",
            "variables": {"port": {"default": "4566"}, "api": dict(api), "stage": dict(stage)},
        },
    ]


def _components() -> Json:
    return {
        "securitySchemes": {
            "agentIdToken": {
                "type": "apiKey",
                "in": "header",
                "name": "Authorization",
                "description": "The bare ID token of an enrolled agent, from the deployment's user"
                " pool in Amazon Cognito; its claim `custom:agentId` names the agent. An access"
                " token names none and is refused.",
            }
        },
        "parameters": {
            "idempotencyKey": {
                "name": "idempotencyKey",
                "in": "path",
                "required": True,
                "description": "The key that the transaction was submitted with.",
                "schema": _ref("Id"),
                "example": TRANSACTION["idempotencyKey"],
            }
        },
        "headers": {
            "Retry-After": {
                "description": "Seconds to wait at least. Wait longer, by a random time: everybody"
                " is told the same.",
                "required": True,
                "schema": {"type": "integer", "minimum": 0},
            },
            "Idempotent-Replayed": {
                "description": "`true` where the same request was accepted before.",
                "schema": {"type": "string", "const": "true"},
            },
            "Cache-Control": {
                "description": "No answer may be kept by anything on its way.",
                "required": True,
                "schema": {"type": "string", "const": "no-store"},
            },
        },
        "links": {
            "status": {
                "operationId": "getStatus",
                "parameters": {"idempotencyKey": "$response.body#/idempotencyKey"},
            }
        },
        "schemas": _schemas(),
    }


def document() -> Json:
    """The whole document."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    retry = retryable()
    errors = [
        {"code": code, "status": status, "retryable": retry[code]} for code, status in _by_status()
    ]
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Wakala",
            "version": project["version"],
            "summary": "Offline transactions of mobile-money agents, settled exactly once.",
            "description": INTRODUCTION.replace("{problems}", _problems_table()),
        },
        "servers": _servers(),
        "security": [{"agentIdToken": []}],
        "paths": _paths(),
        "components": _components(),
        "x-errors": errors,
        "x-fingerprint": _fingerprint(),
    }


class _Dumper(yaml.SafeDumper):
    """Long texts as blocks, short lists on one line, nothing by reference."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write a value as often as it occurs."""
        return True


def _string(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


def _list(dumper: yaml.SafeDumper, values: list[Any]) -> yaml.Node:
    flat = all(not isinstance(each, dict | list) for each in values)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", values, flow_style=flat)


_Dumper.add_representer(str, _string)
_Dumper.add_representer(list, _list)


def text() -> str:
    """The file as it is committed."""
    head = "# Made by `make openapi` from the code; do not edit. For people: docs/api.md.\n"
    body = yaml.dump(document(), Dumper=_Dumper, sort_keys=False, width=100, allow_unicode=True)
    return head + body


if __name__ == "__main__":
    PATH.write_text(text(), encoding="utf-8")
    print(PATH.relative_to(Path.cwd()) if PATH.is_relative_to(Path.cwd()) else PATH)
