"""Towers against open_clip's own model, and what a user is told where there is none."""

import json

import open_clip
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from longtail import offline
from longtail.data.augment import ImageFormat
from longtail.engine.optim import build_optimiser
from longtail.errors import LongtailError
from longtail.methods.method import Method
from longtail.models import backbone as backbones
from longtail.recipe import Optim
from longtail.types import Batch
from longtail.vision_language import clip
from longtail.vision_language.adapters import add_adapters
from longtail.vision_language.clip import ImageTower, Name, TextTower, image_format
from longtail.vision_language.gml_text import TextGML
from longtail.vision_language.zero_shot import ZeroShot

CLASSES = ("aquarium_fish", "Żubr", "猫", "sweet pepper")


def of_open_clip(name):
    return open_clip.create_model(f"local-dir:{name.removeprefix('clip:')}").eval()


@pytest.mark.parametrize("kind", ["vit", "resnet", "coca"])
def test_zero_shot_logits_are_open_clips(kind, request):
    name = request.getfixturevalue(kind)
    theirs, tokenizer = of_open_clip(name), open_clip.get_tokenizer(f"local-dir:{name.removeprefix('clip:')}")
    images = torch.randn(5, 3, 32, 32)
    names = [c.replace("_", " ") for c in CLASSES]
    weights = open_clip.build_zero_shot_classifier(theirs, tokenizer, names, open_clip.SIMPLE_IMAGENET_TEMPLATES)
    with torch.no_grad():
        expected = theirs.logit_scale.exp() * theirs.encode_image(images, normalize=True) @ weights

    ours, objective = ImageTower(name, pretrained=True).eval(), ZeroShot([1, 1, 1, 1], 32)
    objective.read(CLASSES, TextTower(name, pretrained=True))
    with torch.no_grad():
        torch.testing.assert_close(objective.scores(ours(images)), expected, rtol=1e-4, atol=1e-4)


def test_text_without_its_padding_is_the_same_text(vit):
    tower = TextTower(vit, pretrained=True)
    tokens = tower.tokenize(["a fish", "a photo of a very small and long-lived fish in still water", "猫"])
    assert tokens.shape == (3, 24)
    torch.testing.assert_close(tower(tokens[:1]), tower.text(tokens[:1]))
    torch.testing.assert_close(tower(tokens), tower.text(tokens))
    assert tower.text.attn_mask.shape == (24, 24)


@pytest.mark.parametrize("adapter", ["+adaptformer4", "+lora4"])
def test_adapters_begin_as_nothing_and_the_tower_stays(vit, adapter):
    images, labels = torch.randn(6, 3, 32, 32), torch.arange(6) % 4
    plain, tower = ImageTower(vit, pretrained=True).eval(), ImageTower(vit + adapter, pretrained=True)
    torch.testing.assert_close(tower.eval()(images), plain(images))

    objective = TextGML([4, 3, 2, 1], tower.dim)
    objective.read(CLASSES, TextTower(vit, pretrained=True))
    method = Method(tower, objective).train()
    before = {name: p.clone() for name, p in tower.named_parameters()}
    optimiser = build_optimiser(method, Optim(lr=0.1))
    for _ in range(2):  # in the first step only what leads out of the bottleneck has a gradient
        method(Batch((images,), labels, torch.arange(6))).per_sample.mean().backward()
        optimiser.step()
    moved = {name for name, p in tower.named_parameters() if not torch.equal(p, before[name])}
    assert moved
    assert all("branch" not in name and ("mlp" in name or "parametrizations" in name) for name in moved)
    assert all("original" not in name for name in moved)
    assert not torch.equal(tower.eval()(images), plain(images))


def test_lora_where_queries_and_values_have_projections_of_their_own():
    """As in EVA-02; timm's other transformers have one projection in a linear layer."""

    class Attention(nn.Module):
        def __init__(self, together):
            super().__init__()
            self.qkv = nn.Linear(8, 24) if together else None
            if not together:
                self.q_proj, self.k_proj, self.v_proj = (nn.Linear(8, 8) for _ in range(3))

    for together in (False, True):
        block = nn.Module()
        block.attn, block.mlp = Attention(together), nn.Linear(8, 8)
        tower = nn.Sequential(block).requires_grad_(False)
        before = {name: p.clone() for name, p in tower.named_parameters()}
        add_adapters(tower, "lora", 2)
        names = {name.split(".parametrizations")[0] for name, p in tower.named_parameters() if p.requires_grad}
        assert names == ({"0.attn.qkv"} if together else {"0.attn.q_proj", "0.attn.v_proj"})
        for name in names:
            part = tower.get_submodule(name)
            assert torch.equal(part.weight, before[f"{name}.weight"])  # at first
            part.parametrizations.weight[0].up.data.fill_(1.0)
            moved = (part.weight != before[f"{name}.weight"]).any(1)
            assert moved.tolist() == ([True] * 8 + [False] * 8 + [True] * 8 if together else [True] * 8)


def test_a_text_tower_of_another_library_is_named(vit, tmp_path, monkeypatch):
    config = json.loads((Name.parse(vit).folder / "open_clip_config.json").read_text())
    config["model_cfg"]["text_cfg"] = {"hf_model_name": "x/y", "hf_tokenizer_name": "x/y"}
    (tmp_path / "open_clip_config.json").write_text(json.dumps(config))
    monkeypatch.setattr(clip.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(LongtailError, match="needs transformers: pip install transformers"):
        TextTower(f"clip:{tmp_path}", pretrained=False)


def test_adapters_in_a_resnet(resnet):
    images = torch.randn(2, 3, 32, 32)
    tower = ImageTower(resnet + "+adaptformer4", pretrained=True).eval()
    torch.testing.assert_close(tower(images), ImageTower(resnet, pretrained=True).eval()(images))
    assert sum(p.requires_grad for p in tower.parameters()) == 4 * 5  # in four blocks: two maps with bias, and a scale
    with pytest.raises(LongtailError, match="needs a vision transformer"):
        ImageTower(resnet + "+lora4", pretrained=True)


def test_batch_statistics_stay_where_they_were(resnet):
    tower = ImageTower(resnet, pretrained=True).train()
    before = {name: tensor.clone() for name, tensor in tower.named_buffers()}
    tower(3 + torch.randn(4, 3, 32, 32)).sum().backward()
    assert all(torch.equal(tensor, before[name]) for name, tensor in tower.named_buffers())
    assert tower.visual.conv1.weight.grad is not None
    from_scratch = ImageTower(resnet, pretrained=False).train()
    from_scratch(3 + torch.randn(4, 3, 32, 32))
    assert from_scratch.visual.bn1.running_mean.abs().max() > 0


def test_small_images_are_brought_to_the_towers_size(vit):
    tower = ImageTower(vit, pretrained=True).eval()
    images = torch.randn(2, 3, 16, 16)
    larger = F.interpolate(images, (32, 32), mode="bicubic")
    torch.testing.assert_close(tower(images), tower(larger))
    assert ImageTower(vit + "@64", pretrained=True)(torch.randn(2, 3, 64, 64)).shape == (2, 32)


def test_formats_are_known_without_building(vit):
    assert image_format(vit) == ImageFormat(32, (0.5, 0.4, 0.3), (0.25, 0.25, 0.2), "bicubic", 1.0)
    openai = image_format("clip:ViT-B-16/openai@384")
    assert (openai.size, openai.mean) == (384, open_clip.OPENAI_DATASET_MEAN)


def test_names():
    name = Name.parse("clip:ViT-B-16//data/a+b@2.pt@384+adaptformer16")
    assert (name.architecture, name.weights, name.size) == ("ViT-B-16", "/data/a+b@2.pt", 384)
    assert (name.adapter, name.width) == ("adaptformer", 16)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("clip:ViT-B-17/openai", "did you mean 'ViT-B-16'"),
        ("clip:nowhere/", "no folder 'nowhere/'"),
        ("clip:ViT-B-16/opena", "did you mean 'openai'"),
        ("clip:ViT-B-16", "has no weights"),
        ("clip:ViT-B-16/openai+prompts3", r"write \+adaptformer8 or \+lora8"),
    ],
)
def test_mistakes_are_one_sentence(name, told):
    with pytest.raises(LongtailError, match=told) as error:
        backbones.build(name, pretrained="prompts" not in name)
    assert "\n" not in str(error.value)


def test_a_machine_without_network_says_where_to_put_the_weights(monkeypatch, caplog, capfd):
    monkeypatch.setattr(offline, "reachable", lambda url: False)
    monkeypatch.setenv("HF_HUB_CACHE", "/nonexistent")
    with pytest.raises(LongtailError, match=r"put the file here and name it, as in --clip ViT-B-32//path/to") as error:
        clip.load("clip:ViT-B-32/openai", pretrained=True)
    assert "\n" not in str(error.value)
    assert not caplog.records
    assert capfd.readouterr() == ("", "")


def test_a_folder_with_other_weights_is_refused(vit, tmp_path):
    folder = tmp_path / "clip"
    folder.mkdir()
    with pytest.raises(LongtailError, match=r"has no open_clip_config\.json"):
        Name.parse(f"clip:{folder}")
    (folder / "open_clip_config.json").write_text(
        (Name.parse(vit).folder / "open_clip_config.json").read_text().replace('"layers": 2', '"layers": 3')
    )
    (folder / "model.safetensors").write_bytes((Name.parse(vit).folder / "model.safetensors").read_bytes())
    with pytest.raises(LongtailError, match="no weights that fit"):
        ImageTower(f"clip:{folder}", pretrained=True)
