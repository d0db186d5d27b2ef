"""The table on the page about priors is what results/ say."""

import importlib.util
import json
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_table_of_priors_is_what_the_recorded_runs_gave():
    spec = importlib.util.spec_from_file_location("dev_priors", ROOT / "dev/priors.py")
    assert spec
    assert spec.loader
    priors = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(priors)
    page = (ROOT / "docs/priors.md").read_text(encoding="utf-8")
    found = [json.loads(path.read_text()) for path in (ROOT / "results").glob("priors-*.json")]
    assert found
    for entry in found:
        assert priors.table(entry) in page
        run = json.loads((ROOT / f"results/{entry['run']}.json").read_text())["summary"]
        balanced = next(row for row in entry["rows"] if row["name"] == "uniform")
        assert balanced["images"] == run["images"]
