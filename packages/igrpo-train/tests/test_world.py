"""The search agent as the theory's world, on an engine that plays a script."""

import numpy as np
import pytest


class ScriptedSampler:
    """Writes by question, depth and child number; keeps contexts as ids, tails apart, and records all it is asked."""

    def __init__(self, tokenizer, write):
        self.tokenizer, self.write = tokenizer, write
        self.prefilled, self.generated, self.scored = [], [], []

    def prefill(self, base, rows, segments, tails):
        stems = [() if base is None else base[row][0] for row in rows]
        contexts = [((*stem, *s), tuple(tail)) for stem, s, tail in zip(stems, segments, tails, strict=True)]
        self.prefilled.append(contexts)
        return contexts

    def generate(self, prefix, rows, keys, *, temperature, max_tokens):
        from igrpo_train.search.sampling import Completion

        contexts = [sum(prefix[row], ()) for row in rows]
        self.generated.append(contexts)
        texts = [
            self.write(self.tokenizer.decode(context), int(key)) for context, key in zip(contexts, keys, strict=True)
        ]
        ids = [tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])[:max_tokens] for text in texts]
        return [Completion(i, (-0.5,) * len(i), "stop") for i in ids]

    def score(self, prefix, rows, continuations):
        self.scored.append([sum(prefix[row], ()) + tuple(c) for row, c in zip(rows, continuations, strict=True)])
        return [np.full(len(c), np.log(0.25)) for c in continuations]

    def take_recomputed(self):
        return 0


@pytest.fixture
def grow(toy_tokenizer):
    from igrpo_theory.growth import GrowthRule
    from igrpo_theory.randomness import question_keys
    from igrpo_train.config import Agent, Scoring
    from igrpo_train.question import Passage, Question
    from igrpo_train.rollout import collect
    from igrpo_train.search.prompting import Prompting
    from igrpo_train.search.retrieval import BM25Retriever
    from igrpo_train.search.scoring import AnswerScorer
    from igrpo_train.search.world import SearchAgent
    from igrpo_train.tracking import Phases

    corpus = [
        Passage(id="ghent", title="Ghent", text="a city whose mayor is Mathias"),
        Passage(id="oslo", title="Oslo", text="the capital of Norway"),
    ]
    questions = [Question(id=f"q{i}", text=f"question {i}?", answers=("Oslo", "the Oslo")) for i in range(3)]

    def run(write, *, agent=None, scoring=None, num_questions=1, temperature=1.0, **rule):
        prompting = Prompting(toy_tokenizer, Agent(max_turns=4, **(agent or {})), Scoring(**(scoring or {})))
        sampler = ScriptedSampler(toy_tokenizer, write)
        search_agent = SearchAgent(
            sampler, prompting, BM25Retriever(corpus), AnswerScorer(sampler, prompting, prompting.scoring)
        )
        chosen = questions[:num_questions]
        keys = question_keys(0, 0, np.arange(len(chosen)), [question.id for question in chosen])
        phases = Phases()
        rollout = collect(search_agent, chosen, keys, GrowthRule(**rule), temperature=temperature, phases=phases)
        return rollout, sampler, phases

    return run


def _by_progress(text, key):
    """Search twice, then answer."""
    found = text.split("Question:")[-1].count("<information>")
    return ["<search>mayor of Ghent</search>", "<search>capital of Norway</search>", "<answer>Oslo</answer>"][
        min(found, 2)
    ]


@pytest.mark.parametrize("history", ["documents", "everything"])
def test_contexts_along_a_path_extend_each_other_and_hold_the_sampled_ids(grow, history, toy_tokenizer):
    from igrpo_train.search.session import Turn, context_segments

    write = lambda text, key: "<think>why</think>" + _by_progress(text, key)  # noqa: E731
    rollout, sampler, _ = grow(write, agent={"history": history}, budget=2, cap=1)
    tree = rollout.tree
    for node in range(1, tree.num_nodes):
        context = tuple(token for segment in context_segments(tree, int(tree.parent[node])) for token in segment)
        assert any(context in contexts for contexts in sampler.generated)
        turn = tree.payload[node]
        assert isinstance(turn, Turn)
        if history == "everything":
            assert turn.history_ids[: len(turn.response_ids)] == turn.response_ids
        text = toy_tokenizer.decode(context)
        assert ("why" in text.split("Question:")[-1]) == (history == "everything" and tree.depth[node] > 1)
    assert rollout.grades.tolist() == [1.0, 1.0]
    assert rollout.paths.length.tolist() == [3, 3]


def test_only_what_is_needed_is_computed(grow):
    """Exact counts: no generation below finished nodes, no score of them or at the last stage, one prefill a node."""

    def write(text, key):
        return "<answer>Oslo</answer>" if key % 3 == 0 else "<search>capital of Norway</search>"

    rollout, sampler, phases = grow(write, num_questions=3, budget=5, cap=2, turn_limit=3)
    tree = rollout.tree
    from igrpo_theory.tree import NodeStatus

    children = tree.children_count()
    active = tree.status == NodeStatus.ACTIVE
    assert sum(map(len, sampler.generated)) == tree.num_nodes - 3
    assert (children[~active] == 0).all()
    scored = ~np.isnan(tree.score)
    expected = (active | (tree.status == NodeStatus.TRUNCATED)) & (tree.depth > 0) & (tree.depth < 3)
    np.testing.assert_array_equal(scored, expected)
    assert sum(map(len, sampler.scored)) == expected.sum()
    assert sum(map(len, sampler.prefilled)) == 3 + expected.sum()
    tokens = sum(len(turn.response_ids) for turn in tree.payload[3:])
    assert phases.take()["tokens/generation"] == tokens


def test_chains_score_nothing_unless_asked(grow):
    _, sampler, _ = grow(_by_progress, budget=3, cap=1)
    assert sampler.scored == []
    rollout, sampler, _ = grow(_by_progress, budget=3, cap=1, score_chains=True)
    assert len(sampler.scored) == 2
    assert not np.isnan(rollout.tree.score[1])


def test_a_search_on_the_last_turn_is_not_carried_out(grow):
    rollout, _, _ = grow(lambda text, key: "<search>capital of Norway</search>", budget=1, cap=1, turn_limit=2)
    first, last = rollout.tree.payload[1:]
    assert "Oslo" in first.observation
    assert last.observation == ""
    assert last.documents == ()
    assert rollout.predictions() == [None]
    assert rollout.grades.tolist() == [0.0]


def test_a_malformed_turn_is_data_and_the_episode_goes_on(grow):
    def write(text, key):
        return "no tags at all"

    rollout, _, _ = grow(write, budget=1, cap=1, turn_limit=3)
    assert rollout.paths.length.tolist() == [3]
    assert not rollout.valid.any()
    assert rollout.tree.payload[1].history_ids == ()


def test_scores_are_geometric_means_over_the_first_alias(grow):
    rollout, sampler, _ = grow(_by_progress, budget=2, cap=2)
    scored = rollout.tree.score[~np.isnan(rollout.tree.score)]
    np.testing.assert_allclose(scored, 0.25)
    assert rollout.preamble_probability == pytest.approx(0.25)
    assert len(sampler.scored[0]) == 2


@pytest.mark.parametrize("aliases", ["max", "mean"])
def test_all_aliases_are_scored_when_asked(grow, aliases):
    rollout, sampler, _ = grow(_by_progress, budget=2, cap=2, scoring={"aliases": aliases})
    assert len(sampler.scored[0]) == 4
    np.testing.assert_allclose(rollout.tree.score[~np.isnan(rollout.tree.score)], 0.25)


def test_an_unlikely_preamble_is_warned_about_once(grow, caplog):
    grow(_by_progress, budget=2, cap=2, scoring={"warn_below": 0.5})
    warnings = [record.message for record in caplog.records if "scoring.preamble" in record.message]
    assert len(warnings) == 1
    assert "very unlikely" in warnings[0]
    caplog.clear()
    grow(_by_progress, budget=2, cap=2, scoring={"warn_below": 0.2})
    assert not any("scoring.preamble" in record.message for record in caplog.records)


def test_a_full_context_ends_the_path_and_documents_give_way_first(grow):
    """The prompt has room for the question and little more: observations shrink, then the path ends."""
    write = lambda text, key: "<search>capital of Norway</search>"  # noqa: E731
    rollout, _, _ = grow(write, agent={"template": "Q {question}{history}", "max_prompt_tokens": 115}, budget=1, cap=1)
    turns = rollout.tree.payload[1:]
    assert turns[0].observation_cut or turns[1].observation_cut
    assert turns[-1].finish == "context"
    assert len(turns) < 4


def test_one_retrieval_a_distinct_query(grow):
    class Counting:
        calls: list = []  # noqa: RUF012

    from igrpo_train.search import retrieval

    original = retrieval.BM25Retriever.search
    try:
        retrieval.BM25Retriever.search = lambda self, queries, top_k: (
            Counting.calls.append(list(queries)),
            original(self, queries, top_k),
        )[1]
        grow(_by_progress, num_questions=3, budget=4, cap=1)
    finally:
        retrieval.BM25Retriever.search = original
    assert Counting.calls == [["mayor of Ghent"], ["capital of Norway"]]


def test_the_last_turn_ends_at_the_turn_limit_however_full_the_context_is(grow):
    from igrpo_theory.tree import NodeStatus

    write = lambda text, key: f"<search>{'Norway ' * 60}</search>"  # noqa: E731
    agent = {"template": "Q {question}{history}", "max_prompt_tokens": 115, "history": "everything"}
    rollout, _, _ = grow(write, agent=agent, budget=1, cap=1, turn_limit=1)
    assert rollout.tree.payload[1].finish == "stop"
    assert rollout.tree.status[1] == NodeStatus.TURN_LIMIT


@pytest.mark.parametrize("history", ["documents", "everything"])
def test_the_observation_ends_the_history(grow, history, toy_tokenizer):
    rollout, _, _ = grow(_by_progress, agent={"history": history}, budget=1, cap=1)
    first, _, last = rollout.tree.payload[1:]
    assert toy_tokenizer.decode(first.history_ids[-first.observation_tokens :]) == first.observation
    assert last.observation_tokens == 0


def test_what_aliases_begin_with_is_counted_once_a_node(grow, toy_tokenizer):
    from igrpo_train.config import Agent, Scoring
    from igrpo_train.search.prompting import Prompting
    from igrpo_train.search.sampling import shared_stems

    forced = [Prompting(toy_tokenizer, Agent(), Scoring()).forced_answer(a).token_ids for a in ("Oslo", "the Oslo")]
    [stem] = shared_stems(np.zeros(2, dtype=int), forced)
    assert len(stem) > 10
    rollout, _, phases = grow(_by_progress, budget=2, cap=2, scoring={"aliases": "max"})
    num_scored = int((~np.isnan(rollout.tree.score)).sum())
    assert phases.take()["tokens/scoring"] == num_scored * (sum(map(len, forced)) - len(stem))
