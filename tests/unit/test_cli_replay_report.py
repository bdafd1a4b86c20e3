"""The report of a replay: whole, well-formed, alone in the world, and the same for the same."""

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from decimal import Decimal
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib as mpl
import pytest

from wakala.measures import Asked, Depth, Latency, Measures, Units
from wakala.output import Problem
from wakala.plots import duration
from wakala.price import BUNDLED, Cost, Line, costs, read_prices
from wakala.replay_report import write_html, write_plot

VOID = {"br", "link", "meta"}

MEASURES = Measures(
    stack="wakala-blue",
    region="eu-west-1",
    local=True,
    started_at_ms=1_796_000_000_000,
    seconds=213.4,
    asked=Asked("branch", 10_000, 50.0, 71, {"duplicates": 0.05, "overdrafts": 0.025}),
    rate_reached=48.25,
    interrupted=False,
    requests={"accepted": 10_001, "replayed": 502, "unsent": 3},
    transactions=10_004,
    accepted_before=0,
    statuses={"synced": 9_805, "failed: INSUFFICIENT_FUNDS": 199},
    duplicates=0,
    latency=Latency(9_806, 41.9, 105.2, 1_740, 130_000, ((10, 12), (100, 9_200), (200_000, 594))),
    depths=(Depth(0, 0, 0), Depth(30, 187, 29), Depth(60, 12, 58)),
    units=(
        Units("OfflineTx", 120_301, 4_012_002, "CloudWatch"),
        Units("OfflineTx/OpenTx", 14_003, 2_004_004, "sizes of items"),
    ),
    contention_retries=31,
    calls={"IngestFunction": 1.05, "ReconcileFunction": 0.23},
    usage={"lambda.requests": 2_412_000, "lambda.gb_seconds": 31_250, "cloudwatch.log_gb": 1.92},
)
BENCH = {
    "number": 300,
    "rounds": 3,
    "seed": 17,
    "runs": [
        {
            "shape": shape,
            "backend": backend,
            "perSecond": per_second,
            "calls": calls,
            "writeUnits": write_units,
            "readUnits": None,
            "duplicates": duplicates,
            "overdrawn": 0,
            "open": 0,
        }
        for shape in ("uniform", "branch")
        for backend, per_second, calls, write_units, duplicates in (
            ("article", 61.2, 3.0, 10.44, 0),
            ("article x10", 97.9, 3.11, 10.45, 0),
            ("naive", 92.0, 2.02, 6.0, 37),
            ("ours", 1_339.4, 0.23, None, 0),
        )
    ],
    "figures": [
        {"name": "branch: faster", "value": 5.34, "side": "at least", "target": 5, "met": True},
        {"name": "uniform: calls", "value": 2.16, "side": "at most", "target": 2.1, "met": False},
    ],
}
BILL = costs(MEASURES.usage, read_prices(BUNDLED, "eu-west-1"))

type Written = Callable[..., str]


class Page(HTMLParser):
    """A page that is read strictly: each element is closed, in turn, and once."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, Mapping[str, str]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(attrs) == len(dict(attrs)), f"<{tag}> has an attribute twice"
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.words.append(data)

    def of(self, tag: str) -> list[Mapping[str, str]]:
        """The attributes of each such element."""
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def text(self) -> str:
        """All that a reader can see, with one space for every gap."""
        return " ".join(" ".join(self.words).split())


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """Write a report and read it back."""

    def write(
        measures: Measures = MEASURES,
        bill: tuple[Cost, ...] = BILL,
        bench: Mapping[str, Any] | None = BENCH,
    ) -> str:
        path = tmp_path / "report.html"
        write_html(measures, bill, bench, path)
        return path.read_text(encoding="utf-8")

    return write


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The report that lacks nothing, written once: drawing takes its time."""
    path = tmp_path_factory.mktemp("whole") / "report.html"
    write_html(MEASURES, BILL, BENCH, path)
    return path.read_text(encoding="utf-8")


def test_a_report_says_what_was_replayed_and_where(whole: str) -> None:
    text = Page(whole).text
    assert "10,000 debits, branch, at 50 a second" in text
    assert "Stack wakala-blue, on a local emulator · 2026-11-30 00:53:20 UTC" in text
    assert "took 3.56 min · seed 71 · debits: asked 50 a second, reached 48.25" in text
    assert "the round trip of its own commit is not in it" in text
    assert "Not in it: X-Ray" in text
    assert "accepted before" not in text
    assert "times below are this machine's" in text
    assert "interrupted" not in text


def test_a_report_of_aws_names_its_region_and_does_not_speak_of_an_emulator(
    written: Written,
) -> None:
    text = Page(written(replace(MEASURES, local=False), BILL, None)).text
    assert "on AWS, eu-west-1" in text
    assert "emulator" not in text


def test_a_report_says_what_is_from_before_its_run(written: Written) -> None:
    resumed = replace(MEASURES, accepted_before=9_004, calls={}, units=(), latency=None)
    text = Page(written(resumed, (), None)).text
    assert "9,004 transactions of 10,004 had been accepted before this run" in text
    assert "Not priced" in text


def test_a_report_says_that_it_was_interrupted(written: Written) -> None:
    assert "It was interrupted" in Page(written(replace(MEASURES, interrupted=True), (), None)).text


def test_a_report_holds_every_figure(whole: str) -> None:
    text = Page(whole).text
    for figure in (
        *("0 0 beyond the first of 10,004 transactions", "41.9 ms", "105 ms", "1.74 s", "2.17 min"),
        *("9,806", "p50: 41.9 ms", "p95: 105 ms", "p99: 1.74 s"),
        *("187 12 at the end; the oldest ever was 58 s old",),
        *("4,012,002 120,301", "2,004,004 14,003", "6,016,006 134,304", "counted by CloudWatch"),
        *(
            "IngestFunction 1.05",
            "ReconcileFunction 0.23",
            "Together 1.28",
            "Contention retries 31",
        ),
        *("Lambda $0.90", "requests $0.20 for 1,000,000 2,412,000 $0.48"),
        *("GB-seconds, arm64 $0.0000133334 each 31,250 $0.42", "$0.57 each 1.92 $1.09"),
        *("Price of a million $1.99", "Together $1.99", "eu-west-1, 2026-08-16"),
        *("accepted 10,001", "replayed 502", "unsent 3"),
        *("synced 9,805", "failed: INSUFFICIENT_FUNDS 199", "duplicates 5 %", "overdrafts 2.5 %"),
        *("300 debits a load, 3 rounds, seed 17",),
        *("ours 1,339 0.23 — — 0 0 0", "naive 92 2.02 6.00 — 37 0 0"),
        *("branch: faster at least 5 5.34 ✓ met", "uniform: calls at most 2.1 2.16 ✗ not met"),
    ):
        assert figure in text, figure


def test_duplicates_are_shown_in_the_colour_of_what_is_bad(whole: str, written: Written) -> None:
    html = written(replace(MEASURES, duplicates=2), bench=None)
    assert '<span class="figure bad">200</span>' in html
    assert '<span class="figure good">0</span>' in whole


def test_a_report_fetches_nothing_and_runs_nothing(whole: str) -> None:
    page = Page(whole)
    assert "://" not in whole
    assert not re.search(r"@import|url\((?!#)", whole)
    assert not {"script", "img", "iframe", "object", "form"} & {tag for tag, _ in page.elements}
    pointed = {
        value
        for _, attributes in page.elements
        for name, value in attributes.items()
        if name in {"src", "href", "xlink:href"} and not value.startswith("#")
    }
    assert pointed == {"data:,"}
    assert not [name for _, found in page.elements for name in found if name.startswith("on")]


def test_each_id_of_a_report_is_one_elements_and_each_reference_finds_its_own(
    whole: str,
) -> None:
    counted = Counter(found["id"] for _, found in Page(whole).elements if "id" in found)
    assert [name for name, count in counted.items() if count > 1] == []
    references = re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', whole)
    assert references
    assert {one or other for one, other in references} <= counted.keys()


def test_a_report_is_a_small_file_however_long_the_replay_was(written: Written) -> None:
    depths = tuple(Depth(at, at * 7 % 1_000, at * 11 % 600) for at in range(7_200))
    bins = tuple((10 ** (at / 40), at % 97) for at in range(200))
    assert MEASURES.latency is not None
    latency = replace(MEASURES.latency, bins=bins)
    assert len(written(replace(MEASURES, depths=depths, latency=latency))) < 600_000


def test_the_worst_moment_of_a_long_replay_is_still_in_its_plot(written: Written) -> None:
    depths = tuple(Depth(at, 9_999 if at == 4_001 else 1, 1) for at in range(7_200))
    html = written(replace(MEASURES, depths=depths), (), None)
    assert "at most 9,999, at 66.7 min" in html
    assert ">10,000</text>" in html


def test_everything_a_blind_reader_needs_is_there(whole: str) -> None:
    page = Page(whole)
    assert page.of("html")[0]["lang"] == "en"
    drawings = page.of("svg")
    assert len(drawings) == 10
    assert all(each["role"] == "img" and len(each["aria-label"]) > 30 for each in drawings)
    assert all(each["scope"] in {"row", "col"} for each in page.of("th"))
    assert len(page.of("h1")) == 1


def test_plots_have_the_pages_colours_alone_and_the_page_has_each_light_and_dark(
    whole: str,
) -> None:
    drawings = "".join(re.findall(r"<svg.*?</svg>", whole, re.DOTALL))
    assert not re.search(r"(fill|stroke): ?(#|black|rgb)", drawings)
    used = set(re.findall(r"var\((--\w+)\)", whole))
    assert {"--blue", "--orange", "--ink"} <= used
    assert [name for name in used if len(re.findall(rf"{name}: #\w+;", whole)) != 2] == []


NASTY = '<b onload="x">&"\'$a_b$'


def _nasty(measures: Measures) -> Measures:
    return replace(
        measures,
        stack=NASTY,
        region=NASTY,
        asked=replace(measures.asked, shape=NASTY, shares={NASTY: 0.5}),
        requests={NASTY: 1},
        statuses={NASTY: 1},
        units=(Units(NASTY, 1, 1, NASTY), Units(NASTY, 1, 1, NASTY)),
        calls={NASTY: 1.0},
    )


def test_text_from_elsewhere_is_text(written: Written) -> None:
    line = Line("x", NASTY, Decimal(1), Decimal(1), 1)
    runs = [run | {"shape": NASTY, "backend": NASTY} for run in BENCH["runs"]]  # type: ignore[attr-defined]
    figures = [each | {"name": NASTY} for each in BENCH["figures"]]  # type: ignore[attr-defined]
    bill = (Cost(NASTY, NASTY, NASTY, (line,)),)
    html = written(_nasty(MEASURES), bill, BENCH | {"runs": runs, "figures": figures})
    assert Page(html).of("b") == []
    assert Page(html).text.count(NASTY) > 20
    drawn = [unescape(text) for text in re.findall(r"<text[^>]*>([^<]*)</text>", html)]
    assert drawn.count(NASTY) == 10, "a bar of calls, one of costs, a load and a side four times"
    local = Page(written(replace(_nasty(MEASURES), local=False), (), None))
    assert f"on AWS, {NASTY}" in local.text


def test_text_that_no_file_can_hold_is_shown_by_its_number(written: Written) -> None:
    half = replace(MEASURES, stack="\ud800", calls={"\udfff": 1.0})
    text = Page(written(half, (), None)).text
    assert "Stack \\ud800" in text
    assert "\\udfff" in text


FEW = Latency(1, 0.0, 0.0, 0.0, 0.0, ((0.0, 1),))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"latency": None}, "Nothing has settled."),
        ({"latency": replace(FEW, bins=())}, "1 settled: half within 0 ms"),
        ({"latency": replace(FEW, bins=((5.0, 0),))}, "all within 0 ms"),
        ({"latency": FEW}, "p99: 0 ms"),
        ({"latency": replace(FEW, max_ms=90.0, bins=((8.0, 2), (float("inf"), 3)))}, "90 ms"),
        ({"latency": Latency(1, 7.2e6, 7.2e6, 7.2e6, 7.2e6, ((7.2e6, 1),))}, "p50: 2 h"),
        ({"latency": replace(FEW, p99_ms=2e6, bins=((6e4, 1), (3e6, 8)))}, "60 s 10 min 60 min"),
        ({"depths": ()}, "Nobody has looked."),
        ({"depths": (Depth(0, 0, 0), Depth(1, 0, 0))}, "There was none, at 2 looks."),
        ({"depths": (Depth(5, 1, 0.25),)}, "1 at the end; the oldest ever was 250 ms old"),
        ({"depths": (Depth(0, 1, 4e7), Depth(9e5, 2, 4.1e7))}, "was 475 d old"),
        ({"units": ()}, "Nobody has counted."),
        ({"calls": {}}, "AWS calls a transaction — Not counted"),
        ({"calls": {"IngestFunction": 0.0}}, "IngestFunction 0.00"),
        ({"transactions": 0}, "Duplicate debits a million — No transaction was accepted"),
        ({"requests": {}, "statuses": {}}, "What was replayed"),
    ],
)
def test_a_replay_that_lacks_something_still_has_a_proper_page(
    changes: dict[str, Any], words: str, written: Written
) -> None:
    text = Page(written(replace(MEASURES, **changes), (), None)).text
    assert words in text
    assert "The baseline against ours" not in text
    assert "nan" not in text


def test_a_replay_without_a_price_still_has_a_proper_page(written: Written) -> None:
    text = Page(written(MEASURES, (), None)).text
    assert "Price of a million — Not priced" in text
    assert "Nothing is priced." in text


def test_a_price_of_less_than_half_a_cent_is_not_nothing(written: Written) -> None:
    bill = costs({"lambda.requests": 10_000}, read_prices(BUNDLED, "eu-west-1"))
    assert "Together < $0.01" in Page(written(MEASURES, bill, None)).text


def test_the_same_replay_is_the_same_bytes_whatever_else_was_drawn(
    whole: str, written: Written
) -> None:
    with mpl.rc_context({"font.size": 30, "axes.facecolor": "red", "svg.hashsalt": "another"}):
        assert written() == whole


def test_a_report_draws_nothing_before_it_is_written() -> None:
    seen = "import sys, wakala.replay_report; print('matplotlib' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", seen], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "False\n"


def test_a_baseline_that_is_another_document_gets_one_line_and_writes_nothing(
    tmp_path: Path,
) -> None:
    path = tmp_path / "report.html"
    with pytest.raises(Problem, match="the file of `make bench`: runs must be a list of objects"):
        write_html(MEASURES, BILL, {"figures": []}, path)
    assert not path.exists()


@pytest.mark.parametrize("write", [lambda path: write_html(MEASURES, BILL, None, path)])
def test_a_file_that_cannot_be_written_gets_one_line(
    write: Callable[[Path], None], tmp_path: Path
) -> None:
    path = tmp_path / "absent" / "report.html"
    with pytest.raises(Problem, match=r"report\.html: cannot be written: No such file or dir"):
        write(path)


@pytest.mark.parametrize(
    ("bench", "words"),
    [
        (BENCH, ["Settled a second", "article x10", "1,339", "10.44", "not weighed"]),
        (None, ["p50: 41.9 ms", "100 %"]),
    ],
)
def test_one_plot_is_an_image_of_its_own(
    bench: Mapping[str, Any] | None, words: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "plot.svg"
    write_plot(MEASURES, bench, path)
    text = path.read_text(encoding="utf-8")
    root = ElementTree.fromstring(text)  # noqa: S314
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    seen = [" ".join("".join(each.itertext()).split()) for each in root.iter()]
    assert [word for word in words if word not in seen] == []
    assert text.count("://") == 1, "the name of SVG itself, which nobody fetches"
    assert "var(" not in text


def test_without_latency_and_baseline_there_is_no_plot_and_one_line(tmp_path: Path) -> None:
    path = tmp_path / "plot.svg"
    with pytest.raises(Problem, match="there is nothing to plot"):
        write_plot(replace(MEASURES, latency=None), None, path)
    assert not path.exists()


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0 ms"),
        (0.254, "0.254 ms"),
        (41.94, "41.9 ms"),
        (999, "999 ms"),
        (1_000, "1 s"),
        (95_000, "95 s"),
        (120_000, "2 min"),
        (7_000_000, "117 min"),
        (7_200_000, "2 h"),
        (200_000_000_000, "2,315 d"),
    ],
)
def test_a_time_is_written_for_people(ms: float, text: str) -> None:
    assert duration(ms) == text
