"""Zero-shot CLIP (Radford et al., ICML 2021): see `vision_language/zero_shot.py`."""

from longtail.methods.published import Published
from longtail.vision_language.zero_shot import ZeroShot

METHOD = Published(
    "zero_shot",
    ZeroShot,
    paper="Radford et al., ICML 2021",
    likelihood="prototypes",
    samples="mean text features",
    prior="any",
    numerator="-",
    weight="-",
)
