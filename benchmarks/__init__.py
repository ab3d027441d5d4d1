"""benchmarks: what a step costs, measured on this machine; ratios side by side in one run."""
