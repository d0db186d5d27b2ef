"""Gaussian mixture likelihood (Suh and Seo, ICML 2023): a class is as likely as its samples are near.

    s(x|c) = (1/|Z_c|) sum_{z in Z_c} exp( z_x . z / tau_g )                                  (eq. 3)
    L_GML  = -log softmax_c( log s(x|c) + alpha log p_c )[y]                                   (eq. 5, eq. 14)
    L_cls  = -log softmax_c( cos(x, m_c) / tau_s + log p_c )[y]                                (eq. 7)
    L      = gamma L_cls + beta L_GML + kd_weight T^2 KL( teacher || student )

z_x is the student's feature of the query view behind an MLP. Z_c is class c's segment of a bank of key-encoder backbone
features, re-embedded by an MLP of its own every step, with gradient on both sides. The batch's keys enter before it is
scored. L_cls answers; the mixture over the bank is a second answer for free (`kernel_loglik`).

Defaults are the paper's for CIFAR-100-LT (its appendix), the embedding 64-64-32 for 64-wide features.

Where paper and authors' code differ, and what is done here:

- tau_g: fixed in most of the paper, always learned in the code. Here `learn_tau=False`. Learned, its gradient comes
  from a second term in which the query's own sample is left out of the bank, similarities detached; the first term then
  sees tau_g as a constant. A row whose class would be left with nothing takes no part in that term (`left_out` in the
  log); the code divides 0 by 0 there, which with the printed k_m = 2 ends runs on ImageNet-LT and iNaturalist.
- Empty slots: random vectors in the code; masked here, and |Z_c| counts what is summed.
- Bank lengths: by largest remainder, summing to k; the code rounds a cumulative sum and can end one past k.
- KD: not in the paper's formulas; in the code T = 4 on prior-free scores, and without it CIFAR loses accuracy.
- The momentum path of the code fills the bank with features under permuted labels; see `contrast/momentum.py`.
"""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
from torch import Tensor, nn

from longtail.contrast.bank import Bank
from longtail.contrast.reembed import Reembedding, embedded
from longtail.errors import LongtailError
from longtail.likelihood.cosine import Cosine
from longtail.likelihood.mixture import mixture_loglik, mixture_loglik_excluding_own
from longtail.likelihood.vmf import concentration, mean_of_keys, vmf_loglik
from longtail.losses.kd import distillation
from longtail.methods.published import Published
from longtail.models.heads import Projection
from longtail.prior import log_prior, prior_free
from longtail.ranks import ALONE, Ranks
from longtail.recipe import Stage
from longtail.template import add_prior, cross_entropy
from longtail.types import Counts, Losses


class GML(nn.Module):
    """Features [N, D] of the class view and of the query view, keys [N, D'] -> per-sample losses.

    In a loop of your own:

        gml = GML(counts, dim=64)
        losses = gml(student(x1), labels, ids, query=student(x2), keys=teacher(x3))
        losses.per_sample.mean().backward()
    """

    log_added: Tensor
    log_mass: Tensor
    log_prior: Tensor

    def __init__(
        self,
        counts: Counts,
        dim: int,
        *,
        key_dim: int | None = None,  # width of the keys where the teacher's features are wider or narrower
        hidden: int | None = None,  # of the embedding MLPs; as wide as the student's features if not given
        embed: int | None = None,  # their output; half the student's features if not given
        k: int = 4096,
        k_m: int = 2,
        bank: str = "ring",  # or "full": every training sample's teacher features, once
        bank_views: int = 0,  # of a full bank: so many of each image's cached views; 0 is the image as it is
        keys_of: str = "key",  # or "class": the teacher sees the class view alone, for L_KD and for the ring
        tau_g: float = 0.1,
        learn_tau: bool = False,
        tau_s: float = 1 / 30,
        alpha: float = 1.0,  # multiplies log p in L_GML, never the loss
        alpha_cls: float = 1.0,  # the same in L_cls; the paper does not say whether it follows
        gamma: float = 1.0,
        beta: float = 1.0,
        kd_weight: float = 0.0,
        kd_temperature: float = 4.0,
        bank_dtype: str = "float32",  # or bfloat16: half the memory, and embedded in bfloat16
        reembed: str = "all",  # or turns, in_use: what of the bank a step embeds, see `contrast/reembed.py`
        reembed_share: float = 0.25,  # of its rows, where not all
        shard_bank: bool = False,  # each of W ranks embeds 1/W of the bank: less arithmetic, more communication
        both_views: bool = False,  # L_cls of the query view too, averaged: its features are there anyway
        mixup: float = 0.0,  # Beta(mixup, mixup) on the class view, where L_cls and the teacher see it
        vmf_below: int = 0,  # a class with fewer keys is the vMF distribution fitted to them, not their mixture
    ) -> None:
        super().__init__()
        if bank not in ("ring", "full"):
            raise LongtailError(f"bank is ring or full, not {bank!r}")
        if keys_of not in ("key", "class"):
            raise LongtailError(f"keys_of is key or class, not {keys_of!r}")
        if mixup and not (gamma or kd_weight):
            raise LongtailError(
                "mixup mixes the class view, and nothing looks at it: set gamma or kd_weight, or no mixup"
            )
        if keys_of == "class" and (bank == "full" or mixup or not (gamma or kd_weight)):
            raise LongtailError("keys_of='class' fills a ring with the class view, unmixed: bank='full' needs no keys")
        if bank_views and bank == "ring":
            raise LongtailError("bank_views fills a full bank, and this one is a ring: say bank='full'")
        if bank_dtype not in ("float32", "bfloat16"):
            raise LongtailError(f"bank_dtype is float32 or bfloat16, not {bank_dtype!r}")
        if vmf_below and reembed == "in_use":
            raise LongtailError("vmf_below fits a distribution to all keys of a class: reembed in turns, or all")
        key_dim, hidden, embed = key_dim or dim, hidden or dim, embed or dim // 2
        self.likelihood = Cosine(dim, len(counts), tau_s)
        self.embed_query = Projection(dim, hidden, embed)
        self.embed_key = copy.deepcopy(self.embed_query) if key_dim == dim else Projection(key_dim, hidden, embed)
        self.log_tau = nn.Parameter(torch.tensor(float(tau_g)).log(), requires_grad=learn_tau)
        self.bank_dtype: torch.dtype = getattr(torch, bank_dtype)
        self.bank = Bank.ring(counts, k, k_m, key_dim, self.bank_dtype) if bank == "ring" else None
        self.reembedding = Reembedding(reembed, reembed_share, rows=k, dim=embed, shard=shard_bank)
        self.register_buffer("log_prior", log_prior(counts), persistent=False)
        self.register_buffer("log_added", log_prior(counts, alpha_cls))
        self.register_buffer("log_mass", log_prior(counts))
        self.alpha, self.gamma, self.beta = alpha, gamma, beta
        self.kd_weight, self.kd_temperature = kd_weight, kd_temperature
        # Nothing looks at the class view of an encoder that is trained by L_GML alone.
        self.student_views = ("class", "query") if gamma or kd_weight else ("query",)
        self.key_views = ("key",) if bank == "ring" and keys_of == "key" else ()
        self.class_keys, self.bank_views = keys_of == "class", bank_views
        self.wants_full_bank = bank == "full"
        self.wants_key_scores = kd_weight > 0
        self.both_views, self.mixup, self.vmf_below = both_views, mixup, vmf_below
        self.ranks: Ranks = ALONE

    def enqueue(self, keys: Tensor, labels: Tensor, ids: Tensor) -> None:
        assert self.bank is not None, "a full bank is filled once, by fill()"
        self.reembedding.entered(self.bank.enqueue(keys, labels, ids))

    def fill(self, keys: Tensor, labels: Tensor, ids: Tensor) -> None:
        """A full bank: the teacher is frozen, so its features of the whole training set never go stale."""
        keys = keys.to(self.bank_dtype) if self.bank_dtype == torch.bfloat16 else keys
        self.bank = Bank.full(keys, labels, ids, len(self.log_mass))
        self.reembedding.begin(len(self.bank))

    def forward(
        self,
        features: Tensor,
        labels: Tensor,
        ids: Tensor,
        *,
        query: Tensor | None = None,  # features of the query view; of the class view if not given
        keys: Tensor | None = None,
        key_scores: Tensor | None = None,
        target: Tensor | None = None,  # [B, C] in place of the labels where the class view is of mixed images
    ) -> Losses:
        scores_bc = self.likelihood(features)
        cls_b = cross_entropy(add_prior(scores_bc, self.log_added), labels if target is None else target)
        if self.both_views and query is not None:
            cls_b = (cls_b + cross_entropy(add_prior(self.likelihood(query), self.log_added), labels)) / 2
        loss_b, parts = self.gamma * cls_b, {"cls": cls_b.detach().mean()}

        if keys is not None:
            self.enqueue(keys, labels, ids)
        if self.bank is not None and self.bank.any_filled:
            gml_b, gml_parts = self.contrast(features if query is None else query, labels, ids)
            loss_b, parts = loss_b + self.beta * gml_b, parts | gml_parts
        # An empty bank says nothing: the step goes without the term, and its absence from the log says so.

        if self.kd_weight > 0 and key_scores is not None:
            free_bc = prior_free(scores_bc, self.log_mass, self.log_added)
            kd_b = distillation(free_bc, key_scores, self.kd_temperature)
            loss_b, parts = loss_b + self.kd_weight * kd_b, parts | {"kd": kd_b.detach().mean()}
        return Losses(loss_b, parts)

    def contrast(self, query: Tensor, labels: Tensor, ids: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """L_GML alone, per query, and its parts; 0 for a query whose class has nothing in the bank."""
        assert self.bank is not None
        tau = self.log_tau.exp()
        query_bd = self.embed_query(query, ranks=self.ranks)
        keys_kd, segments, key_ids, filled_k, known_c, log_weight_c = self.reembedding(
            self.bank, self.embed_key, labels, self.ranks
        )
        known_b = known_c[labels]
        parts = {"without_class": (~known_b).float()} if self.reembedding.way == "in_use" else {}
        if not self.log_tau.requires_grad:
            loglik_bc = mixture_loglik(query_bd, keys_kd, segments, tau, filled_k)
            gml_b = self._classify(self._with_few(loglik_bc, query_bd, keys_kd), labels, known_b, log_weight_c)
            parts |= {"gml": gml_b}
            return gml_b, {name: value.detach().mean() for name, value in parts.items()}
        loglik_bc, others_bc, valid_b = mixture_loglik_excluding_own(
            query_bd, keys_kd, segments, tau, labels, ids, key_ids, filled_k
        )
        gml_b = self._classify(self._with_few(loglik_bc, query_bd, keys_kd), labels, known_b, log_weight_c)
        tau_b = self._classify(others_bc, labels, valid_b, log_weight_c)
        parts |= {"gml": gml_b, "gml_without_own": tau_b, "left_out": (~valid_b).float(), "tau_g": tau}
        return gml_b + tau_b, {name: value.detach().mean() for name, value in parts.items()}

    def _with_few(self, loglik_bc: Tensor, query_bd: Tensor, keys_kd: Tensor) -> Tensor:
        """The table, with the closed form in place of the mixture for classes with fewer keys than `vmf_below`."""
        if not self.vmf_below:
            return loglik_bc
        assert self.bank is not None
        count_c = self.bank.filled_counts()
        mean_cd = mean_of_keys(keys_kd, self.bank.segments.class_of_row, self.bank.filled, count_c)
        closed_bc = vmf_loglik(query_bd, concentration(mean_cd), self.log_tau.detach().exp())
        return torch.where((count_c > 0) & (count_c < self.vmf_below), closed_bc, loglik_bc)

    def _classify(self, loglik_bc: Tensor, labels: Tensor, counts_b: Tensor, log_weight_c: Tensor | None) -> Tensor:
        """Per query; 0, and no gradient, where it does not count, for there every class may be without a key."""
        loglik_bc = torch.where(counts_b[:, None], loglik_bc, 0.0)
        if log_weight_c is not None:  # the true class stands for itself alone
            loglik_bc = loglik_bc + log_weight_c.expand_as(loglik_bc).scatter(1, labels[:, None], 0.0)
        return torch.where(counts_b, cross_entropy(add_prior(loglik_bc, self.log_prior, self.alpha), labels), 0.0)

    def scores(self, features: Tensor) -> Tensor:
        return self.likelihood(features)

    @torch.no_grad()
    def kernel_loglik(self, features: Tensor) -> Tensor:
        """The second answer: the mixture over the bank, prior-free, [B, C]."""
        assert self.bank is not None, "the bank is empty: fill it, or train a step first"
        bank, query_bd = self.bank, self.embed_query(features)
        keys_kd = embedded(self.embed_key, bank.features, None)
        loglik_bc = mixture_loglik(query_bd, keys_kd, bank.segments, self.log_tau.exp(), bank.mask)
        return self._with_few(loglik_bc, query_bd, keys_kd)


def stages(base: Stage) -> tuple[Stage, ...]:
    """A teacher under L_cls, then the student; the student alone where `keys` says momentum or a run folder."""
    if base.keys:
        return (base,)
    teacher = replace(base, name="teacher", method="logit_adjusted", settings={})
    return (teacher, replace(base, name="student", keys="teacher"))


METHOD = Published(
    "gml",
    GML,
    paper="Suh and Seo, ICML 2023",
    likelihood="mixture",
    samples="class-wise bank from a teacher",
    prior="log p",
    numerator="exact",
    weight="-",
    stages=stages,
)
