"""agent: a recipe -> the search agent that is evaluated, on its device.

Source: ours.
"""

from igrpo_train.config import Recipe
from igrpo_train.data import load_retriever
from igrpo_train.policy import find_device, load_policy
from igrpo_train.search.world import SearchAgent
from igrpo_train.setup import build_agent, set_threads


def load_agent(recipe: Recipe) -> SearchAgent:
    """Load passages first, then the policy.

    Raises:
        FileNotFoundError: a file of passages or the model is missing.
        ValueError: passages are malformed, or model and settings do not fit together.
    """
    set_threads(recipe)
    retriever = load_retriever(recipe.data.corpus, recipe.retrieval, top_k=recipe.agent.top_k)
    policy = load_policy(recipe.model)
    policy.model.to(find_device(recipe.model.device))  # type: ignore[arg-type]  # transformers narrows nn.Module.to
    return build_agent(policy, retriever, recipe)
