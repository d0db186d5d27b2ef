"""The text bank: what is cached and when it is not, how features are averaged, which sentences are kept."""

import pytest
import torch
import torch.nn.functional as F
from tiny_clip import save_clip

from longtail.contrast.bank import Bank
from longtail.vision_language import text
from longtail.vision_language.anchors import select_anchors, sentence_losses
from longtail.vision_language.clip import TextTower
from longtail.vision_language.corpus import read_corpus
from longtail.vision_language.text import TextBank, encode, text_bank

SENTENCES = ["a photo of a dog.", "Żubr!", "猫は鳴く。", "a photo of a dog."]


@pytest.fixture
def tower(vit):
    return TextTower(vit, pretrained=True)


def passes(monkeypatch):
    """How often sentences go through a tower."""
    seen = []
    through = text._through
    monkeypatch.setattr(text, "_through", lambda *arguments: (seen.append(1), through(*arguments))[1])
    return seen


def test_features_are_unit_length_and_in_order(tower, monkeypatch):
    monkeypatch.setattr(text, "BATCH", 2)
    features = encode(tower, SENTENCES)
    assert features.dtype == torch.float32
    torch.testing.assert_close(features.norm(dim=1), torch.ones(4))
    expected = [F.normalize(tower(tower.tokenize([sentence])), dim=1)[0] for sentence in SENTENCES]
    torch.testing.assert_close(features, torch.stack(expected).detach())


def test_read_once_and_again_when_anything_has_changed(tower, vit, monkeypatch, tmp_path, cache):
    seen = passes(monkeypatch)
    first = encode(tower, SENTENCES)
    assert torch.equal(encode(TextTower(vit, pretrained=True), SENTENCES), first)
    assert len(seen) == 1
    encode(tower, [*SENTENCES[:3], "a photo of a cat."])
    assert len(seen) == 2
    with torch.no_grad():
        tower.text.ln_final.weight[0] += 1e-6  # a tower that has been trained for a step
    assert not torch.equal(encode(tower, SENTENCES), first)
    other = TextTower(save_clip(tmp_path / "other", "vit", seed=1), pretrained=True)
    assert not torch.equal(encode(other, SENTENCES), first)
    assert len(seen) == 4
    assert len(list(cache.iterdir())) == 4


def test_another_template_is_another_bank(tower, monkeypatch):
    seen = passes(monkeypatch)
    for templates in ("photo", "a drawing of a {}", "photo"):
        text_bank(read_corpus(("dog", "cat"), templates=templates), tower)
    assert len(seen) == 2


def test_half_a_file_is_as_good_as_none(tower, cache):
    first = encode(tower, SENTENCES)
    (file,) = cache.iterdir()
    file.write_bytes(file.read_bytes()[:-100])
    assert torch.equal(encode(tower, SENTENCES), first)
    assert torch.equal(encode(tower, SENTENCES), first)


def test_each_prompt_then_the_mean_then_again(tower):
    bank = text_bank(read_corpus(("dog", "猫"), templates=["{}", "one {} of many", "the {}"]), tower)
    raw = tower(tower.tokenize(["dog", "one dog of many", "the dog", "猫", "one 猫 of many", "the 猫"]))
    each = F.normalize(raw, dim=1).view(2, 3, -1)
    torch.testing.assert_close(bank.means(), F.normalize(each.mean(1), dim=1).detach())
    assert bank.class_of.tolist() == [0, 0, 0, 1, 1, 1]
    stored = Bank.full(bank.features, bank.class_of, torch.arange(6), bank.num_classes)
    assert torch.equal(stored.features, bank.features)


def random_bank():
    generator = torch.Generator().manual_seed(0)
    features = F.normalize(torch.randn(9, 6, generator=generator), dim=1)
    bank = TextBank(features, torch.tensor([0, 0, 0, 0, 1, 1, 2, 2, 2]), 4)
    images, labels = torch.randn(30, 6, generator=generator), torch.randint(0, 2, (30,), generator=generator)
    return bank, images, labels  # classes 2 and 3 have no image, 3 has no sentence either


def test_a_sentences_loss_is_the_cross_entropy_against_all_images(monkeypatch):
    monkeypatch.setattr("longtail.vision_language.anchors.BLOCK", 60)  # two sentences at a time
    bank, images, labels = random_bank()
    losses = sentence_losses(bank, images, labels, scale=7.0)
    for k in range(6):
        log_p = (7 * bank.features[k] @ F.normalize(images, dim=1).T).log_softmax(0)
        torch.testing.assert_close(losses[k], -log_p[labels == bank.class_of[k]].mean())
    assert (losses[6:] == 0).all()


def test_the_best_fitting_sentences_are_kept_in_their_order():
    bank, images, labels = random_bank()
    losses = sentence_losses(bank, images, labels, scale=7.0)
    kept = select_anchors(bank, images, labels, scale=7.0, anchors=2)
    best = sorted(losses[:4].argsort()[:2].tolist())
    assert torch.equal(kept.features, bank.features[[*best, 4, 5, 6, 7]])
    assert kept.class_of.tolist() == [0, 0, 1, 1, 2, 2]
    assert torch.equal(select_anchors(bank, images, labels, 7.0, anchors=99).features, bank.features)
