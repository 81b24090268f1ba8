import sys
from pathlib import Path

# As in tests/benchmarks.
sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
