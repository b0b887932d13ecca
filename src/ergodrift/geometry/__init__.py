"""Domains with their mirror maps: closed-form prox steps, norms and sizes."""

from ergodrift.geometry.affine import Scaled, Shifted
from ergodrift.geometry.base import Geometry, check_shape
from ergodrift.geometry.capped import CappedSimplex
from ergodrift.geometry.entropy import EntropySimplex
from ergodrift.geometry.euclidean import Ball, Box, L1Ball, Simplex
from ergodrift.geometry.matrices import NuclearBall, Spectrahedron
from ergodrift.geometry.polytope import Polytope
from ergodrift.geometry.product import Product
from ergodrift.geometry.region import Region

__all__ = [
    "Ball",
    "Box",
    "CappedSimplex",
    "EntropySimplex",
    "Geometry",
    "L1Ball",
    "NuclearBall",
    "Polytope",
    "Product",
    "Region",
    "Scaled",
    "Shifted",
    "Simplex",
    "Spectrahedron",
    "check_shape",
]
