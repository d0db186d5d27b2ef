"""Nothing that is read may run: the calls that could are nowhere in the package."""

import ast
from pathlib import Path

import longtail

PACKAGE = Path(longtail.__file__).parent
CAN_RUN_CODE = {
    "eval", "exec", "os.system", "os.popen", "pickle.load", "pickle.loads", "torch.jit.load",
    "torch.hub.load", "yaml.load", "yaml.full_load", "yaml.unsafe_load", "joblib.load", "marshal.loads", "shelve.open",
}  # fmt: skip


def calls() -> list[tuple[str, ast.Call]]:
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                found.append((f"{path.relative_to(PACKAGE)}:{node.lineno}", node))
    return found


def test_nothing_that_is_read_is_executed() -> None:
    assert [where for where, call in calls() if ast.unparse(call.func) in CAN_RUN_CODE] == []


def test_arrays_and_tensors_are_read_without_pickle() -> None:
    switched_off = {"np.load": ("allow_pickle", "False"), "torch.load": ("weights_only", "True")}
    loads = [(where, call) for where, call in calls() if ast.unparse(call.func) in switched_off]
    assert loads
    for where, call in loads:
        said = {k.arg: ast.unparse(k.value) for k in call.keywords}
        name, value = switched_off[ast.unparse(call.func)]
        assert said.get(name) == value, where


def test_no_shell_stands_between() -> None:
    asked = [(where, call) for where, call in calls() if ast.unparse(call.func).startswith("subprocess.")]
    assert asked
    assert [where for where, call in asked if any(k.arg == "shell" for k in call.keywords)] == []
