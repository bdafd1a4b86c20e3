"""The report's plots: SVG, the same bytes for the same figures.

Each is drawn for a column of 360 units, so that its letters can be read on a phone. Within a page
its colours become the page's own (`var(--blue)`), so that a dark page has dark plots.
"""

import io
import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from wakala.baseline import OURS, Baseline, Row
from wakala.measures import Depth, Latency
from wakala.price import Cost

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Annotation
    from matplotlib.typing import RcKeyType

# Okabe and Ito's colours, which those see apart too who see no red or no green; and some greys.
INK, MUTED, GRID, PAPER = "#1b1f24", "#5c6670", "#dfe3e7", "#ffffff"
BLUE, ORANGE, SAND, GREY, RED = "#0072b2", "#e69f00", "#f0cd82", "#8a939c", "#d55e00"
VARIABLES = {
    INK: "ink",
    MUTED: "muted",
    GRID: "grid",
    PAPER: "paper",
    BLUE: "blue",
    ORANGE: "orange",
    SAND: "sand",
    GREY: "grey",
    RED: "red",
}
BACKENDS = {OURS: BLUE, "article": ORANGE, "article x10": SAND, "naive": GREY}

WIDTH = 360
INCH = 72
"""Units of an inch, as matplotlib writes SVG."""
FONTS = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"
STYLE: "dict[RcKeyType, Any]" = {
    "axes.axisbelow": True,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": MUTED,
    "axes.labelsize": 11,
    "axes.linewidth": 0.8,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.family": "DejaVu Sans",  # comes with matplotlib: texts have one place on every machine
    "font.size": 11,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "savefig.facecolor": "none",
    "svg.fonttype": "none",
    "svg.hashsalt": "wakala",
    "text.color": INK,
    "text.parse_math": False,
    "xtick.color": MUTED,
    "xtick.labelsize": 11,
    "ytick.color": MUTED,
    "ytick.labelsize": 11,
}

LEAST_MS = 1.0
"""What the clocks cannot tell from nothing: no time on a logarithmic axis is shorter."""
ROUND_MS = (1, 10, 100, 1_000, 10_000, 60_000, 600_000, 3_600_000, 36_000_000, 360_000_000)
NICE_MS = (
    *(digit * 10**power for power in (0, 1, 2, 3) for digit in (1, 2, 5)),
    *(1_000 * seconds for seconds in (10, 30, 60, 120, 300, 600, 1_800)),
    *(3_600_000 * hours for hours in (1, 2, 5, 10, 30, 100)),
)
"""Where a logarithmic axis may have its ticks; `ROUND_MS` where it is a long one."""
TICKS_MAX = 6
TIMES_S = ((1, "s"), (60, "min"), (3_600, "h"), (86_400, "d"))
STEPS_S = (
    *(0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200),
    *(86_400 * days / 4 for days in (1, 2, 4, 8, 16, 64, 256, 1_024)),
)
"""How far ticks of a linear axis of times may be apart."""
MOMENTS_MAX = 400
HEADING = 1.5
"""Bars that the name of a load takes up, with the space before it."""
LABEL_PART = 0.3
"""The part of the axis that the label of the 99th percentile needs to its right."""


@dataclass(frozen=True, slots=True)
class Plot:
    """A drawing to be: `name` within its page, `words` for who cannot see it, units of size."""

    name: str
    words: str
    width: float
    height: float
    draw: Callable[["Figure"], None]


@dataclass(frozen=True, slots=True)
class Metric:
    """A figure that each backend has under each load, and how its value is written."""

    title: str
    value: Callable[[Row], float | None]
    text: Callable[[float], str]


PER_SECOND = Metric("Settled a second", lambda row: row.per_second, lambda value: f"{value:,.0f}")
CALLS = Metric("AWS calls a transaction", lambda row: row.calls, lambda value: f"{value:,.2f}")
WRITES = Metric("Write units a transaction", lambda row: row.write_units, CALLS.text)
DUPLICATES = Metric("Duplicate debits", lambda row: row.duplicates, PER_SECOND.text)


def duration(ms: float) -> str:
    """A time for people: `850 ms`, `1.5 s`, `90 s`, `2.5 min`, `36 h`, `4 d`."""
    if ms < 1_000:
        return f"{_significant(ms)} ms"
    longer = [(size, name) for size, name in TIMES_S if ms >= 2_000 * size]
    size, name = longer[-1] if longer else TIMES_S[0]
    return f"{_significant(ms / 1_000 / size)} {name}"


def plain(text: str) -> str:
    """Text that any file can hold: half a surrogate is shown by its number."""
    return text.encode(errors="backslashreplace").decode()


def in_words(latency: Latency) -> str:
    """The percentiles as a sentence."""
    return (
        f"{latency.count:,} settled: half within {duration(latency.p50_ms)},"
        f" 95 % within {duration(latency.p95_ms)}, 99 % within {duration(latency.p99_ms)},"
        f" all within {duration(latency.max_ms)}."
    )


def latency_share(latency: Latency) -> Plot:
    """The share of transactions that settled within a time, the percentiles marked."""

    def draw(figure: "Figure") -> None:
        axes = figure.subplots()
        edges, counts = _bins(latency)
        high = _time_axis(axes, latency, edges)
        shares = (100 * part / sum(counts) for part in itertools.accumulate(counts))
        # The curve only climbs, so there is room to the right of a mark and below it.
        labels = ((50, latency.p50_ms, -4), (95, latency.p95_ms, -30), (99, latency.p99_ms, -16))
        marks = [(max(at_ms, LEAST_MS), share) for share, at_ms, _ in labels]
        points = sorted([*zip(edges, [0, *shares], strict=True), *marks, (high, 100)])
        times = [at_ms for at_ms, _ in points]
        heights = list(itertools.accumulate((share for _, share in points), max))
        axes.fill_between(times, heights, color=BLUE, alpha=0.12, linewidth=0)
        axes.plot(times, heights, color=BLUE, linewidth=2)
        for mark, (share, at_ms, down) in zip(marks, labels, strict=True):
            axes.plot(*mark, "o", color=BLUE, markersize=7, markeredgecolor=PAPER)
            _label(axes, f"p{share}: {duration(at_ms)}", mark, (9, down))
        axes.set_ylim(0, 105)
        axes.set_yticks([0, 25, 50, 75, 100], ["0", "", "50", "", "100 %"])
        axes.grid(axis="y")

    return Plot("latency-share", in_words(latency), WIDTH, 240, draw)


def latency_histogram(latency: Latency) -> Plot:
    """How many transactions took how long."""

    def draw(figure: "Figure") -> None:
        axes = figure.subplots()
        edges, counts = _bins(latency)
        _time_axis(axes, latency, edges)
        widths = [after - before for before, after in itertools.pairwise(edges)]
        axes.bar(edges[:-1], counts, widths, align="edge", color=BLUE, ec=PAPER, linewidth=0.7)
        _count_axis(axes)

    words = f"Histogram of the times in which {latency.count:,} transactions settled."
    return Plot("latency-histogram", words, WIDTH, 240, draw)


def letters_depth(depths: Sequence[Depth]) -> Plot:
    """How many dead letters there were over the replay."""

    def draw(figure: "Figure") -> None:
        axes = figure.subplots()
        shown = _moments(depths)
        _over_time(axes, [each.at_s for each in shown], [each.letters for each in shown])
        _count_axis(axes)

    most = max(depths, key=lambda each: each.letters)
    words = f"Dead letters over time; at most {most.letters:,}, at {duration(1_000 * most.at_s)}."
    return Plot("letters-depth", words, WIDTH, 170, draw)


def letters_age(depths: Sequence[Depth]) -> Plot:
    """How old the oldest dead letter was over the replay."""

    def draw(figure: "Figure") -> None:
        axes = figure.subplots()
        shown = _moments(depths)
        _over_time(axes, [each.at_s for each in shown], [each.oldest_s for each in shown])
        axes.set_yticks(*_time_ticks(0, max(each.oldest_s for each in depths)))

    most = max(each.oldest_s for each in depths)
    words = f"Age of the oldest dead letter over time; at most {duration(1_000 * most)}."
    return Plot("letters-age", words, WIDTH, 170, draw)


def cost_bars(costs: Sequence[Cost]) -> Plot:
    """What a million transactions cost by service."""
    return _ranked(
        "costs", [(cost.service, float(cost.dollars), f"${cost.dollars:,.2f}") for cost in costs]
    )


def call_bars(calls: Mapping[str, float]) -> Plot:
    """How often each function calls AWS for a transaction."""
    return _ranked("calls", [(name, value, f"{value:,.2f}") for name, value in calls.items()])


def comparison(name: str, baseline: Baseline, metric: Metric) -> Plot:
    """A figure of each backend under each load."""
    words = f"{metric.title} of each backend under each load, as the table below has them."

    def draw(figure: "Figure") -> None:
        _backend_bars(figure.subplots(), baseline, metric)

    return Plot(name, words, WIDTH, _bars_height(baseline), draw)


def comparison_at_a_glance(baseline: Baseline) -> Plot:
    """Throughput, calls and write units of each backend under each load, side by side."""
    metrics = (PER_SECOND, CALLS, WRITES)

    def draw(figure: "Figure") -> None:
        for axes, metric in zip(figure.subplots(1, len(metrics)), metrics, strict=True):
            _backend_bars(axes, baseline, metric)
            axes.set_title(metric.title, loc="left", fontsize=12, fontweight="bold", pad=8)
            if metric is not metrics[0]:
                axes.set_yticks([])

    words = "Throughput, AWS calls and write units of the article's algorithm, a naive one and ours"
    return Plot("comparison", words, 2.3 * WIDTH, 36 + _bars_height(baseline), draw)


def inline(plot: Plot) -> str:
    """The plot as a part of an HTML page whose stylesheet has the colours of `VARIABLES`."""
    svg = _body(_render(plot))
    for colour, name in VARIABLES.items():
        svg = svg.replace(colour, f"var(--{name})")
    # Two plots of a page have ids of their own.
    svg = re.sub(r'(\bid="|"#|url\(#)', rf"\g<1>{plot.name}-", svg)
    return (
        f'<svg viewBox="0 0 {plot.width:g} {plot.height:g}" role="img"'
        f' aria-label="{escape(plain(plot.words))}">{svg}</svg>'
    )


def alone(plot: Plot) -> str:
    """The plot as an SVG file, on white."""
    size = f"{plot.width:g} {plot.height:g}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}">\n'
        f"<title>{escape(plain(plot.words))}</title>\n"
        "<style>*{stroke-linejoin:round;stroke-linecap:butt}"
        f"text{{font-family:{FONTS}}}</style>\n"
        f'<rect width="100%" height="100%" fill="{PAPER}"/>\n'
        f"{_body(_render(plot))}\n</svg>\n"
    )


def _ranked(name: str, found: Sequence[tuple[str, float, str]]) -> Plot:
    """Bars of named values as they are written, the greatest first."""
    ranked = sorted(found, key=lambda each: -each[1])

    def draw(figure: "Figure") -> None:
        axes = figure.subplots()
        rows = range(len(ranked))
        axes.barh(rows, [value for _, value, _ in ranked], height=0.66, color=BLUE)
        for row, (_, value, text) in enumerate(ranked):
            _label(axes, text, (value, row), (6, -4))
        axes.set_yticks(rows, [plain(label) for label, _, _ in ranked])
        _bare(axes, ranked[0][1], len(ranked) - 0.5)

    words = "; ".join(f"{label} {text}" for label, _, text in ranked)
    return Plot(name, f"{words}.", WIDTH, 20 + 28 * len(ranked), draw)


def _render(plot: Plot) -> str:
    """What matplotlib makes of it: without a date, and with ids that hang on the figures alone."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context():
        mpl.rcdefaults()  # whatever the person at the keyboard has made their own
        mpl.rcParams.update(STYLE)
        figure = Figure((plot.width / INCH, plot.height / INCH), layout="constrained")
        plot.draw(figure)
        file = io.BytesIO()
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(file, format="svg", metadata=nothing)
    return file.getvalue().decode()


def _body(svg: str) -> str:
    """What is within the root, naming no font of ours and nothing outside."""
    body = svg[svg.index("</defs>") + len("</defs>") : svg.rindex("</svg>")].strip()
    body = re.sub(r"; font-family: [^;\"]*", "", body)
    body = re.sub(r' transform="rotate\(-0 [^)]*\)"', "", body)
    return body.replace("xlink:href", "href").replace(" \n", "\n")


def _bins(latency: Latency) -> tuple[list[float], list[int]]:
    """Edges of the bins from the first that holds something to the last that does, and counts."""
    counted: dict[float, int] = {}
    for bound, count in latency.bins:
        shown = max(latency.max_ms if math.isinf(bound) else bound, LEAST_MS)
        counted[shown] = counted.get(shown, 0) + count
    bounds, counts = list(counted), list(counted.values())
    ratio = bounds[1] / bounds[0] if len(bounds) > 1 else 2.0
    edges = [bounds[0] / ratio, *bounds]
    held = [at for at, count in enumerate(counts) if count]
    return edges[held[0] : held[-1] + 2], counts[held[0] : held[-1] + 1]


def _time_axis(axes: "Axes", latency: Latency, edges: Sequence[float]) -> float:
    """A logarithmic axis of times, with room for labels; where it ends."""
    low = edges[0]
    p99 = max(latency.p99_ms, LEAST_MS)
    high = max(edges[-1], low * math.pow(p99 / low, 1 / (1 - LABEL_PART)))
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    ticks = [nice for nice in NICE_MS if low <= nice <= high]
    if len(ticks) > TICKS_MAX:
        ticks = [nice for nice in ROUND_MS if low <= nice <= high]
    axes.set_xticks(ticks, [duration(nice) for nice in ticks])
    axes.set_xticks([], minor=True)
    return high


def _count_axis(axes: "Axes") -> None:
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.locator_params(axis="y", nbins=4, integer=True)
    axes.grid(axis="y")


def _moments(depths: Sequence[Depth]) -> list[Depth]:
    """No more of them than a plot can show: of neighbours the worst, and the last one as it is."""
    *before, last = depths
    some = math.ceil(len(depths) / MOMENTS_MAX)
    return [
        *(
            Depth(them[0].at_s, max(d.letters for d in them), max(d.oldest_s for d in them))
            for them in itertools.batched(before, some, strict=False)
        ),
        last,
    ]


def _over_time(axes: "Axes", seconds: Sequence[float], values: Sequence[float]) -> None:
    """What was seen at a moment holds until the next one."""
    axes.fill_between(seconds, values, step="post", color=BLUE, alpha=0.12, linewidth=0)
    axes.step(seconds, values, where="post", color=BLUE, linewidth=2)
    axes.plot(seconds[-1], values[-1], "o", color=BLUE, markersize=5, clip_on=False)
    axes.set_xlim(min(seconds), max(*seconds, min(seconds) + 1))
    axes.set_ylim(0, max(*values, 1) * 1.15)
    axes.set_xticks(*_time_ticks(min(seconds), max(seconds)))
    axes.grid(axis="y")


def _time_ticks(first_s: float, last_s: float) -> tuple[list[float], list[str]]:
    """Where ticks are, from the first moment to the last, and what they say."""
    step = next((s for s in STEPS_S if (last_s - first_s) / s < TICKS_MAX), STEPS_S[-1])
    size, name = [each for each in TIMES_S if step >= each[0] or each is TIMES_S[0]][-1]
    ticks = [step * at for at in range(math.ceil(first_s / step), math.floor(last_s / step) + 1)]
    return ticks, [f"{tick / size:g} {name}" if tick else "0" for tick in ticks]


def _bars_height(baseline: Baseline) -> float:
    return 8 + 18 * (len(baseline.rows) + HEADING * len(baseline.shapes))


def _backend_bars(axes: "Axes", baseline: Baseline, metric: Metric) -> None:
    at = 0.0
    ticks, names = [], []
    for shape in baseline.shapes:
        axes.text(0, at, plain(shape), va="center", fontweight="bold")
        for row in baseline.rows:
            if row.shape != shape:
                continue
            at += 1
            value = metric.value(row)
            text = "not weighed" if value is None else metric.text(value)
            axes.barh(at, value or 0, height=0.76, color=BACKENDS.get(row.backend, GREY))
            weight = "bold" if row.backend == OURS else "normal"
            _label(axes, text, (value or 0, at), (5, -4)).set_fontweight(weight)
            ticks.append(at)
            names.append(plain(row.backend))
        at += HEADING
    axes.set_yticks(ticks, names)
    _bare(axes, max(metric.value(row) or 0 for row in baseline.rows), at - HEADING + 0.6)


def _bare(axes: "Axes", most: float, bottom: float) -> None:
    """Bars that say their values themselves need no axis."""
    axes.set_xlim(0, 1.25 * most or 1)
    axes.set_ylim(bottom, -0.6)
    axes.set_xticks([])
    axes.spines[["bottom", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0, pad=6)


def _label(
    axes: "Axes", text: str, at: tuple[float, float], offset: tuple[float, float]
) -> "Annotation":
    return axes.annotate(text, at, offset, textcoords="offset points", annotation_clip=False)


def _significant(value: float) -> str:
    """Three digits that count, and never an exponent."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
