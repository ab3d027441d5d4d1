"""dataset: a specification such as `miniature:leak/train` -> questions and passages.

Source: ours. Example:
    >>> question = miniature_questions("miniature:plain/test")[160]
    >>> question.hops, len(question.contexts), question.source
    (2, 2, 'miniature:plain/test')
"""

import re
from typing import NamedTuple, cast

from igrpo_train.miniature.names import SPLITS, Split
from igrpo_train.miniature.protocol import question_text
from igrpo_train.miniature.world import DEPTH, Fact, Route, World, build_world
from igrpo_train.question import Passage, Question

_SPEC = re.compile(rf"miniature:(leak|plain)/({'|'.join(SPLITS)})")


class MiniatureSpec(NamedTuple):
    """What a specification says."""

    leak: bool
    split: Split

    @property
    def world(self) -> World:
        """The knowledge base behind it."""
        return build_world(self.split, leak=self.leak)


def parse_spec(spec: str) -> MiniatureSpec:
    """Read `miniature:<leak|plain>/<split>`.

    Raises:
        ValueError: the text is nothing of the kind.

    Example:
        >>> parse_spec("miniature:leak/train")
        MiniatureSpec(leak=True, split='train')
    """
    found = _SPEC.fullmatch(spec)
    if found is None:
        raise ValueError(
            f"a miniature data set must be written miniature:<leak|plain>/<{'|'.join(SPLITS)}>, got {spec!r}: "
            "write miniature:leak/train for example"
        )
    return MiniatureSpec(leak=found[1] == "leak", split=cast(Split, found[2]))


def corpus_worlds(spec: str) -> list[World]:
    """The knowledge bases behind a corpus: `miniature:leak/train+validation` joins splits, whose names are disjoint.

    Raises:
        ValueError: the specification is not one.

    Example:
        >>> len(corpus_worlds("miniature:leak/train+test"))
        2
    """
    names, slash, splits = spec.partition("/")
    return [parse_spec(f"{names}{slash}{split}").world for split in splits.split("+")]


def fact_passage(fact: Fact) -> Passage:
    """The document that states a fact."""
    title = str(fact.subject)
    return Passage(id=f"{title.replace(' ', '-')}/{fact.relation.name}", title=title, text=fact.text)


def miniature_corpus(spec: str) -> list[Passage]:
    """All documents of one or several worlds, one a fact; see `corpus_worlds`.

    Raises:
        ValueError: the specification is not one.

    Example:
        >>> len(miniature_corpus("miniature:leak/train"))
        1120
    """
    return [fact_passage(fact) for world in corpus_worlds(spec) for pair in world.facts.values() for fact in pair]


def miniature_questions(spec: str) -> list[Question]:
    """All questions of a world, in a fixed order: 160 of one hop, 320 of two, 640 of three.

    Raises:
        ValueError: the specification is not one.

    Example:
        >>> miniature_questions("miniature:leak/train")[0].text.split(" of ")[0]
        'what is the home'
    """
    world = parse_spec(spec).world
    return [_question(spec, world, route) for hops in range(1, DEPTH + 1) for route in world.routes(hops)]


def _question(spec: str, world: World, route: Route) -> Question:
    names = (spec.removeprefix("miniature:").replace("/", "-"), *route.start, *route.relations)
    return Question(
        id="-".join(names),
        text=question_text(route),
        answers=(str(route.answer),),
        source=spec,
        hops=len(route.relations),
        contexts=tuple(map(fact_passage, world.chain(route))),
    )
