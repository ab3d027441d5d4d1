"""demonstrations: routes -> supervised rows of a searcher that makes mistakes.

The searcher uses wrong relation words, does not always notice, sometimes guesses before it has arrived, repeats itself
or asks once more than needed. A policy that imitates it knows the protocol and succeeds now and then, which leaves
reinforcement learning something to improve. Each turn is one row: its context holds the prompt and the actions and
documents of the turns before, without their thoughts, exactly as the agent renders it.

A share of the demonstrations ends in a guess at the answer with the scoring preamble as context. It teaches no
decision to answer; it makes the probability of an answer after the preamble mean something at every turn.

Source: ours. Example:
    >>> from igrpo_train.miniature.world import build_world
    >>> world = build_world("warm", leak=True)
    >>> rows = demonstrate(FactSearch(world), world.routes(1)[0], CLEAN, np.random.default_rng(0))
    >>> len(rows), " ".join(rows[0].response.split()[:3])
    (2, '<think> need home')
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from igrpo_train.learn.supervised import SupervisedRow
from igrpo_train.miniature.names import Name
from igrpo_train.miniature.protocol import (
    SCORING_PREAMBLE,
    TURN,
    answer_action,
    observation,
    question_text,
    search_action,
    user_message,
)
from igrpo_train.miniature.retriever import FactSearch
from igrpo_train.miniature.tokenizer import SPECIAL_TOKENS
from igrpo_train.miniature.world import RELATION_NAMES, Fact, Route

TURN_LIMIT = 4
HARD_RELATIONS = frozenset({"home", "founder", "province", "heir"})
"""Relations that the searcher gets wrong more often; one of each kind of entity, so that errors are not uniform."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Noise:
    """How often the searcher does what; all are probabilities."""

    wrong_relation: float = 0.4
    """Search with a wrong relation word."""
    wrong_hard_relation: float = 0.75
    """The same where the right word is one of `HARD_RELATIONS`."""
    unnoticed: float = 0.75
    """Take the object of a wrong fact for the bridge."""
    early_answer: float = 0.06
    """Answer with a guess after at least one search, before the last bridge."""
    early_answer_easy: float = 0.15
    """The same where the next word is not one of `HARD_RELATIONS`."""
    extra_search: float = 0.05
    """Search again with the answer at hand."""
    repeat: float = 0.03
    """Search for the previous entity again."""
    blind_guess: float = 0.05
    """Guess any of the listed answers, whatever is known."""
    direct_answer: float = 0.15
    """Answer without a thought."""
    guess_only: float = 0.5
    """End a demonstration in the best guess of some turn, after the scoring preamble."""
    guess_weight: float = 4.0
    """Loss weight (not a probability) of the tokens of such a guess."""


CLEAN = Noise(
    wrong_relation=0,
    wrong_hard_relation=0,
    unnoticed=0,
    early_answer=0,
    early_answer_easy=0,
    extra_search=0,
    repeat=0,
    blind_guess=0,
    guess_only=0,
)
"""A searcher without mistakes."""
NOISY = Noise()
CLEAN_WITH_GUESSES = replace(CLEAN, guess_only=NOISY.guess_only, blind_guess=NOISY.blind_guess)


class DemonstrationRow(NamedTuple):
    """One turn to imitate."""

    context: str
    response: str
    weight: float = 1.0
    """Loss weight of every token of the response."""


@dataclass(slots=True)
class _Searcher:
    """What the searcher believes in the middle of an episode."""

    here: Name
    before: Name
    found: list[Name]
    history: list[str]
    missed: bool = False
    """Whether the last document is one that it knows to be useless."""


def demonstrate(
    search: FactSearch, route: Route, noise: Noise, rng: np.random.Generator, turn_limit: int = TURN_LIMIT
) -> list[DemonstrationRow]:
    """Play one episode.

    Args:
        search: the corpus of the route's world.
        route: what is asked; the searcher knows the relations, not the entities.
        noise: its mistakes.
        rng: source of every choice.
        turn_limit: turns after which it gives up.

    Returns:
        One row a turn, the answer last if there is one.
    """
    state = _Searcher(route.start, route.start, [], [])
    guess_turn = int(rng.integers(1, len(route.relations) + 2)) if rng.random() < noise.guess_only else 0
    rows: list[DemonstrationRow] = []
    for turn in range(1, turn_limit + 1):
        arrived = len(state.found) == len(route.relations)
        context = _context(route, state.history)
        best = state.here if arrived else _guess(route, state.found, noise, rng)
        if turn == guess_turn:
            guess = DemonstrationRow(f"{context} {SCORING_PREAMBLE}", f"{best} </answer>", noise.guess_weight)
            return [*rows, guess]
        thought = _thought(state, turn)
        if _answers(route, state, noise, rng, last_turn=turn == turn_limit):
            lead = "" if rng.random() < noise.direct_answer else f"<think> {thought}done </think> "
            return [*rows, DemonstrationRow(context, lead + answer_action(str(best)))]
        relation, query = _query(search, route, state, noise, rng)
        action = search_action(query)
        rows.append(DemonstrationRow(context, f"<think> {thought}need {relation} </think> {action}"))
        facts = search.search(query, top_k=1)
        state.history += [action, observation([fact.text for fact in facts])]
        _read(state, facts, route, noise, rng)
    return rows


def _context(route: Route, history: list[str]) -> str:
    message = user_message(question_text(route), " ".join(history))
    return f"{SPECIAL_TOKENS['bos_token']} {message} {TURN}"


def _thought(state: _Searcher, turn: int) -> str:
    if turn == 1:
        return ""
    return "found none " if state.missed else f"found {state.here} "


def _answers(route: Route, state: _Searcher, noise: Noise, rng: np.random.Generator, *, last_turn: bool) -> bool:
    """Whether the searcher answers now."""
    if len(state.found) == len(route.relations):
        return last_turn or rng.random() >= noise.extra_search
    if not state.history:
        return False
    hard = route.relations[len(state.found)] in HARD_RELATIONS
    chance = noise.early_answer if hard else noise.early_answer_easy
    return rng.random() < (chance / 2 if state.missed else chance)


def _query(
    search: FactSearch, route: Route, state: _Searcher, noise: Noise, rng: np.random.Generator
) -> tuple[str, str]:
    """The relation word that the searcher settles for, and its query."""
    relation = route.relations[min(len(state.found), len(route.relations) - 1)]
    chance = noise.wrong_hard_relation if relation in HARD_RELATIONS else noise.wrong_relation
    if rng.random() < chance:
        others = [fact.relation.name for fact in search.about(state.here) if fact.relation.name != relation]
        relation = others[0] if others and rng.random() < 0.9 else str(rng.choice(RELATION_NAMES))
    subject = state.before if rng.random() < noise.repeat else state.here
    return relation, f"{subject} {relation}"


def _read(state: _Searcher, facts: list[Fact], route: Route, noise: Noise, rng: np.random.Generator) -> None:
    """Take in the document."""
    if not facts or len(state.found) == len(route.relations):
        state.missed = False
        return
    fact = facts[0]
    right = fact.relation.name == route.relations[len(state.found)]
    if fact.subject == state.here and (right or rng.random() < noise.unnoticed):
        state.before, state.here, state.missed = state.here, fact.object, False
        state.found.append(fact.object)
    else:
        state.missed = True


def _guess(route: Route, found: list[Name], noise: Noise, rng: np.random.Generator) -> Name:
    """A listed answer that starts with the clan of the path, or any of them."""
    listed = list(route.candidates)
    if found and rng.random() >= noise.blind_guess:
        listed = [name for name in listed if name.first == found[0].second] or listed
    return listed[rng.integers(len(listed))]


def encode_row(row: DemonstrationRow, index: dict[str, int], context_weight: float = 0.0) -> SupervisedRow:
    """Words to ids; equals what the tokenizer makes of them.

    Args:
        row: the turn.
        index: word -> id, the tokenizer's vocabulary.
        context_weight: loss weight of the words of the context; 0 leaves them out.
    """
    context = tuple(index[word] for word in row.context.split())
    response = tuple(index[word] for word in row.response.split())
    weights = (row.weight,) * len(response)
    if context_weight == 0:
        return SupervisedRow(context_ids=context, response_ids=response, weights=weights)
    return SupervisedRow(
        context_ids=context[:1],
        response_ids=context[1:] + response,
        weights=(context_weight,) * (len(context) - 1) + weights,
    )
