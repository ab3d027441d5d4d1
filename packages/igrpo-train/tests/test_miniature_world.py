"""The generated world: splits, names, routes and its retriever."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from igrpo_theory.randomness import text_key
from igrpo_train.miniature.dataset import miniature_corpus, miniature_questions, parse_spec
from igrpo_train.miniature.names import SPLITS, SYLLABLES, NameDrawer, name_pool
from igrpo_train.miniature.retriever import FactSearch, MiniatureRetriever
from igrpo_train.miniature.world import DEPTH, RELATION_NAMES, build_world
from igrpo_train.question import Question, read_passages, read_questions

SPECS = [f"miniature:{names}/{split}" for names in ("leak", "plain") for split in SPLITS]

PINNED = {
    "miniature:leak/train": 11505669136241371659,
    "miniature:leak/validation": 17989447421844056183,
    "miniature:leak/test": 10881763687289872780,
    "miniature:plain/train": 6788207719007191531,
    "miniature:plain/validation": 18271176115977475051,
    "miniature:plain/test": 14320223197156022396,
}


def _entities(world):
    return {name for level in world.levels for name in level}


def test_pools_cut_the_space_of_names_into_disjoint_parts_of_similar_size():
    pools = [name_pool(split) for split in SPLITS]
    assert all(a.isdisjoint(b) for a, b in itertools.combinations(pools, 2))
    assert sum(map(len, pools)) == len(SYLLABLES) * (len(SYLLABLES) - 1)
    # A share of 1/4 of 7656 names has a standard deviation of 38: five of them.
    assert all(abs(len(pool) - 1914) < 190 for pool in pools)


@pytest.mark.parametrize("leak", [True, False])
def test_worlds_of_different_splits_share_no_entity(leak):
    worlds = [_entities(build_world(split, leak=leak)) for split in SPLITS]
    assert all(a.isdisjoint(b) for a, b in itertools.combinations(worlds, 2))


@pytest.mark.parametrize("spec", SPECS)
def test_every_entity_is_the_object_of_at_most_one_fact(spec):
    world = parse_spec(spec).world
    objects = [fact.object for pair in world.facts.values() for fact in pair]
    assert len(objects) == len(set(objects)) == 80 * 14
    assert set(objects).isdisjoint(world.roots)


def test_a_world_is_a_function_of_its_arguments():
    first, other_seed = build_world("train", leak=True), build_world("train", leak=True, seed=1)
    build_world.cache_clear()
    again = build_world("train", leak=True)
    assert again is not first
    assert again == first
    assert other_seed.facts != first.facts


@pytest.mark.parametrize(("spec", "digest"), PINNED.items())
def test_worlds_are_pinned_because_the_shipped_policies_were_made_for_them(spec, digest):
    lines = [question.id + question.text for question in miniature_questions(spec)]
    lines += [passage.text for passage in miniature_corpus(spec)]
    assert text_key("\n".join(lines)) == digest


def test_question_ids_are_readable():
    questions = miniature_questions("miniature:leak/train")
    assert [questions[i].id for i in (0, 160, 480)] == [
        "leak-train-hu-ve-home",
        "leak-train-hu-ve-home-mayor",
        "leak-train-hu-ve-home-mayor-home",
    ]


def _clan_share(world):
    matches = [
        descendant.first == founder.second
        for founder in world.levels[1]
        for hops in (1, 2)
        for descendant in world.below(founder, hops)
    ]
    return np.mean(matches)


@pytest.mark.parametrize("split", SPLITS)
def test_linked_names_share_a_syllable_far_more_often_with_leak(split):
    assert _clan_share(build_world(split, leak=True)) > 0.7
    assert _clan_share(build_world(split, leak=False)) < 0.05


@pytest.mark.parametrize("spec", ["miniature:leak/train", "miniature:plain/test"])
def test_every_question_is_answered_by_following_its_hops_through_the_retriever(spec):
    world, retriever = parse_spec(spec).world, MiniatureRetriever(spec)
    facts = [fact for pair in world.facts.values() for fact in pair]
    found = retriever.search([f"{fact.subject} {fact.relation.name}" for fact in facts], top_k=1)
    assert [[passage.text for passage in passages] for passages in found] == [[fact.text] for fact in facts]
    for route in (route for hops in range(1, DEPTH + 1) for route in world.routes(hops)):
        chain = world.chain(route)
        assert [fact.relation.name for fact in chain] == list(route.relations)
        assert [fact.subject for fact in chain] == [route.start, *route.bridges[:-1]]
        assert [fact.object for fact in chain] == list(route.bridges)


@pytest.mark.parametrize("spec", SPECS)
def test_questions_list_four_different_candidates_with_the_answer_among_them(spec):
    questions = miniature_questions(spec)
    assert len({question.id for question in questions}) == len(questions) == 160 + 320 + 640
    for question in questions:
        candidates = question.text.split(" ? ")[1].split(" or ")
        assert len(set(candidates)) == 4
        assert question.answers[0] in candidates
        assert len(question.contexts) == question.hops


def test_candidates_stand_in_random_order():
    questions = miniature_questions("miniature:leak/train")
    places = [q.text.split(" ? ")[1].split(" or ").index(q.answers[0]) for q in questions]
    # 1120 fair draws from four: a count below 203 or above 357 has probability below 1e-6 for each place.
    assert all(203 <= count <= 357 for count in np.bincount(places, minlength=4))


def test_a_wrong_relation_word_finds_another_fact_of_the_same_entity():
    world = build_world("train", leak=True)
    search = FactSearch(world)
    for subject, facts in list(world.facts.items())[::3]:
        for relation in RELATION_NAMES:
            [found] = search.search(f"{subject} {relation}", top_k=1)
            assert found.subject == subject
            if relation in {fact.relation.name for fact in facts}:
                assert found.relation.name == relation


@given(
    words=st.lists(st.sampled_from(["", "mayor", "none", "</answer>", "Zurich"]), max_size=5), top_k=st.integers(1, 3)
)
def test_a_query_without_a_word_of_any_title_finds_nothing(words, top_k):
    assert MiniatureRetriever("miniature:leak/train").search([" ".join(words)], top_k) == [[]]


def test_the_retriever_returns_at_most_top_k_passages_best_first():
    world = build_world("train", leak=True)
    subject = world.roots[0]
    retriever = MiniatureRetriever("miniature:leak/train")
    [three] = retriever.search([f"{subject} {world.facts[subject][1].relation.name}"], top_k=3)
    assert [passage.title for passage in three[:2]] == [str(subject)] * 2
    assert three[0].text == world.facts[subject][1].text
    assert len(three) == 3


def test_specifications_go_through_the_common_readers():
    assert isinstance(read_questions("miniature:leak/train")[0], Question)
    assert len(read_passages("miniature:plain/test")) == 1120


@pytest.mark.parametrize("spec", ["miniature:leak", "miniature:leak/dev", "leak/train", "miniature:leak/train/2"])
def test_a_wrong_specification_is_refused_with_an_example(spec):
    with pytest.raises(ValueError, match=r"must be written miniature:<leak\|plain>/<.*write miniature:leak/train"):
        parse_spec(spec)


def test_too_many_trees_are_refused():
    with pytest.raises(ValueError, match="num_trees asks for more entities than the split has names: lower it"):
        build_world("test", leak=True, num_trees=200)


@given(seed=st.integers(0, 2**32))
def test_drawn_names_are_new_and_start_as_asked(seed):
    rng = np.random.default_rng(seed)
    drawer = NameDrawer("validation", rng)
    names = [drawer.draw(first=str(rng.choice(SYLLABLES[:3]))) for _ in range(30)]
    assert len(set(names)) == 30
    assert {name.first for name in names} <= set(SYLLABLES[:3])
