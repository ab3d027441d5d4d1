"""igrpo_train: questions and a policy -> a policy trained on trees of search turns.

Data flows one way: question -> tree -> paths -> rewards -> advantages -> packed rows -> loss -> update.
Importing this package loads no torch: modules under `search` and `learn` do, when they are imported themselves.
"""

__version__ = "0.1.0"
