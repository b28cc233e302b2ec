"""The distributions a network answers with, as ``torch.distributions`` objects over :mod:`evidentia.formulas`."""

from torch.serialization import add_safe_globals

from evidentia.distributions.faded import Faded
from evidentia.distributions.gaussian import Gaussian
from evidentia.distributions.mixture import Mixture
from evidentia.distributions.normal_inverse_gamma import NormalInverseGamma
from evidentia.distributions.student_t import StudentT
from evidentia.distributions.transformed import Transform, Transformed

__all__ = ["Faded", "Gaussian", "Mixture", "NormalInverseGamma", "StudentT", "Transform", "Transformed"]

# torch.load reads saved answers with weights_only=True, its default: they consist of tensors, shapes and numbers
add_safe_globals([Faded, Gaussian, Mixture, NormalInverseGamma, StudentT])
