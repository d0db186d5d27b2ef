"""Knowledge distillation: T^2 KL( softmax(t / T) || softmax(s / T) ), per sample.

The scores are prior-free on both sides. The T^2 keeps the gradient's size when T changes (Hinton et al., 2015). The
paper names only a weight for this term; T = 4 is from its authors' code, where a sum over the batch divided by B makes
the same per-sample value.
"""

import torch.nn.functional as F
from torch import Tensor

from longtail.template import at_least_float32


def distillation(student_bc: Tensor, teacher_bc: Tensor, temperature: float = 4.0) -> Tensor:
    """[B, C] scores of both -> [B]."""
    log_student = F.log_softmax(at_least_float32(student_bc) / temperature, dim=1)
    log_teacher = F.log_softmax(at_least_float32(teacher_bc) / temperature, dim=1)
    return F.kl_div(log_student, log_teacher, reduction="none", log_target=True).sum(dim=1) * temperature**2
