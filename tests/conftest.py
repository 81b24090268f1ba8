"""Settings that every test runs under."""

import os

# Before torch is imported: tests run in parallel, one thread each.
os.environ.setdefault("OMP_NUM_THREADS", "1")
