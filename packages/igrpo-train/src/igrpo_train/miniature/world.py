"""world: a split, a seed and `leak` -> a knowledge base of trees, and the routes that questions ask about.

A world is a forest. The root of a tree and every entity above depth 3 is the subject of two facts, and every entity
is the object of at most one, so a name can say something about the line that it comes from. The second syllable of
an entity at depth 1 is the clan of everything below it: with `leak`, a descendant's name starts with the clan most of
the time. The bridge of a multi-hop question then hints at the answer, as documents of a real corpus do. Without it
all names are independent.

Source: ours. Example:
    >>> world = build_world("train", leak=True)
    >>> route = world.routes(2)[0]
    >>> len(route.relations), len(route.candidates)
    (2, 4)
"""

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np

from igrpo_theory.randomness import text_key
from igrpo_train.miniature.names import Name, NameDrawer, Split


class Relation(NamedTuple):
    """A link from an entity of one kind to an entity of another."""

    name: str
    target: str
    """Kind of the object."""
    phrase: str
    """What stands between subject and object in a document."""


RELATIONS: dict[str, tuple[Relation, Relation]] = {
    "person": (Relation("home", "town", "lives in"), Relation("guild", "guild", "works for")),
    "guild": (Relation("founder", "person", "was founded by"), Relation("seat", "town", "meets in")),
    "town": (Relation("mayor", "person", "is run by"), Relation("province", "province", "lies in")),
    "province": (Relation("capital", "town", "is ruled from"), Relation("heir", "person", "passes on to")),
}
"""The two relations of each kind of entity."""
RELATION_NAMES: tuple[str, ...] = tuple(relation.name for pair in RELATIONS.values() for relation in pair)
DEPTH = 3
"""Facts on the way from a root to a leaf of a tree."""
CLAN_SHARE = 0.8
"""Share of descendants whose name starts with their clan."""
NUM_CANDIDATES = 4
NUM_TREES = 80


class Fact(NamedTuple):
    """One link of the knowledge base; one document states it."""

    subject: Name
    relation: Relation
    object: Name

    @property
    def text(self) -> str:
        """The document."""
        return f"{self.subject} {self.relation.phrase} {self.object} ."


class Route(NamedTuple):
    """What a question asks: where to start, which relations to follow in this order, and what is found there."""

    start: Name
    relations: tuple[str, ...]
    bridges: tuple[Name, ...]
    """The entities on the way, the answer last."""
    candidates: tuple[Name, ...]
    """The listed answers in random order; the right one is among them."""

    @property
    def answer(self) -> Name:
        """The entity at the end."""
        return self.bridges[-1]


@dataclass(frozen=True, kw_only=True, slots=True)
class World:
    """A knowledge base."""

    facts: dict[Name, tuple[Fact, ...]]
    """The two facts about each entity above the lowest depth, in corpus order."""
    roots: tuple[Name, ...]
    levels: tuple[tuple[Name, ...], ...]
    """All entities at depth 0, 1, .. `DEPTH`."""
    key: int
    """Seeds whatever is drawn for one question, so that it does not depend on the others."""

    def chain(self, route: Route) -> list[Fact]:
        """The facts that lead from a route's start to its answer."""
        subjects = (route.start, *route.bridges[:-1])
        return [
            fact
            for subject, relation in zip(subjects, route.relations, strict=True)
            for fact in self.facts[subject]
            if fact.relation.name == relation
        ]

    def routes(self, num_hops: int) -> list[Route]:
        """Every route of this length that starts at the root of a tree, in a fixed order."""
        return [route for root in self.roots for route in self._extend(root, root, (), (), num_hops)]

    def _extend(
        self, start: Name, here: Name, relations: tuple[str, ...], bridges: tuple[Name, ...], num_hops: int
    ) -> list[Route]:
        if len(bridges) == num_hops:
            return [Route(start, relations, bridges, self._candidates(start, relations, bridges))]
        return [
            route
            for fact in self.facts[here]
            for route in self._extend(
                start, fact.object, (*relations, fact.relation.name), (*bridges, fact.object), num_hops
            )
        ]

    def _candidates(self, start: Name, relations: tuple[str, ...], bridges: tuple[Name, ...]) -> tuple[Name, ...]:
        """The answer and three that a wrong turn, or nothing at all, leads to."""
        answer, num_hops = bridges[-1], len(bridges)
        rng = np.random.default_rng([self.key, text_key(f"{start} {relations}")])
        wrong_first = [leaf for other in self._siblings(start, bridges[0]) for leaf in self.below(other, num_hops - 1)]
        chosen = [answer, *_sample(rng, wrong_first, 2)]
        if num_hops == DEPTH:
            wrong_second = [
                leaf for other in self._siblings(bridges[0], bridges[1]) for leaf in self.below(other, num_hops - 2)
            ]
            chosen += _sample(rng, wrong_second, 1)
        elsewhere = self.levels[num_hops]
        while len(chosen) < NUM_CANDIDATES:
            name = elsewhere[rng.integers(len(elsewhere))]
            if name not in chosen:
                chosen.append(name)
        return tuple(chosen[i] for i in rng.permutation(NUM_CANDIDATES))

    def _siblings(self, subject: Name, known: Name) -> list[Name]:
        return [fact.object for fact in self.facts[subject] if fact.object != known]

    def below(self, entity: Name, num_hops: int) -> list[Name]:
        """Every entity that is this many hops below another one."""
        if num_hops == 0:
            return [entity]
        return [leaf for fact in self.facts[entity] for leaf in self.below(fact.object, num_hops - 1)]


@cache
def build_world(split: Split, *, leak: bool, seed: int = 0, num_trees: int = NUM_TREES) -> World:
    """Generate a world; the same arguments give the same world on every machine.

    Args:
        split: which pool the names come from.
        leak: whether names tell something about the entities above them.
        seed: another seed, other facts.
        num_trees: trees of 15 entities and 14 facts each.

    Raises:
        ValueError: there are not enough names for so many trees.
    """
    key = text_key(f"{'leak' if leak else 'plain'}/{split}/{seed}")
    rng = np.random.default_rng(key)
    drawer = NameDrawer(split, rng)
    facts: dict[Name, tuple[Fact, ...]] = {}
    level = [(drawer.draw(), list(RELATIONS)[i % len(RELATIONS)], "") for i in range(num_trees)]
    levels = [tuple(name for name, _, _ in level)]
    for depth in range(1, DEPTH + 1):
        below = []
        for subject, kind, clan in level:
            objects = []
            for relation in RELATIONS[kind]:
                inherits = leak and clan != "" and rng.random() < CLAN_SHARE
                name = drawer.draw(first=clan if inherits else None)
                objects.append(name)
                below.append((name, relation.target, name.second if depth == 1 else clan))
            facts[subject] = tuple(map(Fact, (subject, subject), RELATIONS[kind], objects))
        level = below
        levels.append(tuple(name for name, _, _ in level))
    return World(facts=facts, roots=levels[0], levels=tuple(levels), key=key)


def _sample(rng: np.random.Generator, names: list[Name], count: int) -> list[Name]:
    return [names[i] for i in rng.permutation(len(names))[:count]]
