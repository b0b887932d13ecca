"""Domains with their mirror maps: closed-form prox steps, norms and sizes."""

from ergodrift.geometry.base import Geometry, check_shape
from ergodrift.geometry.entropy import EntropySimplex
from ergodrift.geometry.euclidean import Ball, Box, L1Ball, Simplex
from ergodrift.geometry.product import Product
from ergodrift.geometry.region import Region

__all__ = ["Ball", "Box", "EntropySimplex", "Geometry", "L1Ball", "Product", "Region", "Simplex", "check_shape"]
