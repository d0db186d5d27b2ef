"""Long-tailed recognition as a likelihood plus a prior.

    import longtail as lt

    run = lt.train("my_images/", method="gml", out="runs/first")
    model = lt.load("runs/first")                                  # images -> log p(x|c), [B, C]
    answers = lt.predict(model, ["a.jpg", "b.jpg"], prior="uniform")
    gml = lt.methods.gml(counts=[500, 60, 4], dim=512)             # in a loop of your own

Everything is imported when it is first asked for, so that `import longtail` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from longtail import data, methods
    from longtail.api import adjust, compare, evaluate, export, load, predict, train

__all__ = ["adjust", "compare", "data", "evaluate", "export", "load", "methods", "predict", "train"]

_PACKAGES = ("data", "methods")


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return import_module(f"longtail.{name}")
    if name in __all__:
        return getattr(import_module("longtail.api"), name)
    raise AttributeError(f"module 'longtail' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
