"""The recipes of tables 4 and 9: what the paper and its appendix state, and where sentences are looked for."""

import pytest

from longtail import recipes
from longtail.errors import LongtailError
from longtail.reproduce import recipe_of


@pytest.mark.parametrize(("name", "alpha"), [("ade20k", 0.2), ("ade20k-alpha-1", 1.0)])
def test_ade20k_is_the_papers(name, alpha):
    recipe = recipes.build(name)
    teacher, student = recipe.stages
    stated = {"k": 8192, "k_m": 27, "tau_s": 0.05, "tau_g": 0.07, "alpha": alpha, "alpha_cls": alpha}
    assert student.settings == stated
    assert (teacher.method, teacher.settings) == ("logit_adjusted", {"tau_s": 0.05, "tau": 1.0})
    assert recipe.pixels is not None
    assert recipe.pixels.crop == (512, 512)
    for stage in recipe.stages:
        assert recipe.pixels.steps * stage.epochs == 160_000
        assert (stage.model, stage.batch_size, stage.optim.lr, stage.optim.schedule) == ("resnet50c", 16, 0.01, "poly")
    plain = recipes.build("ade20k-cross-entropy")
    assert plain.pixels == recipe.pixels
    assert [stage.settings for stage in plain.stages] == [{}]


@pytest.mark.parametrize(
    ("name", "model", "epochs", "batch_size", "lr"),
    [
        ("imagenet_lt_clip_rn50", "clip:RN50/openai", 50, 2048, 5e-5),
        ("imagenet_lt_clip_vitb", "clip:ViT-B-16/openai", 50, 1024, 3.5e-5),
        ("inat18_clip_vitb_384", "clip:ViT-B-16/openai@384", 100, 1024, 3.5e-4),
    ],
)
def test_text_centres_have_vl_ltrs_settings(name, model, epochs, batch_size, lr):
    recipe = recipe_of(name, data_root="somewhere")
    (stage,) = recipe.stages
    assert (stage.method, stage.model, stage.pretrained) == ("gml_text", model, True)
    assert (stage.epochs, stage.batch_size, stage.optim.lr) == (epochs, batch_size, lr)
    assert (stage.optim.kind, stage.optim.weight_decay, stage.optim.decay_norm_and_bias) == ("adamw", 0.05, False)
    assert stage.settings["anchors"] == 64
    assert stage.settings["sentences"] == f"somewhere/{recipe.data.source}"


def test_another_place_for_sentences():
    (stage,) = recipe_of("imagenet-lt-clip-rn50", sentences="corpus.jsonl").stages
    assert stage.settings["sentences"] == "corpus.jsonl"
    with pytest.raises(LongtailError, match="reads no sentences"):
        recipe_of("cifar100-lt-100-200", sentences="corpus.jsonl")
