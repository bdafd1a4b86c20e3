"""The numbers and the picture of docs/backoff.md, made by the simulation; run it to write them."""

import re
from collections import Counter
from collections.abc import Mapping
from functools import cache
from random import Random

from tests.simulation.herd.agents import AGENTS, RATE_PER_S, STRATEGIES, Course, Herd, sync_at_once
from tests.template import ROOT

SEED = 1
PAGE = ROOT / "docs" / "backoff.md"
PICTURE = ROOT / "docs" / "backoff.svg"
SHOWN_S = 60

LEFT, TOP, WIDTH, HEIGHT, GAP = 50, 52, 660, 84, 34
SCALE_MAX = 1_200
STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#333}.t{font-weight:600;font-size:14px}"
    ".n{fill:#777;font-size:11px}.a{fill:#2f7d4f}.r{fill:#d98c3f}.l{stroke:#bbb}"
    ".c{stroke:#777;stroke-dasharray:4 3}"
)
HEADER = (
    "| 1,000 agents | Busiest second | Busiest after the first | Busiest after ten | Requests"
    " | of them refused | All sent after | All heard after |"
)

BOUNDS_HEADER = (
    "| First bound | Busiest after the first | Requests | of them refused | Half sent after"
    " | 19 of 20 |"
)


@cache
def courses() -> Mapping[str, Course]:
    """What each strategy leads to, by its name."""
    return {each.name: Herd(each, Random(SEED)).run() for each in STRATEGIES}


def table() -> str:
    """The numbers, in Markdown."""
    lines = [HEADER, "|---|" + "--:|" * (HEADER.count("|") - 2)]
    for name, course in courses().items():
        counts = (
            course.busiest(),
            course.busiest(1.0),
            course.busiest(10.0),
            course.requests,
            len(course.refused_s),
        )
        ends_s = (max(course.sent_s.values()), max(course.heard_s.values()))
        cells = [*(f"{each:,}" for each in counts), *(f"{each:.0f} s" for each in ends_s)]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


@cache
def bounds() -> Mapping[float, Course]:
    """What `sync` at once leads to, by the bound of its first wait."""
    return {
        base_s: Herd(sync_at_once(base_s), Random(SEED)).run() for base_s in (1.0, 2.0, 4.0, 8.0)
    }


def bounds_table() -> str:
    """The numbers of those, in Markdown."""
    lines = [BOUNDS_HEADER, "|---|" + "--:|" * (BOUNDS_HEADER.count("|") - 2)]
    for base_s, course in bounds().items():
        counts = (course.busiest(1.0), course.requests, len(course.refused_s))
        sent_s = (course.sent_after(1, 2), course.sent_after(19, 20))
        cells = [*(f"{each:,}" for each in counts), *(f"{each:.1f} s" for each in sent_s)]
        lines.append(f"| {base_s:.0f} s | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def picture() -> str:
    """Requests in each second, one panel a strategy, admitted below and refused on top."""
    height = TOP + len(STRATEGIES) * (HEIGHT + GAP) + 8
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 20} {height}">',
        f"<style>{STYLE}</style>",
        '<rect width="100%" height="100%" fill="#fff"/>',
        _text(LEFT, 20, f"Requests per second, as {AGENTS:,} agents come online in one", "t"),
        f'<rect class="a" x="{LEFT}" y="30" width="10" height="10"/>',
        _text(LEFT + 15, 39, "admitted"),
        f'<rect class="r" x="{LEFT + 85}" y="30" width="10" height="10"/>',
        _text(LEFT + 100, 39, "refused, 429"),
        f'<path class="c" d="M{LEFT + 195} 35h24"/>',
        _text(LEFT + 225, 39, f"what the stage admits on average: {RATE_PER_S}"),
    ]
    for number, (name, course) in enumerate(courses().items()):
        parts += _panel(name, course, TOP + GAP // 2 + number * (HEIGHT + GAP))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(name: str, course: Course, top: int) -> list[str]:
    base = top + HEIGHT
    admitted, refused = _by_second(course.admitted_s), _by_second(course.refused_s)
    below = [_bar(second, base, 0, admitted[second]) for second in range(SHOWN_S)]
    above = [
        _bar(second, base, admitted[second], admitted[second] + refused[second])
        for second in range(SHOWN_S)
    ]
    admitting = base - _tall(RATE_PER_S)
    return [
        f'<path class="a" d="{"".join(below)}"/>',
        f'<path class="r" d="{"".join(above)}"/>',
        f'<path class="l" d="M{LEFT} {base}h{WIDTH}"/>',
        f'<path class="c" d="M{LEFT} {admitting}h{WIDTH}"/>',
        _text(LEFT + 60, top + 12, f"{name}: {course.busiest():,} in its busiest second"),
        _text(LEFT - 36, base - _tall(1_000) + 4, "1,000", "n"),
        _text(LEFT - 12, base + 4, "0", "n"),
        *(
            _text(LEFT + second * WIDTH // SHOWN_S, base + 14, f"{second} s", "n")
            for second in range(0, SHOWN_S, 10)
        ),
    ]


def _bar(second: int, base: int, lower: int, upper: int) -> str:
    step = WIDTH // SHOWN_S
    tall = _tall(upper) - _tall(lower)
    if tall == 0:
        return ""
    return f"M{LEFT + second * step + 1} {base - _tall(lower)}v-{tall}h{step - 2}v{tall}z"


def _tall(requests: int) -> int:
    """In pixels; what there is can be seen."""
    return -(-requests * HEIGHT // SCALE_MAX)


def _by_second(times: list[float]) -> Counter[int]:
    return Counter(int(each) for each in times)


def _text(x: int, y: int, text: str, kind: str = "") -> str:
    marked = f' class="{kind}"' if kind else ""
    return f'<text{marked} x="{x}" y="{y}">{text}</text>'


def write() -> None:
    """Write the picture, and the page's tables."""
    tables = iter([table(), bounds_table()])
    PICTURE.write_text(picture(), encoding="utf-8")
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(
        re.sub(r"(?:^\|.*\n)+", lambda _: next(tables), text, flags=re.MULTILINE),
        encoding="utf-8",
    )


if __name__ == "__main__":
    write()
