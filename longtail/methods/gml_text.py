"""GML with sentences as samples (Suh and Seo, ICML 2023, section 3.4): see `vision_language/gml_text.py`."""

from longtail.methods.published import Published
from longtail.vision_language.gml_text import TextGML

METHOD = Published(
    "gml_text",
    TextGML,
    paper="Suh and Seo, ICML 2023 (section 3.4)",
    likelihood="mixture",
    samples="sentences about the class",
    prior="log p",
    numerator="exact",
    weight="-",
)
