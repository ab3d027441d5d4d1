"""igrpo_eval: a policy and benchmarks -> graded records, intervals, reports."""

__version__ = "0.1.0"
