"""VL-LTR (Tian et al., ECCV 2022): both towers by contrast with sentences, then a language-guided head on frozen ones.

The stages are `vision_language/contrast.py` and `vision_language/language_guided.py`; both draw their batches by the
square root of a class's frequency.
"""

from dataclasses import replace

from longtail.methods.published import Published
from longtail.recipe import Stage
from longtail.vision_language.contrast import ImageTextContrast
from longtail.vision_language.language_guided import LanguageGuidedRecognition


def stages(base: Stage) -> tuple[Stage, ...]:
    known = ("sentences", "templates")
    text = {key: value for key, value in base.settings.items() if key in known}
    base = replace(base, sampler="square-root")
    contrast = replace(base, name="contrast", method="vl_ltr_contrast", settings=text, keys="frozen", answers=False)
    return (contrast, replace(base, name="recognition", start_from="contrast", trains="head"))


CONTRAST = Published(
    "vl_ltr_contrast",
    ImageTextContrast,
    paper="Tian et al., ECCV 2022 (first stage)",
    likelihood="-",
    samples="sentences of the batch",
    prior="uniform",
    numerator="soft labels",
    weight="-",
)

METHOD = Published(
    "vl_ltr",
    LanguageGuidedRecognition,
    paper="Tian et al., ECCV 2022",
    likelihood="MLP and attended anchors",
    samples="anchor sentences",
    prior="uniform, square-root sampler",
    numerator="exact",
    weight="-",
    stages=stages,
)
