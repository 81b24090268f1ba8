import sys
from pathlib import Path

# Benchmarks are not installed: what they import of each other is found beside them.
sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
