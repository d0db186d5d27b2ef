"""KD and CRD against their equations written out."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from longtail.contrast.memory import Memory
from longtail.errors import LongtailError
from longtail.losses.crd import log_normaliser, noise_contrast
from longtail.methods import METHODS, balanced_softmax, crd, cross_entropy, gml, kd, logit_adjusted
from longtail.models.teacher import Teacher
from longtail.recipe import Stage

COUNTS = [9, 5, 2]
LABELS = torch.repeat_interleave(torch.arange(3), torch.tensor(COUNTS))


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.mark.parametrize(("head", "plain"), [("cosine", logit_adjusted), ("linear", balanced_softmax)])
def test_kd_is_its_equation_on_prior_free_scores(head, plain):
    objective, alone = kd(COUNTS, 6, head=head).double(), plain(COUNTS, 6).double()
    alone.likelihood.load_state_dict(objective.likelihood.state_dict())
    x, teacher, labels = torch.randn(5, 6).double(), torch.randn(5, 3).double(), torch.tensor([0, 1, 2, 0, 0])
    s, expected = objective.scores(x), []
    for i in range(5):
        p, q = (teacher[i] / 4).softmax(0).tolist(), (s[i] / 4).softmax(0).tolist()
        expected.append(16 * sum(a * math.log(a / b) for a, b in zip(p, q, strict=True)))
    total = 0.1 * alone(x, labels).per_sample + 0.9 * torch.tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(objective(x, labels, key_scores=teacher).per_sample, total)


def test_a_student_that_is_adjusted_in_part_is_distilled_without_its_prior():
    part, whole = (gml(COUNTS, 6, k=16, kd_weight=1.0, alpha_cls=alpha).double() for alpha in (0.2, 1.0))
    teacher, labels = torch.randn(5, 3).double(), torch.tensor([0, 1, 2, 0, 0])
    part.likelihood, whole.likelihood = nn.Identity(), nn.Identity()  # scores are given in the place of features
    scores = torch.randn(5, 3).double()
    log_p = torch.tensor(COUNTS).double().div(sum(COUNTS)).log()
    said = [
        made(given, labels, torch.arange(5), key_scores=teacher).parts["kd"]
        for made, given in ((part, scores + 0.8 * log_p), (whole, scores))
    ]
    torch.testing.assert_close(*said, rtol=1e-6, atol=1e-6)


def test_a_teacher_under_plain_cross_entropy_says_what_it_knows_without_its_prior():
    objective = cross_entropy(COUNTS, 6)
    backbone = nn.Identity()
    backbone.dim = 6
    teacher = Teacher(backbone, objective.likelihood, objective.log_mass, objective.log_added)
    x = torch.randn(5, 6)
    expected = objective.likelihood(x) - torch.tensor(COUNTS).float().div(sum(COUNTS)).log()
    torch.testing.assert_close(teacher(x)[1], expected)
    assert not [name for name in teacher.state_dict() if name.startswith("log_")]  # an older checkpoint still fits


def test_a_student_that_repeats_its_teacher_is_told_nothing():
    objective = kd(COUNTS, 6, gamma=0.0)
    x = torch.randn(5, 6)
    losses = objective(x, torch.zeros(5, dtype=torch.int64), key_scores=objective.scores(x).detach())
    torch.testing.assert_close(losses.per_sample, torch.zeros(5), rtol=0, atol=1e-5)


@pytest.mark.parametrize(("settings", "teacher"), [({}, "logit_adjusted"), ({"head": "linear"}, "balanced_softmax")])
def test_the_teachers_head_is_of_the_students_kind(settings, teacher):
    first, second = METHODS["kd"].stages(Stage(method="kd", settings=settings))
    assert (first.method, first.settings, second.keys) == (teacher, {}, first.name)


def test_an_unknown_head_is_refused():
    with pytest.raises(LongtailError, match="cosine or linear"):
        kd(COUNTS, 6, head="round")


def test_noise_contrast_is_its_equation():
    scores, size, k = torch.randn(4, 6, dtype=torch.float64), 50, 5
    log_z = log_normaliser(scores, size)
    z, expected = sum(math.exp(s) for s in scores.flatten().tolist()) / 24 * size, []
    assert log_z.item() == pytest.approx(math.log(z))
    for row in scores.tolist():
        p = [math.exp(s) / z for s in row]
        own = -math.log(p[0] / (p[0] + k / size))
        expected.append(own - sum(math.log((k / size) / (x + k / size)) for x in p[1:]))
    torch.testing.assert_close(noise_contrast(scores, log_z, size), torch.tensor(expected, dtype=torch.float64))


def named_memory(dim: int = 4) -> Memory:
    memory = Memory(torch.tensor(COUNTS), dim).double()
    shuffled = torch.randperm(16)
    memory.name_rows(LABELS[shuffled], shuffled * 10)  # ids of a table that has other rows too
    return memory


def test_every_sample_has_a_row_among_its_classs():
    memory = named_memory()
    rows = memory.rows(torch.arange(16) * 10)
    assert rows.sort().values.tolist() == list(range(16))
    assert (torch.repeat_interleave(torch.arange(3), memory.offsets.diff())[rows] == LABELS).all()


def test_negatives_are_drawn_evenly_from_the_other_classes():
    memory = named_memory()
    drawn = memory.draw_others(torch.tensor([0, 1, 2]), 20_000)
    for label, rows in enumerate(drawn):
        share = torch.bincount(rows, minlength=16) / 20_000
        own = torch.repeat_interleave(torch.arange(3), torch.tensor(COUNTS)) == label
        assert (share[own] == 0).all()
        torch.testing.assert_close(
            share[~own], torch.full((int((~own).sum()),), 1 / int((~own).sum())), rtol=0.2, atol=0
        )


def test_one_class_alone_is_contrasted_with_itself():
    memory = Memory(torch.tensor([7]), 4)
    drawn = memory.draw_others(torch.zeros(3, dtype=torch.int64), 50)
    assert drawn.min() >= 0
    assert drawn.max() <= 6


def test_the_memory_moves_half_way_and_stays_of_unit_length():
    memory = named_memory()
    ids = torch.tensor([30, 100])
    before, new = memory.student[memory.rows(ids)].clone(), F.normalize(torch.randn(2, 4).double(), dim=1)
    untouched = memory.student.clone()
    memory.update(ids, new, new, 0.5)
    torch.testing.assert_close(memory.student[memory.rows(ids)], F.normalize((before + new) / 2, dim=1))
    untouched[memory.rows(ids)] = memory.student[memory.rows(ids)]
    torch.testing.assert_close(memory.student, untouched)


def test_crd_is_its_equation():
    """With the drawn rows known, both sides' losses from the memories as they were before the step."""
    objective = crd(COUNTS, 6, key_dim=5, k=7, tau=0.2, embed=4).double()
    ids, labels = torch.tensor([3, 10, 15]), LABELS[torch.tensor([3, 10, 15])]
    objective.fill(torch.empty(16, 5), LABELS, torch.arange(16))
    x, keys = torch.randn(3, 6).double(), torch.randn(3, 5).double()
    memories = objective.memory.teacher.clone(), objective.memory.student.clone()

    torch.manual_seed(5)
    losses = objective(x, labels, ids, keys=keys)
    torch.manual_seed(5)
    drawn = objective.memory.draw_others(labels, 7)
    sides = F.normalize(objective.embed_student(x), dim=1), F.normalize(objective.embed_teacher(keys), dim=1)
    expected = torch.zeros(3, dtype=torch.float64)
    for v, memory in zip(sides, memories, strict=True):
        e = torch.stack([(memory[torch.cat([ids[i : i + 1], drawn[i]])] @ v[i] / 0.2).exp() for i in range(3)])
        p = e / (e.mean() * 16)
        expected += -(p[:, 0] / (p[:, 0] + 7 / 16)).log() - ((7 / 16) / (p[:, 1:] + 7 / 16)).log().sum(1)
    cls = F.cross_entropy(objective.scores(x) + objective.log_added, labels, reduction="none")
    torch.testing.assert_close(losses.per_sample, cls + 0.8 * expected)

    log_z = objective.log_z.clone()
    objective.after_step()
    torch.testing.assert_close(
        objective.memory.student[ids], F.normalize(0.5 * memories[1][ids] + 0.5 * sides[0].detach(), dim=1)
    )
    objective(x, labels, ids, keys=keys)
    torch.testing.assert_close(objective.log_z, log_z, rtol=0, atol=0)  # measured once


def test_before_it_knows_its_samples_crd_has_no_contrast_and_the_log_says_so():
    losses = crd(COUNTS, 6)(torch.randn(3, 6), LABELS[:3], torch.arange(3), keys=torch.randn(3, 6))
    assert "crd" not in losses.parts
    torch.testing.assert_close(losses.per_sample.mean(), losses.parts["cls"])
