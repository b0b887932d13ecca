"""How far dependent data can be trusted: diagnosis of a series or a path, and certificates for a point."""

from ergodrift.trust.certificate import Certificate
from ergodrift.trust.certify import certify
from ergodrift.trust.diagnose import Diagnosis, diagnose
from ergodrift.trust.methods import CertificateMethod
from ergodrift.trust.monitor import Monitor

__all__ = ["Certificate", "CertificateMethod", "Diagnosis", "Monitor", "certify", "diagnose"]
