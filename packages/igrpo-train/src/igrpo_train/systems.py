"""systems: a system's name -> its settings on the axes.

In: the name given as `--system`.
Out: flat overrides of the recipe's defaults, weaker than the recipe file and the command line.
Source: [igrpo] for the igrpo family; [grpo] for the chain.
"""

from typing import Final, Literal

System = Literal["igrpo", "igrpo_low", "igrpo_mid", "igrpo_gamma0", "grpo"]

# A chain is a tree of cap 1: the root has the whole budget, every later turn one child, and nothing is scored.
SYSTEMS: Final[dict[System, dict[str, object]]] = {
    "igrpo": {},
    "igrpo_low": {"tree.budget_mode": "low"},
    "igrpo_mid": {"tree.budget_mode": "mid"},
    "igrpo_gamma0": {"tree.gamma": 0.0},
    "grpo": {"tree.cap": 1, "tree.criterion": "zero"},
}
