"""``torch.distributions`` objects over the formulas."""

from evidentia.distributions.gaussian import Gaussian
from evidentia.distributions.mixture import Mixture
from evidentia.distributions.normal_inverse_gamma import NormalInverseGamma
from evidentia.distributions.student_t import StudentT

__all__ = ["Gaussian", "Mixture", "NormalInverseGamma", "StudentT"]
