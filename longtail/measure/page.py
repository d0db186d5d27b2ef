"""A report as one HTML file: nothing is loaded from anywhere, and every name is escaped.

Style and script are in `page.html` beside this file. The script does the table of classes only; without it the rest of
the page is all there.
"""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import TYPE_CHECKING, Any

from longtail.measure import plots

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Table:
    """The first column names the row, the others are right-aligned."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def html(self) -> str:
        head = "".join(f'<th scope="col">{html.escape(cell)}</th>' for cell in self.columns)
        body = "".join(
            f'<tr><th scope="row">{html.escape(row[0])}</th>'
            + "".join(f"<td>{html.escape(cell)}</td>" for cell in row[1:])
            + "</tr>"
            for row in self.rows
        )
        return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'

    def text(self) -> str:
        rows = [list(self.columns), *map(list, self.rows)]
        widths = [max(len(row[i]) for row in rows) for i in range(len(self.columns))]
        return "\n".join(
            "  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))])
            for row in rows
        )


@dataclass(frozen=True)
class Figures:
    """Beside each other where there is room, as wide as it was drawn (times `scale`) and no wider than the page."""

    figures: Sequence[Figure]
    scale: float = 1.0

    def html(self) -> str:
        drawn = (
            f'<figure style="--width:{self.scale * figure.get_figwidth():g}in">{plots.svg(figure)}</figure>'
            for figure in self.figures
        )
        return f'<div class="figures">{"".join(drawn)}</div>'


@dataclass(frozen=True)
class Picture:
    encoded: bytes  # PNG or JPEG
    title: str
    text: str
    alike: bool | None = None  # whether it is of the class it was looked up for

    def html(self) -> str:
        kind = "png" if self.encoded.startswith(b"\x89PNG") else "jpeg"
        data = base64.b64encode(self.encoded).decode()
        title, text = html.escape(self.title), html.escape(self.text)
        mark = {None: "", True: "✓ ", False: "✗ "}[self.alike]
        source = f"data:image/{kind};base64,{data}"
        caption = f"<figcaption><b>{mark}{title}</b><br>{text}</figcaption>"
        return f'<figure><img alt="{title}" src="{source}">{caption}</figure>'


@dataclass(frozen=True)
class Gallery:
    """Rows of a picture and those that belong to it."""

    rows: Sequence[tuple[Picture, Sequence[Picture]]]

    def html(self) -> str:
        rows = ""
        for asked, near in self.rows:
            pictures = "".join(picture.html() for picture in near)
            rows += f'<div class="row"><div class="asked">{asked.html()}</div><div class="near">{pictures}</div></div>'
        return f'<div class="gallery">{rows}</div>'


@dataclass(frozen=True)
class Section:
    title: str
    text: str
    parts: Sequence[Table | Figures | Gallery]

    def html(self) -> str:
        parts = "".join(part.html() for part in self.parts)
        return f"<section><h2>{html.escape(self.title)}</h2><p>{html.escape(self.text)}</p>{parts}</section>"


@dataclass(frozen=True)
class Page:
    title: str
    lead: Sequence[str]
    sections: Sequence[Section]
    classes: dict[str, Any] = field(default_factory=dict)  # {"columns": [...], "rows": [[name, group, numbers ...]]}


def render_page(page: Page) -> str:
    template = resources.files("longtail.measure").joinpath("page.html").read_text(encoding="utf-8")
    parts = {
        "TITLE": html.escape(page.title),
        "LEAD": "".join(f"<p>{html.escape(line)}</p>" for line in page.lead),
        "SECTIONS": "".join(section.html() for section in page.sections),
        # Inside a script element only "</" and "<!--" could end it.
        "CLASSES": json.dumps(page.classes, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c"),
    }
    before, *rest = template.split("{{")
    return before + "".join(parts[name] + text for name, text in (piece.split("}}", 1) for piece in rest))
