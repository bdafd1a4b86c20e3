"""The letter queues' edge: keep each record, and let its message go only then."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from triage.keep import Kept
from triage.reading import read
from wallet_ledger.domain.letters import Arrival
from wallet_ledger.errors import Unavailable
from wallet_ledger.telemetry import count, count_by, log_failure, logger

type Record = Mapping[str, Any]
type Keep = Callable[[Arrival, str], Kept]


def handle_batch(records: Sequence[Record], keep: Keep) -> dict[str, list[dict[str, str]]]:
    """The answer to Lambda: the message ids that stay in their queue."""
    again: list[str] = []
    for record in records:
        try:
            _report(keep(read(record), _verbatim(record)))
        except Unavailable as error:
            logger.warning("letter not kept", extra=_named(record) | {"code": error.code})
            again.append(record["messageId"])
        except Exception as error:  # one letter's trouble must not keep nine others in their queue
            log_failure("letter not kept", error, **_named(record))
            again.append(record["messageId"])
    if again:
        count("LettersLeft", len(again))
    return {"batchItemFailures": [{"itemIdentifier": message_id} for message_id in again]}


def _named(record: Record) -> dict[str, str]:
    queue = str(record["eventSourceARN"]).rpartition(":")[2]
    return {"queue": queue, "messageId": str(record["messageId"])}


def _verbatim(record: Record) -> str:
    """All of the record but the handle, which is of no use to anybody later.

    Unescaped where UTF-8 can spell it: escaped, 1 MiB may be three, near what a transaction takes.
    """
    kept = {name: record[name] for name in record if name != "receiptHandle"}
    text = json.dumps(kept, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # half a surrogate pair
        return json.dumps(kept)
    return text


def _report(kept: Kept) -> None:
    """One log line per letter, and its metric."""
    letter = kept.letter
    if kept.new:
        count_by("DeadLetters", "verdict", letter.verdict)
    else:
        count("LettersSuppressed")
    named = {
        "letter": letter.letter_id,
        "source": letter.source,
        "class": letter.letter_class,
        "verdict": letter.verdict,
        "why": letter.why,
        "group": letter.fingerprint,
        "new": kept.new,
    }
    logger.info("letter kept", extra=named)
