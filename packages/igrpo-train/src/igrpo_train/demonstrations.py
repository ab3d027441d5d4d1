"""demonstrations: questions with gold passages -> rows that show a policy the search protocol.

A demonstration looks up the titles of the gold passages, those that the question names first, and then answers; where
the question names none, it starts with a search for the question itself. It is grown by the trainer's own loop with a
script in the policy's place, so prompts, real search results, limits and histories are those of the run. Some rows ask
for the answer right behind the scoring preamble while passages are still missing: they teach no decision to answer,
they make the answer score mean something at every turn.

Letters: Q questions.
Source: ours.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int, UInt64

from igrpo_theory.growth import grow
from igrpo_theory.paths import root_to_leaf_paths
from igrpo_theory.randomness import Stream, question_keys, uniforms
from igrpo_train.checks import check_fields, fraction
from igrpo_train.config import Scoring
from igrpo_train.learn.packing import pack_paths
from igrpo_train.learn.supervised import SupervisedRow
from igrpo_train.question import Question
from igrpo_train.rewards import normalise_answer
from igrpo_train.rollout import chain_rule
from igrpo_train.search.agent import ActionKind, parse_action
from igrpo_train.search.prompting import Prompting
from igrpo_train.search.retrieval import Retriever
from igrpo_train.search.sampling import Completion, Tokens
from igrpo_train.search.scoring import AnswerScorer
from igrpo_train.search.session import Prompt, SearchNode, SearchTree, Turn, context_segments
from igrpo_train.search.world import SearchAgent, SearchWorld
from igrpo_train.tracking import Phases

_DETAIL = re.compile(r"\s*\([^()]*\)$")
"""What tells pages of one name apart: `Lilu (mythology)`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Manner:
    """What demonstrations look like; shares are chances a question or a turn."""

    question_share: float = 0.2
    """Share of demonstrations whose first search is the question itself, where the question names a gold passage; where
    it names none, the first search always is."""
    preamble_share: float = 0.5
    """Share of answers written behind the scoring preamble, word for word; the rest name what was read."""
    early_share: float = 0.5
    """Share of turns with passages still missing that add a row: the gold answer behind the scoring preamble."""

    def __post_init__(self) -> None:
        check_fields("manner.", self, "question_share preamble_share early_share", fraction, "between 0 and 1")


class Demonstrations(NamedTuple):
    """Rows and where they come from."""

    rows: list[SupervisedRow]
    used: int
    """Questions that were demonstrated."""
    skipped: dict[str, int]
    """Questions that were not, by reason."""


class _Script(NamedTuple):
    """What is said in each turn about one question, as text."""

    question: Question
    responses: tuple[str, ...]


class _Place(NamedTuple):
    """Where a script stands: the scripted policy's whole memory."""

    slot: int
    turn: int


class ScriptedSampler:
    """Says what its scripts say; a `Sampler` that needs no model.

    Args:
        scripts: token ids of each turn, a question slot.
    """

    def __init__(self, scripts: Sequence[Sequence[tuple[int, ...]]]) -> None:
        self._scripts = scripts

    def prefill(
        self,
        base: Sequence[_Place] | None,
        rows: Int[np.ndarray, " n"],
        segments: Sequence[Tokens],
        tails: Sequence[Tokens],
    ) -> Sequence[_Place]:
        """Remember the turn instead of the tokens."""
        assert len(rows) == len(segments)
        if base is None:
            return [_Place(int(slot), 0) for slot in rows]
        return [_Place(base[row].slot, base[row].turn + 1) for row in rows]

    def generate(
        self,
        prefix: Sequence[_Place],
        rows: Int[np.ndarray, " n"],
        keys: UInt64[np.ndarray, " n"],
        *,
        temperature: float,
        max_tokens: int,
    ) -> list[Completion]:
        """The next response of each row's script."""
        said = [self._scripts[prefix[row].slot][prefix[row].turn] for row in rows]
        assert all(len(ids) <= max_tokens for ids in said)
        return [Completion(ids, (0.0,) * len(ids), "stop") for ids in said]

    def score(
        self, prefix: Sequence[_Place], rows: Int[np.ndarray, " n"], continuations: Sequence[Tokens]
    ) -> list[Float[np.ndarray, " L"]]:
        """Never called: chains need no score."""
        raise AssertionError("a script has no probabilities")

    def take_recomputed(self) -> int:
        """Nothing: a script computes nothing."""
        return 0


def demonstrate(
    questions: Sequence[Question], prompting: Prompting, retriever: Retriever, manner: Manner, seed: int
) -> Demonstrations:
    """Write demonstrations of questions that have gold passages.

    Args:
        questions: without gold passages, with more of them than there are turns to search, or with a turn that is too
            long, they are skipped.
        prompting: the run's protocol.
        retriever: the run's search engine.
        manner: what they look like.
        seed: with a question's id, fixes its demonstration.

    Raises:
        ValueError: no question can be demonstrated, one does not fit the prompt, or the scoring preamble does not
            lead to an answer.
    """
    _check_preamble(prompting.scoring)
    skipped: Counter[str] = Counter()
    scripts = list(_scripts(questions, prompting, manner, seed, skipped))
    rows: list[SupervisedRow] = []
    whole: set[int] = set()
    if scripts:
        tree = _perform(scripts, prompting, retriever)
        whole = _answered(tree)
        rows = [*_turn_rows(tree, whole), *_early_rows(tree, whole, prompting, manner, seed)]
    if len(whole) < len(scripts):
        skipped["a history beyond agent.max_prompt_tokens"] = len(scripts) - len(whole)
    if not rows:
        reasons = ", ".join(f"{number} with {reason}" for reason, number in skipped.items())
        raise ValueError(
            f"data.train must hold questions that can be demonstrated, got {len(questions)} questions, {reasons}: use "
            "a file with contexts (gold passages), or raise the limit that is named"
        )
    return Demonstrations(rows, len(whole), dict(skipped))


class GoldTitles(NamedTuple):
    """Titles of a question's gold passages in the order in which somebody who does not know them comes across them."""

    titles: tuple[str, ...]
    """Those that the question names come first, as it names them; then pages that only others lead to come last."""
    named: bool
    """Whether the question names the first of them."""


def gold_titles(question: Question) -> GoldTitles:
    """Titles of the gold passages, once each.

    Example:
        >>> from igrpo_train.question import Passage
        >>> gold = tuple(Passage(id=title, title=title, text="...") for title in ("Paris", "Ghent (city)"))
        >>> gold_titles(Question(id="1", text="Who is the mayor of Ghent?", answers=("Ann",), contexts=gold))
        GoldTitles(titles=('Ghent (city)', 'Paris'), named=True)
    """
    texts = {passage.title: _words(passage.text) for passage in question.contexts if passage.title}
    names = {title: _words(_DETAIL.sub("", title)) for title in texts}
    place = {title: _words(question.text).find(name) for title, name in names.items()}

    def reached(title: str) -> tuple[bool, int, bool]:
        linked = any(names[title] in text for other, text in texts.items() if other != title)
        return place[title] < 0, place[title], linked

    titles = tuple(sorted(texts, key=reached))
    return GoldTitles(titles, bool(titles) and place[titles[0]] >= 0)


def _words(text: str) -> str:
    """A text in which whole words can be found as substrings."""
    return f" {normalise_answer(text)} "


def _check_preamble(scoring: Scoring) -> None:
    action = parse_action(_preamble_answer(scoring.preamble, "yes"))
    if not (action.valid and action.kind is ActionKind.ANSWER and action.text == "yes"):
        raise ValueError(
            f"scoring.preamble must end in <answer>, with no other action before it, got {scoring.preamble!r}: the "
            "policy is to learn to answer behind it"
        )


def _preamble_answer(preamble: str, answer: str) -> str:
    """The preamble, an answer, and the tag that closes it, after the same white space as the one that opens it."""
    return f"{preamble}{answer}{preamble[len(preamble.rstrip()) :]}</answer>"


def _draws(questions: Sequence[Question], seed: int, words: int) -> Float[np.ndarray, "Q W"]:
    """Uniforms of each question; they do not depend on the other questions."""
    keys = question_keys(seed, 0, np.zeros(len(questions), dtype=np.int64), [question.id for question in questions])
    return uniforms(keys[:, None], Stream.PROPOSAL, np.arange(words))


def _scripts(
    questions: Sequence[Question], prompting: Prompting, manner: Manner, seed: int, skipped: Counter[str]
) -> Iterator[_Script]:
    """Scripts of the questions that can have one; the reasons of the others are counted in `skipped`."""
    for question, draws in zip(questions, _draws(questions, seed, words=2), strict=True):
        script = _write(question, prompting, manner, draws)
        if isinstance(script, str):
            skipped[script] += 1
        else:
            yield script


def _write(question: Question, prompting: Prompting, manner: Manner, draws: Float[np.ndarray, " W"]) -> _Script | str:
    """The script of a question, or why it has none."""
    titles, named = gold_titles(question)
    if not titles:
        return "no gold passages"
    if len(titles) >= prompting.agent.max_turns:
        return "more gold passages than searches in agent.max_turns"
    responses = [f"<think> I look up {title}. </think>\n<search>{title}</search>" for title in titles]
    if not named or draws[0] < manner.question_share:
        query = question.text.strip()
        responses[0] = f"<think> I search for the question itself. </think>\n<search>{query}</search>"
    if draws[1] < manner.preamble_share:
        responses.append(_preamble_answer(prompting.scoring.preamble, question.answers[0]))
    else:
        thought = f"<think> I have read about {' and '.join(titles)}. </think>"
        responses.append(f"{thought}\n<answer>{question.answers[0]}</answer>")
    encoded = [_encode(prompting, text) for text in responses]
    if max(map(len, encoded)) > prompting.agent.max_response_tokens:
        return "a turn longer than agent.max_response_tokens"
    if not all(parse_action(text).valid for text in responses):
        return "tags of the protocol in its own text"
    if not all(parse_action(prompting.decode(ids)).valid for ids in encoded):
        return "tags of the protocol that the tokenizer does not keep"
    return _Script(question, tuple(responses))


def _encode(prompting: Prompting, text: str) -> tuple[int, ...]:
    return tuple(prompting.tokenizer(text, add_special_tokens=False)["input_ids"])


def _perform(scripts: Sequence[_Script], prompting: Prompting, retriever: Retriever) -> SearchTree:
    """Grow a chain a script."""
    sampler = ScriptedSampler([[_encode(prompting, text) for text in script.responses] for script in scripts])
    agent = SearchAgent(sampler, prompting, retriever, AnswerScorer(sampler, prompting, prompting.scoring))
    rule = chain_rule(prompting.agent.max_turns)
    world = SearchWorld(agent, turn_limit=rule.turn_limit, temperature=1.0, phases=Phases())
    roots: list[SearchNode] = [*agent.roots([script.question for script in scripts])]
    return grow(world, roots, np.zeros(len(roots), dtype=np.uint64), rule).tree


def _answered(tree: SearchTree) -> set[int]:
    """Question slots whose script came to its end."""
    turns = [(int(tree.question[leaf]), tree.payload[leaf]) for leaf in tree.leaves()]
    return {slot for slot, turn in turns if isinstance(turn, Turn) and turn.action.kind is ActionKind.ANSWER}


def _turn_rows(tree: SearchTree, slots: set[int]) -> Iterator[SupervisedRow]:
    """Every turn of the demonstrations of some question slots."""
    paths = root_to_leaf_paths(tree)
    keep = np.isin(paths.question, list(slots))
    for row in pack_paths(tree, paths, np.zeros(paths.nodes.shape), keep):
        yield SupervisedRow(row.context_ids, row.response_ids, (1.0,) * len(row.response_ids))


def _early_rows(
    tree: SearchTree, slots: set[int], prompting: Prompting, manner: Manner, seed: int
) -> Iterator[SupervisedRow]:
    """Gold answers behind the scoring preamble after some of the searches but the last; loss on the answer only."""
    for slot in sorted(slots):
        prompt = tree.payload[slot]
        assert isinstance(prompt, Prompt)
        searched = [int(tree.parent[node]) for node in np.flatnonzero(tree.question == slot) if tree.depth[node] > 1]
        draws = _draws([prompt.question], seed, words=2 + len(searched))[0, 2:]
        forced = prompting.forced_answer(prompt.question.answers[0])
        # The last search has brought everything: the answer itself comes behind it.
        for node, draw in zip(searched[:-1], draws, strict=False):
            if draw < manner.early_share:
                context = tuple(chain.from_iterable(context_segments(tree, node)))
                yield SupervisedRow(context, forced.token_ids, tuple(forced.gold.astype(float).tolist()))
