"""What the objectives compute, against their formulas written out."""

import pytest
import torch
import torch.nn.functional as F

from longtail.likelihood.mixture import mixture_loglik
from longtail.methods import build_objective
from longtail.prior import log_prior
from longtail.template import class_log_mean_exp
from longtail.vision_language.clip import TextTower
from longtail.vision_language.contrast import ImageTextContrast, smoothed_classes
from longtail.vision_language.corpus import read_corpus
from longtail.vision_language.gml_text import TextGML
from longtail.vision_language.language_guided import LanguageGuided, LanguageGuidedRecognition
from longtail.vision_language.text import TextBank, text_bank

CLASSES, COUNTS = ("dog", "aquarium_fish", "猫"), [50, 10, 2]
LABELS = torch.tensor([0, 0, 1, 2, 1, 0])


@pytest.fixture
def tower(vit):
    return TextTower(vit, pretrained=True)


@pytest.fixture
def features():
    torch.manual_seed(0)
    return torch.randn(6, 32)


def test_gml_begins_at_clips_own_alignment(tower, features):
    objective = TextGML(COUNTS, 32, tau_s=1 / 20)
    objective.read(CLASSES, tower)
    bank = objective.bank
    assert objective.tau.item() == pytest.approx(1 / tower.scale.item())
    cosine_bk = F.normalize(features, dim=1) @ bank.features.T
    loglik_bc = class_log_mean_exp(cosine_bk * tower.scale.detach(), bank.segments.class_of_row, 3)
    torch.testing.assert_close(objective.kernel_loglik(features), loglik_bc, rtol=1e-4, atol=1e-4)
    means = torch.stack([F.normalize(bank.features[7 * c : 7 * c + 7].mean(0), dim=0) for c in range(3)])
    scores_bc = 20 * F.normalize(features, dim=1) @ means.T
    torch.testing.assert_close(objective.scores(features), scores_bc, rtol=1e-4, atol=1e-4)

    prior = log_prior(COUNTS)
    losses = objective(features, LABELS)
    expected = F.cross_entropy(scores_bc + prior, LABELS) + F.cross_entropy(loglik_bc + prior, LABELS)
    torch.testing.assert_close(losses.per_sample.mean(), expected, rtol=1e-4, atol=1e-4)


def test_one_sentence_a_class_makes_both_terms_one(tower, features):
    objective = TextGML(COUNTS, 32, templates="photo", tau_g=1 / 30)
    objective.read(CLASSES, tower)
    parts = objective(features, LABELS).parts
    torch.testing.assert_close(parts["cls"], parts["gml"], rtol=1e-4, atol=1e-4)


def test_both_sides_of_the_mixture_learn_and_the_sentences_do_not(tower, features):
    objective = TextGML(COUNTS, 32)
    objective.read(CLASSES, tower)
    features.requires_grad_()
    objective(features, LABELS).per_sample.mean().backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in objective.parameters())
    assert features.grad.abs().max() > 0
    assert not objective.bank.features.requires_grad
    assert all(p.grad is None for p in tower.parameters())


def test_lift_is_the_logit_adjusted_cosine_alone(tower, features):
    objective = build_objective("lift", COUNTS, 32, {})
    objective.read(CLASSES, tower)
    means = text_bank(read_corpus(CLASSES), tower).means()
    expected = F.cross_entropy(25 * F.normalize(features, dim=1) @ means.T + log_prior(COUNTS), LABELS)
    torch.testing.assert_close(objective(features, LABELS).per_sample.mean(), expected, rtol=1e-4, atol=1e-4)
    assert {name for name, p in objective.named_parameters() if p.requires_grad} == {"likelihood.centres"}


def test_anchors_are_selected_only_where_there_are_too_many(tower, features):
    objective = TextGML(COUNTS, 32, anchors=7)
    objective.read(CLASSES, tower)
    assert not objective.wants_full_bank
    objective = TextGML(COUNTS, 32, anchors=3)
    objective.read(CLASSES, tower)
    assert objective.wants_full_bank
    objective.fill(features, LABELS, torch.arange(6))
    assert objective.bank.segments.offsets.tolist() == [0, 3, 6, 9]
    assert not objective.wants_full_bank
    torch.testing.assert_close(
        objective.likelihood.centres[0], F.normalize(objective.bank.features[:3].mean(0), dim=0), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("tau_g", [None, 0.01])
def test_bfloat16_does_not_touch_the_cosines(tower, features, tau_g):
    objective = TextGML(COUNTS, 32, tau_g=tau_g)
    objective.read(CLASSES, tower)
    exact = objective(features, LABELS).per_sample
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(objective(features, LABELS).per_sample, exact)


def test_every_sentence_of_the_class_is_right(tower, features, vit):
    objective = ImageTextContrast(COUNTS, 32, model=vit, templates="simple", distil=0.0)
    objective.read(CLASSES, tower)
    torch.manual_seed(3)
    loss_b = objective(features, LABELS).per_sample
    torch.manual_seed(3)
    row = objective._draw(LABELS)
    assert torch.equal(objective.segments.class_of_row[row], LABELS)
    logits = tower.scale * F.normalize(features, dim=1) @ F.normalize(tower(objective.tokens[row]), dim=1).T
    same = (LABELS[:, None] == LABELS).float()
    target = 0.9 * same / same.sum(1, keepdim=True) + 0.1 / 6
    expected = (-(target * logits.log_softmax(1)).sum(1) - (target * logits.T.log_softmax(1)).sum(1)) / 2
    torch.testing.assert_close(loss_b, expected.detach(), rtol=1e-4, atol=1e-4, check_dtype=False)
    torch.testing.assert_close(smoothed_classes(LABELS, LABELS, 0.1).sum(1), torch.ones(6))


def test_distillation_is_least_where_nothing_was_forgotten(tower, features, vit):
    objective = ImageTextContrast(COUNTS, 32, model=vit, templates="simple")
    objective.read(CLASSES, tower)

    def distil(image):
        torch.manual_seed(0)
        return objective(image, LABELS, key_scores=features).parts["distil"]

    assert distil(features) < distil(features + 0.1 * torch.randn(6, 32))
    features.requires_grad_()
    objective(features, LABELS, key_scores=features.detach()).per_sample.mean().backward()
    assert objective.tower.text.token_embedding.weight.grad.abs().max() > 0
    assert objective.tower.log_scale.grad is not None
    assert all(p.grad is None for p in tower.parameters())  # the frozen one is another


def written_out(head, x):
    """The language branch with v_c formed."""
    scores = x.new_zeros(len(x), len(head.anchors))
    for b in range(len(x)):
        for c in range(len(head.anchors)):
            keys = head.anchors[c][head.present[c]]
            fit = head.query(head.norm_query(x[b])) @ head.key(head.norm_key(keys)).T / x.shape[1] ** 0.5
            found = fit.softmax(0) @ keys
            scores[b, c] = head.scale * F.cosine_similarity(x[b], found, dim=0)
    return scores


def test_language_branch_never_forms_what_it_found(features):
    head = LanguageGuided(32, 3, anchors=4, weight=0.2)
    bank = TextBank(F.normalize(torch.randn(8, 32), dim=1), torch.tensor([0, 0, 0, 0, 0, 1, 2, 2]), 3)
    head.take(bank)
    assert head.present.sum(1).tolist() == [4, 1, 2]  # of five sentences the first four
    torch.nn.init.normal_(head.query.weight)
    visual, language = head.branches(features)
    torch.testing.assert_close(language, written_out(head, features), rtol=1e-4, atol=1e-3)
    mixed = 0.2 * visual.softmax(1) + 0.8 * language.softmax(1)
    torch.testing.assert_close(head(features), mixed.log(), rtol=1e-4, atol=1e-4)


def test_recognition_takes_the_anchors_that_fit(tower, features):
    objective = LanguageGuidedRecognition(COUNTS, 32, templates="simple", anchors=3)
    objective.read(CLASSES, tower)
    torch.testing.assert_close(objective.likelihood.anchors[0], objective.bank.features[:3])
    objective.fill(features, LABELS, torch.arange(6))
    assert objective.likelihood.present.all()
    losses = objective(features, LABELS)
    torch.testing.assert_close(losses.per_sample.mean(), losses.parts["visual"] + losses.parts["language"])
    losses.per_sample.mean().backward()
    assert all(p.grad is not None for p in objective.parameters())


def test_a_class_without_sentences_of_its_own_is_still_in_the_mixture(tower, features, tmp_path):
    (tmp_path / "corpus.jsonl").write_text('{"class": "dog", "sentence": "It barks."}\n')
    objective = TextGML(COUNTS, 32, sentences=str(tmp_path / "corpus.jsonl"), templates="photo")
    objective.read(CLASSES, tower)
    assert objective.bank.segments.offsets.tolist() == [0, 2, 3, 4]
    assert objective.kernel_loglik(features).isfinite().all()
    keys = F.normalize(objective.embed_text(objective.bank.features), dim=1)
    plain = mixture_loglik(F.normalize(features, dim=1), keys, objective.bank.segments, objective.tau)
    torch.testing.assert_close(objective.kernel_loglik(features), plain)
