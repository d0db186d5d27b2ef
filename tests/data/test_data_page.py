"""The Python on the page about data runs as it stands."""

import re
from pathlib import Path


def test_python_on_the_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).resolve().parents[2] / "docs" / "data.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert len(blocks) == 4
    namespace = {}
    for block in blocks:
        exec(block, namespace)
