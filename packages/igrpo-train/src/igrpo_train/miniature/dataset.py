"""dataset: a specification such as `miniature:leak/train` -> questions and passages.

Source: ours. Example:
    >>> question = miniature_questions("miniature:plain/test/2")[0]
    >>> question.hops, len(question.contexts), question.source
    (2, 2, 'miniature:plain/test')
"""

import re
from typing import NamedTuple, cast

from igrpo_train.miniature.names import SPLITS, Split
from igrpo_train.miniature.protocol import question_text
from igrpo_train.miniature.world import DEPTH, Fact, Route, World, build_world
from igrpo_train.question import Passage, Question

PREFIX = "miniature:"
_SPEC = re.compile(rf"{PREFIX}(?P<names>leak|plain)/(?P<split>{'|'.join(SPLITS)})(?:/(?P<hops>[1-3](?:\+[1-3])*))?")


class MiniatureSpec(NamedTuple):
    """What a specification says."""

    leak: bool
    split: Split
    hops: tuple[int, ...]
    """Lengths of the routes that are asked about."""

    @property
    def world(self) -> World:
        """The knowledge base behind it."""
        return build_world(self.split, leak=self.leak)

    @property
    def source(self) -> str:
        """The specification without the lengths."""
        return f"{PREFIX}{'leak' if self.leak else 'plain'}/{self.split}"


def parse_spec(spec: str) -> MiniatureSpec:
    """Read `miniature:<leak|plain>/<split>` with an optional `/<hops>`, the hops joined by `+`.

    Raises:
        ValueError: the text is nothing of the kind.

    Example:
        >>> parse_spec("miniature:leak/train/2+3")
        MiniatureSpec(leak=True, split='train', hops=(2, 3))
    """
    found = _SPEC.fullmatch(spec)
    hops = tuple(map(int, found["hops"].split("+"))) if found and found["hops"] else tuple(range(1, DEPTH + 1))
    if found is None:
        raise ValueError(
            f"a miniature data set must be written miniature:<leak|plain>/<{'|'.join(SPLITS)}>, if need be followed by "
            f"the hops as in /2+3 (1 to {DEPTH}), got {spec!r}: for example miniature:leak/train"
        )
    return MiniatureSpec(found["names"] == "leak", cast(Split, found["split"]), hops)


def fact_passage(fact: Fact) -> Passage:
    """The document that states a fact."""
    title = str(fact.subject)
    return Passage(id=f"{title.replace(' ', '-')}/{fact.relation.name}", title=title, text=fact.text)


def miniature_corpus(spec: str) -> list[Passage]:
    """All documents of a world, one a fact.

    Raises:
        ValueError: the specification is not one.

    Example:
        >>> len(miniature_corpus("miniature:leak/train"))
        1120
    """
    return [fact_passage(fact) for pair in parse_spec(spec).world.facts.values() for fact in pair]


def miniature_questions(spec: str) -> list[Question]:
    """All questions of a world: 160 of one hop, 320 of two, 640 of three, in a fixed order.

    Raises:
        ValueError: the specification is not one.

    Example:
        >>> miniature_questions("miniature:leak/train/1")[0].text.split(" ? ")[0].split(" of ")[0]
        'what is the home'
    """
    parsed = parse_spec(spec)
    return [_question(parsed, route) for hops in parsed.hops for route in parsed.world.routes(hops)]


def _question(spec: MiniatureSpec, route: Route) -> Question:
    subjects = (route.start, *route.bridges[:-1])
    facts = [
        fact
        for subject, relation in zip(subjects, route.relations, strict=True)
        for fact in spec.world.facts[subject]
        if fact.relation.name == relation
    ]
    world, _, split = spec.source.removeprefix(PREFIX).partition("/")
    return Question(
        id="-".join((world, split, *route.start, *route.relations)),
        text=question_text(route),
        answers=(str(route.answer),),
        source=spec.source,
        hops=len(route.relations),
        contexts=tuple(map(fact_passage, facts)),
    )
