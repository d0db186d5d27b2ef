"""Run docs/tutorial.md as a notebook is run: what each block prints goes under it, its pictures into docs/_static/.

python dev/tutorial.py
"""

import contextlib
import io
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/tutorial.md"


def main() -> None:
    parts = re.split(r"(^```(?:python|text)\n.*?^```$)", PAGE.read_text(), flags=re.DOTALL | re.MULTILINE)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    printed = ""
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for number, part in enumerate(parts):
            if part.startswith("```python"):
                said = io.StringIO()
                with contextlib.redirect_stdout(said):
                    exec(part.removeprefix("```python\n").removesuffix("```"), namespace)
                printed = said.getvalue()
            elif part.startswith("```text"):
                parts[number] = f"```text\n{printed}```"
        for picture in Path(folder).glob("*.png"):
            shutil.copy(picture, ROOT / f"docs/_static/tutorial-{picture.name}")
        os.chdir(ROOT)
    PAGE.write_text("".join(parts))


if __name__ == "__main__":
    main()
