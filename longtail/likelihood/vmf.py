"""The class likelihood when a class is a von Mises-Fisher distribution: the mixture of infinitely many samples.

    z ~ C_D(kappa_c) exp( kappa_c mu_c . z )   on the unit sphere of R^D
    s(x|c) = E_z exp( x . z / tau ) = C_D(kappa_c) / C_D( |kappa_c mu_c + x / tau| )          (Du et al., TPAMI 2024)
    C_D(kappa) = kappa^v / ( (2 pi)^(D/2) I_v(kappa) ),   v = D/2 - 1

I_v is taken from its uniform (Debye) expansion, three terms (DLMF 10.41): plain tensor algebra with a gradient, right
to 5e-7 for D >= 32 and 1e-8 for D >= 64. What is wanted is a difference of two large logarithms, so they are
subtracted by hand: with a = sqrt(v^2 + kappa^2), log( I_v(kappa) / kappa^v ) = a - v log(v + a) - log(2 pi a) / 2 +
log(1 + series(v, a)).
"""

import torch
from torch import Tensor

from longtail.template import at_least_float32

KAPPA_MAX = 1e5  # of a class that has been seen in one direction only


def concentration(mean_cd: Tensor) -> Tensor:
    """kappa_c mu_c [C, D] from the mean of a class's unit features: direction and length are its maximum likelihood.

    kappa = R (D - R^2) / (1 - R^2) for a mean of length R (Banerjee et al., 2005).
    """
    dim = mean_cd.shape[1]
    square_c1 = mean_cd.square().sum(dim=1, keepdim=True).clamp_max(1 - dim / KAPPA_MAX)
    return mean_cd * (dim - square_c1) / (1 - square_c1)


def mean_of_keys(keys_kd: Tensor, class_of_k: Tensor, filled_k: Tensor, count_c: Tensor) -> Tensor:
    """Mean of each class's filled keys [C, D], with gradient; 0 for a class without any."""
    rows_kd = filled_k[:, None] * at_least_float32(keys_kd)
    total_cd = rows_kd.new_zeros(len(count_c), rows_kd.shape[1]).index_add(0, class_of_k, rows_kd)
    return total_cd / count_c.clamp_min(1)[:, None]


def vmf_loglik(query_bd: Tensor, kappa_mu_cd: Tensor, tau: float | Tensor) -> Tensor:
    """Unit queries [B, D] and `concentration` [C, D] -> [B, C]."""
    with torch.autocast(query_bd.device.type, enabled=False):
        query_bd, kappa_mu_cd = at_least_float32(query_bd), at_least_float32(kappa_mu_cd)
        v = query_bd.shape[1] / 2 - 1
        pull_b1 = query_bd.square().sum(dim=1, keepdim=True) / tau**2
        gap_bc = pull_b1 + 2 / tau * (query_bd @ kappa_mu_cd.T)  # |kappa mu + x / tau|^2 - kappa^2
        before_c = (v**2 + kappa_mu_cd.square().sum(dim=1)).clamp_min(1e-12).sqrt()
        after_bc = (before_c.square() + gap_bc).clamp_min(max(v**2, 1e-12)).sqrt()
        step_bc = gap_bc / (after_bc + before_c)
        loglik_bc = step_bc - v * (step_bc / (v + before_c)).log1p() - (step_bc / before_c).log1p() / 2
        return loglik_bc + _log_series(v, after_bc) - _log_series(v, before_c)


def _log_series(v: float, a: Tensor) -> Tensor:
    """log( 1 + U_1/v + U_2/v^2 + U_3/v^3 ) at t = v / a, with the powers of v cancelled."""
    t2 = (v / a).square()
    u1 = (3 - 5 * t2) / 24
    u2 = (81 + t2 * (-462 + 385 * t2)) / 1152
    u3 = (30375 + t2 * (-369603 + t2 * (765765 - 425425 * t2))) / 414720
    return ((u1 + (u2 + u3 / a) / a) / a).log1p()
