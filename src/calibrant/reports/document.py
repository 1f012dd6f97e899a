"""What a result says, as data: a title, answers, tables, pictures and notes. How it looks is decided elsewhere."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "Answer",
    "Cell",
    "Code",
    "Control",
    "Deferred",
    "Document",
    "Fold",
    "HoverPoint",
    "Note",
    "Paragraph",
    "Part",
    "Picture",
]
__all__ += ["Section", "SideBySide", "Table", "Tile"]


@dataclass(frozen=True)
class Answer:
    """A question that the result answers, with its answer in a few sentences."""

    question: str
    text: str


@dataclass(frozen=True)
class Cell:
    """A text with a detail, which is its interval or, of the name of a row, its meaning."""

    text: str
    detail: str = ""
    hint: str = ""  # shown on hover


Cells = Sequence[str | Cell]


@dataclass(frozen=True)
class Table:
    """Rows of cells below headings. The first cell of a row is its name."""

    caption: str  # what the rows are, for screen readers and downloads, and as heading of several tables
    head: Cells
    rows: Sequence[Cells]
    marked: Sequence[bool] = ()  # rows that stand out
    bold: Sequence[Sequence[bool]] = ()  # cells after the name of the row that stand out
    headings: Mapping[int, str] = field(default_factory=dict[int, str])  # above the row of an index
    note: str = ""  # how to read the table
    max_text_rows: int | None = None  # more are counted in text, and shown on the page
    max_open_rows: int | None = None  # more are folded on the page
    last_rows: int = 0  # at the end, such as totals, that are shown in any case

    def without_empty_columns(self) -> "Table":
        """Return the table without the columns whose cells are all empty, unless it has no rows."""
        filled = [j for j in range(len(self.head)) if j == 0 or any(row[j:] and row[j] for row in self.rows)]
        if not self.rows or len(filled) == len(self.head):
            return self
        rows = [[row[j] for j in filled if j < len(row)] for row in self.rows]
        bold = [[mask[j - 1] for j in filled[1:] if j <= len(mask)] for mask in self.bold]
        return replace(self, head=[self.head[j] for j in filled], rows=rows, bold=bold)


@dataclass(frozen=True)
class HoverPoint:
    """A point of a picture in the coordinates of its axes, with its text."""

    x: float
    y: float
    text: str
    axes: int = 0  # index of the axes in the figure


@dataclass(frozen=True)
class Picture:
    """A figure that is drawn when a page is made."""

    draw: "Callable[[Figure], object]"
    alt_text: str
    caption: str = ""
    detail: str = ""  # small text below the caption
    size: tuple[float, float] = (3.0, 3.0)  # inches
    hover_points: Sequence[HoverPoint] = ()  # default: the points of labeled lines


@dataclass(frozen=True)
class Paragraph:
    """A paragraph, which may begin with a name."""

    text: str
    name: str = ""


@dataclass(frozen=True)
class Note:
    """A small explanation."""

    text: str


@dataclass(frozen=True)
class Code:
    """Lines to copy."""

    text: str


@dataclass(frozen=True)
class Control:
    """Numbers of an interactive control, which the script of a page builds."""

    kind: str
    content: Any


@dataclass(frozen=True)
class Fold:
    """Parts that are folded away on a page."""

    summary: str
    parts: "Sequence[Part]"


@dataclass(frozen=True)
class SideBySide:
    """Parts that stand beside each other where there is room."""

    parts: "Sequence[Part]"


Part = Table | Picture | Paragraph | Note | Code | Control | Fold | SideBySide


class Deferred(Sequence[Part]):
    """Parts that are made when they are first read. Text and notebooks never read those of details."""

    def __init__(self, make: Callable[[], Sequence[Part]]) -> None:
        self._make = make

    @cached_property
    def _parts(self) -> Sequence[Part]:
        return self._make()

    def __bool__(self) -> bool:
        return True  # without making them

    def __len__(self) -> int:
        return len(self._parts)

    def __getitem__(self, index: Any) -> Any:
        return self._parts[index]


@dataclass(frozen=True)
class Section:
    """A heading with its parts. Text and notebooks show the tables of the sections that are not details."""

    heading: str
    parts: Sequence[Part]
    is_detail: bool = False
    legend: str = ""  # how to read its tables, above the first one
    is_captioned: bool = False  # whether even a single table needs its caption

    @property
    def has_captions(self) -> bool:
        """Whether captions stand above the tables: there are several, also folded ones, or one needs it."""
        return self.is_captioned or _count_tables(self.parts) > 1


def _count_tables(parts: Sequence[Part]) -> int:
    return sum(_count_tables(x.parts) if isinstance(x, Fold | SideBySide) else isinstance(x, Table) for x in parts)


@dataclass(frozen=True)
class Tile:
    """A key number of a page."""

    name: str
    value: str
    detail: str = ""


@dataclass(frozen=True)
class Document:
    """Everything that a result says. The answer comes first: title, answers, notes, then sections."""

    kind: str  # of result, such as "Drift"
    title: str  # the answer in a few words
    answers: Sequence[Answer] = ()
    notes: Sequence[str] = ()  # sentences on the data and on what was assumed
    sections: Sequence[Section] = ()
    tiles: Sequence[Tile] = ()
    facts: Mapping[str, str] = field(default_factory=dict[str, str])  # how it was computed
