"""conftest: every test session -> shapes checked at run time, and a Hypothesis profile.

Our packages must not be imported here: the hook checks only what is imported after it.
"""

import importlib.util
import os

from hypothesis import settings
from jaxtyping import install_import_hook

# Before torch is imported: tests are small, and threads that wait for each other on a busy machine take minutes.
os.environ.setdefault("OMP_NUM_THREADS", "1")

settings.register_profile("dev", max_examples=25, deadline=None)
settings.register_profile("ci", max_examples=200, deadline=None, derandomize=True, print_blob=True)
settings.register_profile("nightly", max_examples=5000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))

# The hook takes an expression; the tower lets an int stand for a float, as type checkers do.
CHECKER = "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))"

# The theory package is also tested alone, without beartype.
if importlib.util.find_spec("beartype"):
    install_import_hook(["igrpo_theory", "igrpo_train", "igrpo_eval"], CHECKER)
