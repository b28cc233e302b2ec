"""Output distributions of networks, as ``torch.distributions`` objects over :mod:`howsure.formulas`."""

from torch.serialization import add_safe_globals

from howsure.distributions.atom import WithAtom
from howsure.distributions.discrete import Discrete, Support
from howsure.distributions.mixture import Mixture
from howsure.distributions.normal import Normal
from howsure.distributions.normal_inverse_gamma import NormalInverseGamma
from howsure.distributions.student_t import StudentT
from howsure.distributions.transformed import Transform, Transformed

__all__ = [
    "Discrete",
    "Mixture",
    "Normal",
    "NormalInverseGamma",
    "StudentT",
    "Support",
    "Transform",
    "Transformed",
    "WithAtom",
]

# The one global state that an import changes. Without it torch.load could not read saved distributions: its default,
# weights_only=True, takes classes of this list only. The distributions consist of tensors, shapes and numbers.
add_safe_globals([Normal, Mixture, NormalInverseGamma, StudentT])
