r"""Polynomials for float32, instead of functions that take longer: coefficients of x⁰, x¹, ….

Each interpolates its function at Chebyshev nodes. ``tests/test_loss_kernels.py`` compares them with mpmath.
"""

__all__ = ["LOG1P", "RHO", "RHO_PRIME"]

# ln(1 + x)/x for x in [0, 1], to a relative 3e-7
LOG1P = (
    0.999999781, -0.499971745, 0.332719284, -0.244747742, 0.176874767, -0.106850029, 0.0434938998, -0.00837115255,
)  # fmt: skip

# With z = α − ¼ and u = z⁻² in (0, 16/9], which is α ≥ 1: (ρ(α) − ½ ln z)/u, so that ρ is right to 1e-7, where
# ρ(α) = ln Γ(α+½) − ln Γ(α)
RHO = (0.0156248059, -0.00243029343, 0.00112093274, -0.000724878867, 0.000389378855, -0.000127218948, 1.79352844e-05)

# (z ρ'(α) − ½)/u, so that ρ' is right to a relative 5e-7
RHO_PRIME = (
    -0.0312493601, 0.00971780793, -0.00677057022, 0.00617446021, -0.00482879627, 0.00255715005, -0.000774690048,
    0.000100090121,
)  # fmt: skip
