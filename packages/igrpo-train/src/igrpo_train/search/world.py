"""world: the theory's `World` for a search agent: parents -> turns, nodes -> answer scores.

A world lives for one batch of questions. It keeps the computed prefixes of the current frontier: a node is prefilled
once, as an extension of its parent, and that prefix serves its answer score and all of its expansions.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int, UInt64

from igrpo_theory.growth import Proposal
from igrpo_train.question import Passage, Question
from igrpo_train.search.agent import Action, ActionKind, parse_action
from igrpo_train.search.prompting import Observation, Prompting
from igrpo_train.search.retrieval import Retriever
from igrpo_train.search.sampling import Completion, Prefix, Sampler
from igrpo_train.search.scoring import AnswerScorer
from igrpo_train.search.session import Prompt, SearchNode, SearchTree, Turn, context_segments
from igrpo_train.tracking import Phases

_NOTHING = Observation("", (), False)


class SearchAgent(NamedTuple):
    """Everything that turns questions into trees; shared by training and evaluation."""

    sampler: Sampler
    prompting: Prompting
    retriever: Retriever
    scorer: AnswerScorer

    def roots(self, questions: Sequence[Question]) -> list[Prompt]:
        """Prompts of a batch; raises ValueError for one that does not fit."""
        return [self.prompting.prompt(question) for question in questions]


class _Frontier(NamedTuple):
    """Prefixes of some nodes of one depth."""

    prefix: Prefix
    nodes: Int[np.ndarray, " n"]
    """Node ids in row order, ascending."""

    def rows(self, nodes: Int[np.ndarray, " k"]) -> Int[np.ndarray, " k"]:
        rows = np.searchsorted(self.nodes, nodes)
        assert np.array_equal(self.nodes[rows], nodes), "a node outside the frontier"
        return rows


class SearchWorld:
    """Implements `igrpo_theory.growth.World` by sampling turns and running searches.

    Args:
        agent: engine, prompts, retriever and scorer.
        turn_limit: turns a path may have; a search in the last one is not carried out.
        temperature: of sampling; 0 is greedy.
        phases: receives seconds and tokens of every phase.
    """

    def __init__(self, agent: SearchAgent, *, turn_limit: int, temperature: float, phases: Phases) -> None:
        self._agent = agent
        self._turn_limit = turn_limit
        self._temperature = temperature
        self._phases = phases
        self._frontier: _Frontier | None = None
        self.preamble_probability: list[float] = []

    def propose(
        self, tree: SearchTree, parents: Int[np.ndarray, " n"], keys: UInt64[np.ndarray, " n"]
    ) -> Proposal[SearchNode]:
        """Sample one turn for each parent (repeats are separate draws) and carry out its action."""
        frontier = self._advance(tree, np.unique(parents))
        with self._phases.measure("generation") as phase:
            completions = self._agent.sampler.generate(
                frontier.prefix,
                frontier.rows(parents),
                keys,
                temperature=self._temperature,
                max_tokens=self._agent.prompting.agent.max_response_tokens,
            )
            phase.tokens += sum(len(completion.token_ids) for completion in completions)
        turns = self._carry_out(tree, parents, completions)
        terminal = [turn.action.kind is ActionKind.ANSWER or turn.finish == "context" for turn in turns]
        return Proposal(turns, np.array(terminal, dtype=bool))

    def score(self, tree: SearchTree, nodes: Int[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """Answer scores of frontier nodes."""
        if not len(nodes):
            return np.zeros(0)
        frontier = self._advance(tree, np.unique(nodes))
        with self._phases.measure("scoring") as phase:
            answers = [self._prompt(tree, node).question.answers for node in nodes.tolist()]
            scores = self._agent.scorer.score(frontier.prefix, frontier.rows(nodes), answers)
            phase.tokens += scores.tokens
        self.preamble_probability.extend(scores.preamble_probability.tolist())
        return scores.score

    def _prompt(self, tree: SearchTree, node: int) -> Prompt:
        prompt = tree.payload[int(tree.question[node])]
        assert isinstance(prompt, Prompt)
        return prompt

    def _advance(self, tree: SearchTree, nodes: Int[np.ndarray, " n"]) -> _Frontier:
        """Make sure that the frontier holds `nodes` (ascending, one depth), extending their parents' prefixes."""
        held = self._frontier
        if held is not None and np.isin(nodes, held.nodes).all():
            return held
        tails = [self._prompt(tree, node).tail_ids for node in nodes.tolist()]
        with self._phases.measure("prefill") as phase:
            if tree.depth[nodes[0]] == 0:
                segments = [self._prompt(tree, node).head_ids for node in nodes.tolist()]
                prefix = self._agent.sampler.prefill(None, np.arange(len(nodes)), segments, tails)
            else:
                assert held is not None
                turns = [tree.payload[node] for node in nodes]
                segments = [turn.history_ids for turn in turns if isinstance(turn, Turn)]
                prefix = self._agent.sampler.prefill(held.prefix, held.rows(tree.parent[nodes]), segments, tails)
            phase.tokens += sum(map(len, segments)) + sum(map(len, tails))
        self._frontier = _Frontier(prefix, nodes)
        return self._frontier

    def _carry_out(
        self, tree: SearchTree, parents: Int[np.ndarray, " n"], completions: Sequence[Completion]
    ) -> list[Turn]:
        """Parse responses, run their searches in one batch, and write the histories."""
        prompting = self._agent.prompting
        texts = [prompting.decode(completion.token_ids) for completion in completions]
        actions = [parse_action(text) for text in texts]
        # Nobody reads on after the last turn: a search in it is not carried out, and no history is too long.
        last = (tree.depth[parents] + 1 >= self._turn_limit).tolist()
        executed = [action.kind is ActionKind.SEARCH and not end for action, end in zip(actions, last, strict=True)]
        with self._phases.measure("retrieval"):
            queries = list(dict.fromkeys(a.text for a, run in zip(actions, executed, strict=True) if run))
            found = self._agent.retriever.search(queries, prompting.agent.top_k) if queries else []
            passages = dict(zip(queries, found, strict=True))
        turns = []
        for k, completion in enumerate(completions):
            documents = passages[actions[k].text] if executed[k] else None
            used = sum(len(segment) for segment in context_segments(tree, int(parents[k])))
            room = prompting.agent.max_prompt_tokens - used
            turns.append(self._turn(completion, texts[k], actions[k], documents, room, last=last[k]))
        return turns

    def _turn(
        self,
        completion: Completion,
        text: str,
        action: Action,
        documents: list[Passage] | None,
        room: int,
        *,
        last: bool,
    ) -> Turn:
        """One turn whose history takes at most `room` more ids, unless it is the last; documents are what gives way."""
        prompting = self._agent.prompting
        response = completion.token_ids
        history = response if prompting.agent.history == "everything" else prompting.action_ids(response, action)
        full = not last and action.kind is not ActionKind.ANSWER and len(history) > room
        observation = _NOTHING
        if documents is not None and not full:
            observation = prompting.observe(documents, room - len(history))
        return Turn(
            response_ids=response,
            response_logprobs=completion.logprobs,
            text=text,
            action=action,
            history_ids=(*history, *observation.ids),
            observation=observation.text,
            documents=tuple(passage.id for passage in documents or ()),
            finish="context" if full else completion.finish,
            observation_cut=observation.cut,
            observation_tokens=len(observation.ids),
        )
