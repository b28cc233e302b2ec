r"""Regressors and networks as surrogate models of BoTorch.

A sample of the posterior is one function. Member k, drawn with its weight, has the function

.. math:: f(x) = \mu_k(x) + \sqrt{E_k(x)}\,\frac{\phi_k(x)^\top\varepsilon}{\lVert\phi_k(x)\rVert},
          \qquad \varepsilon \sim \mathcal N(0, I),

with the variance E of its mean, and the vectors φ whose inner products are the posterior covariances of Bayesian linear
regression on its features (:meth:`howsure.nn.ConjugateEvidence.whitened`). One ε serves all points, so that the values
at several points are joint. At each point their variance is the epistemic variance of the model.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from howsure.distributions import NormalInverseGamma
from howsure.errors import InputError, InputTypeError, install_hint
from howsure.estimators import Regressor
from howsure.network import NetworkModel
from howsure.tables.experts.linear import LinearExpert

try:
    from botorch.models.model import Model
    from botorch.posteriors import Posterior
    from botorch.sampling.base import MCSampler
    from botorch.sampling.get_sampler import GetSampler
except ImportError as error:
    raise ImportError(f"howsure.contrib.botorch needs botorch; install it with {install_hint('botorch')}") from error

__all__ = ["FunctionPosterior", "FunctionSampler", "Surrogate"]


class FunctionPosterior(Posterior):
    """Joint posterior of functions at points: a mixture over members of normal distributions of low rank.

    Args:
        loc: means of the members, (M, *batch, q).
        factor: their covariances are factor @ factor.mT, (M, *batch, q, R).
        weights: of the members, (M,), of sum 1.
    """

    def __init__(self, loc: Tensor, factor: Tensor, weights: Tensor) -> None:
        self.loc, self.factor, self.weights = loc, factor, weights.to(loc)

    @property
    def device(self) -> torch.device:
        return self.loc.device

    @property
    def dtype(self) -> torch.dtype:
        return self.loc.dtype

    def _mean_over_members(self, x: Tensor) -> Tensor:
        mean: Tensor = torch.tensordot(self.weights, x, 1)
        return mean.unsqueeze(-1)

    @property
    def mean(self) -> Tensor:
        """Mean at each point, (*batch, q, 1)."""
        return self._mean_over_members(self.loc)

    @property
    def variance(self) -> Tensor:
        """Epistemic variance at each point, (*batch, q, 1)."""
        between = (self.loc - self.mean.squeeze(-1)).square()
        return self._mean_over_members(self.factor.square().sum(-1) + between)

    @property
    def base_sample_shape(self) -> torch.Size:
        return torch.Size([1 + self.factor.shape[-1]])

    def _extended_shape(self, sample_shape: torch.Size = torch.Size()) -> torch.Size:
        return torch.Size(sample_shape) + self.loc.shape[1:] + torch.Size([1])

    def rsample(self, sample_shape: torch.Size | None = None) -> Tensor:
        shape = torch.Size() if sample_shape is None else torch.Size(sample_shape)
        return self.rsample_from_base_samples(shape, _base_samples(shape, self))

    def rsample_from_base_samples(self, sample_shape: torch.Size, base_samples: Tensor) -> Tensor:
        """Return values (*sample_shape, *batch, q, 1) of the functions with these base samples.

        Args:
            sample_shape: of the samples.
            base_samples: (*sample_shape, 1 + R): a uniform number, which chooses the member, and ε.
        """
        level, noise = base_samples.flatten(0, -2).split([1, self.factor.shape[-1]], -1)
        member = torch.bucketize(level.squeeze(-1).contiguous(), self.weights.cumsum(0)[:-1], right=True)
        order = member.argsort(stable=True)
        each = noise[order].split(member.bincount(minlength=len(self.loc)).tolist())  # a product for each member
        parts = zip(self.loc, self.factor, each, strict=True)
        values = [loc.unsqueeze(-1) + factor @ own.mT for loc, factor, own in parts]
        found = torch.cat(values, -1)[..., order.argsort()].movedim(-1, 0)
        return found.reshape(self._extended_shape(sample_shape))


class FunctionSampler(MCSampler):
    """Sampler of :class:`FunctionPosterior` that draws the same functions at every call.

    BoTorch finds it by itself, with ``get_sampler``.
    """

    def forward(self, posterior: FunctionPosterior) -> Tensor:
        """Return values of the sampled functions at the points of the posterior."""
        expected = self.sample_shape + posterior.base_sample_shape
        if self.base_samples is None or self.base_samples.shape != expected:
            generator = torch.Generator().manual_seed(self.seed)
            self.register_buffer("base_samples", _base_samples(self.sample_shape, posterior, generator))
        return posterior.rsample_from_base_samples(self.sample_shape, self.base_samples)


@GetSampler.register(FunctionPosterior)  # type: ignore[untyped-decorator]
def _sampler(posterior: FunctionPosterior, sample_shape: torch.Size, *, seed: int | None = None) -> FunctionSampler:  # noqa: ARG001
    return FunctionSampler(sample_shape=sample_shape, seed=seed)


class Surrogate(Model):
    """A fitted regressor or an attached network as a model of BoTorch, for maximisation of the target.

    Points (*batch, q, d) are rows with the columns of the training table. The evidence of the members must have been
    computed. Members without it, as in an ``EnsembleRegressor``, are functions without a variance. Predictions of
    trees are constant between their splits, and have no gradients; ``inputs="numbers"`` trains networks without them.

    Args:
        model: a regressor of numeric columns and one target, without a transform of the target or a calibration, or a
            :class:`~howsure.NetworkModel` with one output.

    Raises:
        InputTypeError: for another object.
        InputError: for a model with several targets, a transform, a calibration or columns that are not numbers.

    >>> import numpy as np, howsure as hs
    >>> X = np.random.default_rng(0).random((60, 2))
    >>> model = hs.EvidentialRegressor(members=2, steps=20, random_state=0).fit(X, X.sum(1))
    >>> posterior = Surrogate(model).posterior(torch.rand(5, 3, 2, dtype=torch.float64))
    >>> posterior.mean.shape, posterior.rsample(torch.Size([7])).shape
    (torch.Size([5, 3, 1]), torch.Size([7, 5, 3, 1]))
    """

    num_outputs = 1
    batch_shape = torch.Size()

    def __init__(self, model: Regressor | NetworkModel) -> None:
        super().__init__()
        if isinstance(model, Regressor):
            _check_regressor(model)
        elif not isinstance(model, NetworkModel):
            raise InputTypeError(f"Surrogate takes a regressor or a NetworkModel, not {type(model).__name__}")
        self._model = (model,)  # in a tuple, so that a network is not a part of this module
        self._shift: Tensor | None = None  # mean of ε, (M, R), after observations
        self._root: Tensor | None = None  # root of its covariance, (M, R, R)

    @property
    def _weights(self) -> Tensor:
        model = self._model[0]
        given = None if isinstance(model, NetworkModel) else model.model_.mixture_weights
        members = 1 if isinstance(model, NetworkModel) else model.model_.members
        return torch.full((members,), 1 / members) if given is None else given

    def posterior(
        self,
        X: Tensor,  # noqa: N803
        output_indices: list[int] | None = None,  # noqa: ARG002
        observation_noise: bool | Tensor = False,
        posterior_transform: Any = None,
    ) -> Any:
        """Return the joint posterior of the functions at points.

        Args:
            X: (*batch, q, d).
            output_indices: without effect, as there is one output.
            observation_noise: must be False.
            posterior_transform: applied to the posterior.

        Raises:
            InputError: if ``observation_noise`` is not False.
        """
        if observation_noise is not False:
            raise InputError("the posterior of a Surrogate is about the function, without observation noise")
        loc, factor, _ = self._functions(X.flatten(0, -2))
        if self._shift is not None and self._root is not None:
            loc = loc + (factor @ self._shift.unsqueeze(-1)).squeeze(-1)
            factor = factor @ self._root
        loc = loc.unflatten(1, X.shape[:-1]).to(X.dtype)
        found = FunctionPosterior(loc, factor.unflatten(1, X.shape[:-1]).to(X.dtype), self._weights)
        return found if posterior_transform is None else posterior_transform(found)

    def condition_on_observations(self, X: Tensor, Y: Tensor, **_: Any) -> "Surrogate":  # noqa: N803
        """Return a surrogate after further observations, by the conjugate update of each member.

        Features, noise and weights of the members stay as they were trained.

        Args:
            X: points (n, d).
            Y: their targets (n, 1).

        Raises:
            InputError: for batches of points, and for members without computed evidence.
        """
        if X.ndim != 2 or tuple(Y.shape) != (len(X), 1):
            raise InputError(f"X must have shape (n, d) and Y (n, 1), got {tuple(X.shape)} and {tuple(Y.shape)}")
        with torch.no_grad():
            loc, factor, noise = self._functions(X)
            if not bool(factor.any()):
                raise InputError(
                    "the model has no computed evidence, which a conjugate update needs",
                    hint="fit it again with the new rows, or use EvidentialRegressor(evidence='conjugate')",
                )
            shift, root = self._shift, self._root
            if shift is None or root is None:
                shift, root = factor.new_zeros(factor[:, 0].shape), torch.eye(factor.shape[-1]).to(factor)
            rows = factor @ root / noise.sqrt().unsqueeze(-1)
            residual = (Y.T.to(loc) - loc - (factor @ shift.unsqueeze(-1)).squeeze(-1)) / noise.sqrt()
            values, vectors = torch.linalg.eigh(rows.mT @ rows)
            inverse = 1 / (1 + values.clamp(min=0))
            mean = vectors @ (inverse.unsqueeze(-1) * (vectors.mT @ (rows.mT @ residual.unsqueeze(-1))))
            new = Surrogate(self._model[0])
            new._shift = shift + (root @ mean).squeeze(-1)
            new._root = root @ (vectors * inverse.sqrt().unsqueeze(-2))
        return new

    def _functions(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return means (M, N), factors of covariances (M, N, R) and squared noise (M, N) of the members at rows."""
        model = self._model[0]
        if isinstance(model, NetworkModel):
            answer = model(x)
            if answer.batch_shape.numel() != len(x):
                raise InputError(
                    f"Surrogate needs a network with one output, got the shape {tuple(answer.batch_shape)}"
                )
            features = torch.cat(model.reader(model.network, (x,))[1], -1)
            flat = answer._from_leaves(getattr(answer, name).reshape(1, -1) for name in answer.leaves)
            return _factored(flat, model.evidence.leverage.whitened(features).unsqueeze(0))
        table = model.model_
        views = table.views(table.features(x.double()))
        networks, _ = table.from_views(views)
        networks = networks._from_leaves(getattr(networks, name).squeeze(-1) for name in networks.leaves)
        whitened = None
        if table.evidence is not None:
            whitened = table.evidence.leverage.whitened(table.before_evidence(views)[1])
        found = _factored(networks, whitened)
        if table.linear is None:
            return found
        own = table.linear(views[:, : table.features_in])
        own = own._from_leaves(getattr(own, name).mT for name in own.leaves)
        linear = _factored(own, _linear_vectors(table.linear, views[:, : table.features_in]).unsqueeze(0))
        size = max(found[1].shape[-1], linear[1].shape[-1])
        factor = torch.cat([pad(part[1], (0, size - part[1].shape[-1])) for part in (found, linear)])
        return torch.cat([found[0], linear[0]]), factor, torch.cat([found[2], linear[2]])


def _check_regressor(model: Regressor) -> None:
    """Raise an error if a fitted regressor cannot be a surrogate."""
    others = [e for e in model.encoding_.encoders if e.kind != "number"]
    if others:
        raise InputError(f"Surrogate needs columns of numbers; one column is a {others[0].kind}")
    if model.model_.targets != 1 or model.transform_ is not None or model.calibration_ is not None:
        raise InputError("Surrogate needs a regressor with one target, no transform of the target and no calibration")


def _factored(answer: Any, vectors: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return means, factors of the covariances, and squared noise of members (M, N), by vectors (M, N, R)."""
    if vectors is None or not isinstance(answer, NormalInverseGamma):
        means = answer.predictive().mean
        return means, torch.zeros_like(means).unsqueeze(-1), answer.predictive().variance
    length = (answer.epistemic_variance / vectors.square().sum(-1).to(answer.nu)).sqrt()
    return answer.gamma, vectors.to(length) * length.unsqueeze(-1), answer.aleatoric_variance


def _linear_vectors(linear: LinearExpert, x: Tensor) -> Tensor:
    """Return vectors (N, R) whose inner products are the covariances of the mean of the linear expert."""
    projected = ((x.double() - linear.centre) * linear.rate) @ linear.directions
    constant = linear.mean_variance.sqrt().expand(len(x), 1)
    return torch.cat([projected * linear.inverse[:, 0].sqrt(), constant], -1)


def _base_samples(shape: torch.Size, like: FunctionPosterior, generator: torch.Generator | None = None) -> Tensor:
    """Return base samples (*shape, 1 + R): a uniform number and normal ones."""
    options: Any = {"generator": generator, "dtype": like.dtype}
    level, noise = torch.rand(*shape, 1, **options), torch.randn(*shape, like.factor.shape[-1], **options)
    return torch.cat([level, noise], -1).to(like.device)
