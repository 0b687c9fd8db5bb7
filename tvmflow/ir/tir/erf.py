"""Define our polynomials for erf; the largest error in float32 is 1.3e-7.

The rational form takes half the operations, with an error of 2.7e-7.
"""

ERF_IS_ONE = 4.0  # erf is 1 in float32 beyond
ERF_SMALL = (1.12837917, -0.376126269, 0.112835975, -0.0268543288, 0.00518931194, -0.000801885499, 7.88249711e-05)
"""erf(x) / x for |x| < 1, in powers of x**2, lowest first."""
ERF_LARGE = (
    -0.000303212969,
    1.13016668,
    0.631937094,
    0.109978245,
    -0.0263647174,
    0.00474022234,
    -0.000592769538,
    4.55906224e-05,
    -1.6140616e-06,
)
"""-log(1 - erf(x)) for 1 <= x <= 4, in powers of x, lowest first."""
ERF_END = 3.65  # the rational form is 1 within its error beyond
ERF_NUMERATOR = (1.12837912, 0.183324603, 0.0520676451, 0.00352243726, 0.000290585186, 2.26209176e-06)
ERF_DENOMINATOR = (1.0, 0.495799957, 0.111412614, 0.0144848684, 0.00112348371, 4.05548413e-05)
"""erf(x) / x for |x| <= 3.65 is the quotient of these, in powers of x**2, lowest first."""
