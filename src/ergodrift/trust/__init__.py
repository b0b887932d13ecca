"""How far dependent data can be trusted: diagnosis of a series or a path, and certificates for a point."""

from ergodrift.trust.alarm import Drift, DriftAlarm
from ergodrift.trust.audits.audit import Audit, audit
from ergodrift.trust.audits.metrics import RatioOfMeans
from ergodrift.trust.audits.stream import AuditMonitor
from ergodrift.trust.certificate import Certificate
from ergodrift.trust.certify import certify
from ergodrift.trust.diagnose import Diagnosis, diagnose
from ergodrift.trust.methods import CertificateMethod
from ergodrift.trust.monitor import Monitor

__all__ = [
    "Audit",
    "AuditMonitor",
    "Certificate",
    "CertificateMethod",
    "Diagnosis",
    "Drift",
    "DriftAlarm",
    "Monitor",
    "RatioOfMeans",
    "audit",
    "certify",
    "diagnose",
]
