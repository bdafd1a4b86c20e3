"""What the clock asks for each minute: redrive what has waited, close what is settled."""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from triage.act import Desk, Outcome
from wallet_ledger.domain.letters import LETTER_SHARDS, Letter, LetterStatus
from wallet_ledger.errors import Unavailable
from wallet_ledger.ports import LetterPage

SHARD_LETTERS_MAX = 500
"""Open letters of each shard that one run sees: bounds its reads, and its counts."""
LANES = 8
"""Lanes that one run works for at once."""

type Look = Callable[[Letter], Outcome]
type Work = Callable[[Sequence[Letter]], Counter[Outcome]]


@dataclass(frozen=True, slots=True)
class Watched:
    """What one run saw and did. Counts are floors once a shard holds more than is read of it.

    `unread`: shards that could not be read, whose letters are left to the next run; `unreadable`:
    ids of what is in the index and no letter to us.
    """

    open_letters: int
    parked: int
    oldest_age_s: int
    unread: int
    unreadable: tuple[str, ...]
    done: Counter[Outcome]


def watch(desk: Desk, deadline_ms: int, look: Look, in_thread: Callable[[Work], Work]) -> Watched:
    """One run over all open letters that are due: lanes side by side, each in its order.

    `look` says what has become of a letter, and raises nothing; `in_thread` prepares a call for
    another thread. Raises `Unavailable` where no letter at all could be read.
    """
    now_ms = desk.clock.now_ms()
    letters, unread, unreadable = _open_letters(desk)
    due = [
        letter for letter in letters if letter.due_at_ms is not None and letter.due_at_ms <= now_ms
    ]

    def work(lane: Sequence[Letter]) -> Counter[Outcome]:
        done: Counter[Outcome] = Counter()
        for letter in lane:
            if desk.clock.now_ms() >= deadline_ms:
                break
            outcome = look(letter)
            done[outcome] += 1
            held_up = outcome is Outcome.CONTENDED and letter.status is LetterStatus.WAITING
            if held_up:  # what comes later must not overtake it
                break
        return done

    with ThreadPoolExecutor(max_workers=LANES) as pool:
        done = sum(pool.map(in_thread(work), _lanes(due)), Counter[Outcome]())
    oldest_ms = min((letter.arrived_at_ms for letter in letters), default=now_ms)
    return Watched(
        open_letters=len(letters),
        parked=sum(letter.status is LetterStatus.PARKED for letter in letters),
        oldest_age_s=max(0, now_ms - oldest_ms) // 1000,
        unread=unread,
        unreadable=unreadable,
        done=done,
    )


def _open_letters(desk: Desk) -> tuple[list[Letter], int, tuple[str, ...]]:
    letters: list[Letter] = []
    unreadable: list[str] = []
    unread: list[Unavailable] = []
    for shard in range(LETTER_SHARDS):
        try:
            page = desk.letters.page(LetterPage(shard, True, SHARD_LETTERS_MAX))
            letters += page.letters
            unreadable += page.unreadable
        except Unavailable as error:
            unread.append(error)
    if len(unread) == LETTER_SHARDS:
        raise unread[0]
    return letters, len(unread), tuple(unreadable)


def _lanes(due: Sequence[Letter]) -> list[list[Letter]]:
    """Letters that go one after the other, in the order in which they were sent.

    Those of one phone keep their order. Those of one subject share its budget, whatever phones
    they name: side by side both would spend the last of it. Either joins lanes.
    """
    leads: dict[str, str] = {}

    def first_of(name: str) -> str:
        while (lead := leads.get(name, name)) != name:
            name = lead
        return name

    for letter in due:
        leads[first_of(letter.subject_ref)] = first_of(letter.lane or letter.subject_ref)
    lanes: dict[str, list[Letter]] = defaultdict(list)
    for letter in sorted(due, key=_sent_at_ms):
        lanes[first_of(letter.subject_ref)].append(letter)
    return list(lanes.values())


def _sent_at_ms(letter: Letter) -> int:
    return letter.original.sent_at_ms or letter.arrived_at_ms
