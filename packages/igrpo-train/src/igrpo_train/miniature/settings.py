"""settings: the protocol of the miniature policies as settings of a run.

Source: ours. Example:
    >>> AGENT.document.format(text="ba ko lives in du ri .")
    'ba ko lives in du ri . '
"""

from igrpo_train.config import Agent, Scoring
from igrpo_train.miniature.protocol import MAX_TOKENS, SCORING_PREAMBLE, USER_TEMPLATE

_MAX_RESPONSE_TOKENS = 24

AGENT = Agent(
    template=USER_TEMPLATE,
    max_turns=4,
    max_prompt_tokens=MAX_TOKENS - _MAX_RESPONSE_TOKENS,
    max_response_tokens=_MAX_RESPONSE_TOKENS,
    max_observation_tokens=32,
    top_k=1,
    # Words are cut at spaces, so every piece of text brings its own.
    document="{text} ",
    observation_open=" <information> ",
    observation_close=" </information> ",
    no_documents="none",
)
"""How the policies were taught to search."""
SCORING = Scoring(preamble=f"{SCORING_PREAMBLE} ")
"""How they were taught to be asked for an answer."""
