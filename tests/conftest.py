"""Settings that every test runs under."""

import os

from hypothesis import HealthCheck, settings

# Before torch is imported: tests run in parallel, one thread each.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# How long an example takes on a busy machine is not what any of these tests is about.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")
