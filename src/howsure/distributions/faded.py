"""What a network said, and how much of its evidence counts at each input."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.utils import _pytree

from howsure.distributions._base import TensorTree, check_keep, checked_parts, class_name, one_of
from howsure.distributions.normal import Normal
from howsure.distributions.normal_inverse_gamma import NormalInverseGamma
from howsure.distributions.student_t import StudentT
from howsure.errors import InputError, InputTypeError
from howsure.formulas import nig

__all__ = ["Faded"]


@dataclass(init=False, repr=False, eq=False, match_args=False)
class Faded(TensorTree):
    r"""What a network said, together with the share w of its evidence that counts, away from its training data.

    Both are kept, because the distribution of a new y is that of less evidence, while the noise in the data is what the
    network said it is. :class:`~howsure.Prediction` takes it in the place of a distribution.

    Args:
        plain: what the network said, a :class:`~howsure.NormalInverseGamma` or a :class:`~howsure.Normal`.
        keep: the share of the evidence to keep, in (0, 1]: a number, or a tensor that broadcasts to the shape of
            ``plain``. It gets the dtype of ``plain``. Less than 1e-12 counts as that.
        settled: what counts in the place of ``plain``, of its type and shape; by default that itself. Far from its
            training data a network states any noise and any evidence: ``plain.settle(keep, typical)`` moves these
            towards what it usually says.
        validate_args: whether to check the values of ``keep``; None follows torch's global switch.

    It is a pytree node over ``plain``, ``keep`` and ``settled``, so that ``torch.compile``, ``torch.func.vmap`` and
    ``torch.export`` can return it; there, ``validate_args=False`` leaves out the check, which must read values.

    >>> answer = Faded(NormalInverseGamma(gamma=0.0, nu=2.0, alpha=3.0, beta=4.0), keep=0.1)
    >>> answer.plain.predictive().df.item(), round(answer.predictive().df.item(), 4)
    (6.0, 2.4)
    """

    plain: NormalInverseGamma | Normal
    keep: Tensor
    settled: NormalInverseGamma | Normal | None

    def __init__(
        self,
        plain: NormalInverseGamma | Normal,
        keep: Tensor | float,
        settled: NormalInverseGamma | Normal | None = None,
        *,
        validate_args: bool | None = None,
    ) -> None:
        if not isinstance(plain, NormalInverseGamma | Normal):
            hint = "; pass the network's answer and not its predictive()" if isinstance(plain, StudentT) else ""
            raise InputTypeError(f"Faded takes a NormalInverseGamma or a Normal, not {class_name(plain)}{hint}")
        if settled is not None and (type(settled) is not type(plain) or settled.batch_shape != plain.batch_shape):
            raise InputError(f"Faded: settled must have the type and the shape {tuple(plain.batch_shape)} of plain")
        self.settled = settled
        first = _first_leaf(plain)
        if isinstance(keep, Tensor) and keep.device != first.device:
            raise InputError(f"Faded: keep lies on {keep.device} and plain on {first.device}; move them to one")
        self._validate_args = Distribution._validate_args if validate_args is None else validate_args
        check_keep("Faded", keep, self._validate_args)
        share = nig.kept_share(keep, first)
        try:
            self.plain, self.keep = plain, share.expand(plain.batch_shape)
        except RuntimeError:
            raise InputError(
                f"Faded: keep of shape {tuple(share.shape)} does not broadcast to the shape "
                f"{tuple(plain.batch_shape)} of plain"
            ) from None

    @property
    def batch_shape(self) -> torch.Size:
        """Shape of ``plain`` and of ``keep``."""
        return self.plain.batch_shape

    @property
    def base(self) -> NormalInverseGamma | Normal:
        """What fades: ``settled``, or else ``plain``."""
        return self.plain if self.settled is None else self.settled

    def faded(self) -> NormalInverseGamma | Normal:
        """Return the distribution with less evidence, of the type of ``plain``."""
        if isinstance(self.plain, NormalInverseGamma) and isinstance(self.settled, NormalInverseGamma):
            leaves = nig.fade_settled(self.plain.parameters, self.settled.parameters, self.keep)
            return self.plain._from_leaves(torch.broadcast_tensors(*leaves))
        return self.base.fade(self.keep)

    def discounted(self) -> NormalInverseGamma | Normal:
        """Return the distribution whose variance :class:`~howsure.Prediction` states, of the type of ``plain``."""
        return self.base.discount(self.keep) if isinstance(self.base, NormalInverseGamma) else self.faded()

    def predictive(self) -> StudentT | Normal:
        """Return the distribution of a new y, with less evidence."""
        return self.faded().predictive()

    def affine(self, loc: Tensor | float, scale: Tensor | float) -> Self:
        """Return the same for loc + scale·y, as in other units."""
        plain = self.plain.affine(loc, scale)
        settled = None if self.settled is None else self.settled.affine(loc, scale)
        return self._unchecked(plain, self.keep.expand(plain.batch_shape), settled)

    def to_dict(self) -> dict[str, Any]:
        return {k: part if isinstance(part, Tensor) else part.to_dict() for k, part in _parts(self).items()}

    @classmethod
    def from_dict(cls, parts: Mapping[str, Any]) -> Self:
        given = checked_parts(cls.__name__, parts, ["plain", "keep"], ["settled"])
        answers = {k: one_of(cls.__name__, given[k], [NormalInverseGamma, Normal]) for k in given if k != "keep"}
        return cls(keep=given["keep"], **answers)

    def __repr__(self) -> str:
        shown = f"{self.keep.item():.4g}" if self.keep.numel() == 1 else f"{tuple(self.keep.shape)}"
        return f"Faded({self.plain!r}, keep: {shown})"

    @classmethod
    def _unchecked(cls, plain: Any, keep: Any, settled: Any = None) -> Self:
        """Return it of valid parts, or of the placeholders that tree functions put in their stead."""
        new = cls.__new__(cls)
        new.plain, new.keep, new.settled, new._validate_args = plain, keep, settled, False
        return new


def _first_leaf(plain: NormalInverseGamma | Normal) -> Tensor:
    leaf: Tensor = getattr(plain, plain.leaves[0])
    return leaf


def _parts(d: Faded) -> dict[str, Any]:
    """Return the parts that there are, by name."""
    parts = {"plain": d.plain, "keep": d.keep, "settled": d.settled}
    return {name: part for name, part in parts.items() if part is not None}


_pytree.register_pytree_node(
    Faded,
    lambda d: (list(_parts(d).values()), None),
    lambda values, _: Faded._unchecked(*values),
    serialized_type_name="howsure.Faded",
    flatten_with_keys_fn=lambda d: ([(_pytree.GetAttrKey(name), part) for name, part in _parts(d).items()], None),
)
