"""`longtail serve`: drop an image, and see what the model says under a prior that a slider moves.

A page for this machine alone: it listens on 127.0.0.1, asks nobody for anything, takes files up to `LARGEST`, and keeps
what was dropped in a temporary folder that goes when it stops. gradio is imported in here only.
"""

from __future__ import annotations

import os
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from longtail.answers.neighbours import nearest
from longtail.answers.predict import LOW_SUPPORT, Preparation, normalised
from longtail.answers.run import Run, questions
from longtail.data.table import ImageTable
from longtail.errors import LongtailError
from longtail.prior import log_prior

LARGEST = "20mb"  # of an uploaded file: a camera's photograph fits
SHOWN = 6  # nearest samples
TOP = 5  # classes


@dataclass(frozen=True)
class Desk:
    """A run that is asked about one image at a time."""

    run: Run
    prepare: Preparation
    training: ImageTable | None  # where the pictures of the bank are; None where there is no bank or they are gone
    why_not: str = ""

    @torch.no_grad()
    def ask(self, image: str | Path) -> tuple[list[float], list[tuple[np.ndarray, str]]]:
        """Prior-free log-likelihoods, and the bank's nearest samples with a line about each."""
        pixels = self.prepare.pixels(image, "the image")
        x = normalised(self.run, pixels[None])
        with self.run.device.autocast():
            loglik_c = self.run.model(x)[0].float().cpu().tolist()
        if self.training is None:
            return loglik_c, []
        classes, images = self.run.classes, self.training.images
        near = nearest(self.run, x, SHOWN)[0]
        return loglik_c, [(images.decode(n.row), f"{classes[n.class_index]}, {n.similarity:.2f}") for n in near]

    def answer(self, loglik: list[float], strength: float) -> tuple[dict[str, float], str]:
        """Probabilities with `strength` times the training log prior added, and the answer in words."""
        run = self.run
        scores_c = torch.tensor(loglik) + log_prior(run.counts, tau=strength)
        probabilities = scores_c.softmax(0).tolist()
        first = int(scores_c.argmax())
        support = f"{run.counts[first]:,} training images" + (
            ", low support" if run.counts[first] < LOW_SUPPORT else ""
        )
        words = f"{run.classes[first]}: {run.groups.name(first)}, {support}"
        return dict(zip(run.classes, probabilities, strict=True)), words


def desk(run: Run) -> Desk:
    if "tau" in run.model.adjusted:
        raise LongtailError(f"{run.folder} is tau-normalised, so it takes no prior to slide: serve the original run")
    prepare = Preparation(run.model.card, resize=True)
    if "kernel" not in run.model.heads:
        return Desk(run, prepare, None, "This model has no bank of samples (the method gml has one).")
    try:
        return Desk(run, prepare, questions(run, split="train").table)
    except LongtailError as error:
        return Desk(run, prepare, None, f"The bank's pictures are not to be had: {error}.")


def page(asked: Desk) -> Any:
    """The page as gradio's blocks."""
    import gradio as gr  # pyright: ignore[reportMissingImports]  (an extra)

    run = asked.run
    size = " x ".join(str(side) for side in reversed(run.model.card["image_size"]))

    def look(image: str | None, strength: float):
        if image is None:
            return None, [], None, ""
        try:
            loglik, near = asked.ask(image)
        except LongtailError as error:
            raise gr.Error(str(error)) from None
        return loglik, near, *asked.answer(loglik, strength)

    def slide(loglik: list[float] | None, strength: float):
        return (None, "") if loglik is None else asked.answer(loglik, strength)

    with gr.Blocks(title=f"longtail: {run.beside.name}", analytics_enabled=False, delete_cache=(600, 3600)) as blocks:
        gr.Markdown(
            f"### {run.model.card['method']}, {len(run.classes):,} classes\n"
            f"Drop an image; it is brought to {size}. The model's likelihood stays, the slider moves the class mix it "
            "is answered for: 0 asks about every class equally, 1 expects the mix of the training set."
        )
        loglik = gr.State(None)
        with gr.Row():
            with gr.Column():
                image = gr.Image(
                    type="filepath", image_mode=None, sources=["upload", "clipboard"], label="image", height=260
                )
                strength = gr.Slider(0, 1, 0, step=0.05, label="prior: 0 uniform, 1 training set", elem_id="prior")
            with gr.Column():
                words = gr.Textbox(label="answer", interactive=False, elem_id="answer")
                classes = gr.Label(num_top_classes=TOP, label="probability under this prior", elem_id="classes")
        gr.Markdown(asked.why_not or "The nearest samples in the bank, by the cosine of their embeddings:")
        near = gr.Gallery(
            show_label=False, columns=SHOWN, rows=1, height="auto", object_fit="contain", format="png", elem_id="near",
            visible=asked.training is not None,
        )  # fmt: skip
        image.change(look, [image, strength], [loglik, near, classes, words])
        strength.change(slide, [loglik, strength], [classes, words], show_progress="hidden", trigger_mode="always_last")
    return blocks


@contextmanager
def served(run: Run, port: int | None = None) -> Iterator[str]:
    """Its address, for as long as the block lasts."""
    asked = desk(run)
    with tempfile.TemporaryDirectory(prefix="longtail-serve-") as folder:
        os.environ["GRADIO_TEMP_DIR"] = folder  # read when gradio is imported
        os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
        try:
            from gradio import themes  # pyright: ignore[reportMissingImports]
        except ImportError:
            raise LongtailError("serving needs one more package: pip install 'longtail[serve]'") from None
        blocks = page(asked)
        system_fonts = themes.Default(font=("system-ui", "sans-serif"), font_mono=("ui-monospace", "monospace"))
        try:
            _, address, _ = blocks.launch(
                server_name="127.0.0.1", server_port=port, share=False, max_file_size=LARGEST, theme=system_fonts,
                prevent_thread_lock=True, quiet=True, show_error=True, ssr_mode=False, footer_links=[],
            )  # fmt: skip
        except OSError as error:
            raise LongtailError(f"cannot serve here ({str(error).splitlines()[0]}): choose another --port") from None
        try:
            yield address
        finally:
            blocks.close(verbose=False)


def serve(run: Run, port: int | None = None) -> None:
    """Until it is interrupted."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that what was dropped is removed then too
    try:
        with served(run, port) as address:
            print(f"{address}   open it in a browser; Ctrl-C stops it", flush=True)
            threading.Event().wait()
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGTERM, before)
