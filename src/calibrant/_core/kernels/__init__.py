"""Numerical kernels: plain references, compiled versions, and the choice between them."""
