"""Every link inside the project leads somewhere: in the built pages, and in the Markdown beside the code.

python docs/links.py docs/_build/html
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).parents[1]
MARKDOWN_LINK = re.compile(r"\]\(([^)\s]+)\)")


class Page(HTMLParser):
    """What a page links to, and the names it can be entered at."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.names: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for key, value in attrs:
            if key in ("href", "src") and value:
                self.links.append(value)
            elif key in ("id", "name") and value:
                self.names.add(value)


def broken_in_site(folder: Path) -> Iterator[str]:
    pages = {path.resolve(): Page(path.read_text(encoding="utf-8")) for path in sorted(folder.rglob("*.html"))}
    for path, page in pages.items():
        for link in page.links:
            scheme, host, target, _, fragment = urlsplit(link)
            if scheme or host:  # the outside world is not this check's business
                continue
            there = (path.parent / unquote(target)).resolve() if target else path
            if not there.exists():
                yield f"{path.relative_to(folder.resolve())}: {link} does not exist"
            elif fragment and there in pages and unquote(fragment) not in pages[there].names:
                yield f"{path.relative_to(folder.resolve())}: {link} has no such heading"


def broken_in_markdown(root: Path = ROOT) -> Iterator[str]:
    """Relative links of README.md and its like, which are read where the repository is shown."""
    for path in sorted(root.glob("*.md")):
        for link in MARKDOWN_LINK.findall(path.read_text(encoding="utf-8")):
            target = urlsplit(link)
            if not target.scheme and target.path and not (path.parent / target.path).exists():
                yield f"{path.name}: {link} does not exist"


if __name__ == "__main__":
    broken = [*broken_in_site(Path(sys.argv[1])), *broken_in_markdown()]
    print("\n".join(broken) or "every link inside the project leads somewhere")
    sys.exit(bool(broken))
