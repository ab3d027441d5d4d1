"""Tokenizer and demonstrations of the miniature world."""

from itertools import pairwise

import numpy as np
import pytest

from igrpo_train.miniature.dataset import miniature_corpus, miniature_questions
from igrpo_train.miniature.demonstrations import CLEAN, CLEAN_WITH_GUESSES, TURN_LIMIT, Noise, demonstrate, encode_row
from igrpo_train.miniature.protocol import observation, question_text, search_action, user_message
from igrpo_train.miniature.retriever import FactSearch, MiniatureRetriever
from igrpo_train.miniature.settings import AGENT, SCORING
from igrpo_train.miniature.tokenizer import build_tokenizer
from igrpo_train.miniature.world import build_world
from igrpo_train.question import Question
from igrpo_train.search.agent import ActionKind, parse_action
from igrpo_train.search.prompting import Prompting


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer()


def _episodes(noise, hops=3, count=60, leak=True):
    world = build_world("warm", leak=leak)
    search, routes, rng = FactSearch(world), world.routes(hops), np.random.default_rng(0)
    for _ in range(count):
        route = routes[rng.integers(len(routes))]
        yield route, demonstrate(search, route, noise, rng)


@pytest.mark.parametrize("spec", ["miniature:leak/train", "miniature:plain/test"])
def test_texts_of_a_world_survive_the_tokenizer(spec, tokenizer):
    texts = [passage.text for passage in miniature_corpus(spec)]
    texts += [user_message(question.text) for question in miniature_questions(spec)]
    for text, ids in zip(texts, tokenizer(texts, add_special_tokens=False)["input_ids"], strict=True):
        assert tokenizer.unk_token_id not in ids
        assert tokenizer.decode(ids) == text


def test_demonstrations_survive_the_tokenizer(tokenizer):
    for _, rows in _episodes(Noise()):
        for row in rows:
            text = f"{row.context} {row.response}"
            ids = tokenizer(text, add_special_tokens=False)["input_ids"]
            encoded = encode_row(row, tokenizer.get_vocab())
            assert encoded.context_ids + encoded.response_ids == tuple(ids)
            assert tokenizer.unk_token_id not in ids
            assert tokenizer.decode(ids) == text


def test_the_chat_template_renders_start_message_and_turn(tokenizer):
    message = [{"role": "user", "content": "question what is the mayor of ba ka ? ."}]
    rendered = tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
    assert rendered == "<bos> question what is the mayor of ba ka ? . <turn>"
    without = tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=False)
    assert without == "<bos> question what is the mayor of ba ka ? ."


def test_unknown_words_become_the_unknown_token(tokenizer):
    assert tokenizer.encode("Zurich") == [tokenizer.unk_token_id]


def test_the_tokenizer_survives_a_file(tokenizer, tmp_path):
    from transformers import AutoTokenizer

    tokenizer.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    text = "<bos> question what is the mayor of ba ka ? ba ko or du ri . <turn>"
    assert again.encode(text) == tokenizer.encode(text)
    assert again.decode(again.encode(text)) == text
    assert again.chat_template == tokenizer.chat_template
    assert again.pad_token_id == tokenizer.pad_token_id == 0


def test_contexts_grow_by_the_action_and_what_it_found():
    search = FactSearch(build_world("warm", leak=True))
    for _, rows in _episodes(Noise(guess_only=0)):
        for before, after in pairwise(rows):
            action = parse_action(before.response)
            found = observation([fact.text for fact in search.search(action.text, top_k=1)])
            history = f" {search_action(action.text)} {found} <turn>"
            assert after.context == before.context.removesuffix(" <turn>") + history


def test_contexts_are_the_ones_that_the_agent_renders(tokenizer):
    prompting = Prompting(tokenizer, AGENT, SCORING, context_limit=512)
    retriever = MiniatureRetriever("miniature:leak/warm")
    vocabulary = tokenizer.get_vocab()
    for route, rows in _episodes(Noise(guess_only=0), count=30):
        question = Question(id="q", text=question_text(route), answers=(str(route.answer),))
        prompt = prompting.prompt(question)
        history: tuple[int, ...] = ()
        for row in rows:
            encoded = encode_row(row, vocabulary)
            assert encoded.context_ids == prompt.head_ids + history + prompt.tail_ids
            action = parse_action(prompting.decode(encoded.response_ids))
            assert action.valid
            found = prompting.observe(retriever.search([action.text], AGENT.top_k)[0], room=100)
            history += prompting.action_ids(encoded.response_ids, action) + found.ids


def test_guesses_have_the_context_in_which_answers_are_scored(tokenizer):
    prompting = Prompting(tokenizer, AGENT, SCORING, context_limit=512)
    guesses = [(route, rows[-1]) for route, rows in _episodes(Noise()) if rows[-1].weight != 1]
    assert len(guesses) > 10
    for route, row in guesses:
        forced = prompting.forced_answer(str(route.answer))
        assert tokenizer.decode(forced.token_ids) == f"<answer> {route.answer}"
        assert forced.gold.tolist() == [False, True, True]
        assert row.context.endswith(" <turn> <answer>")
        assert row.response.endswith(" </answer>")
        assert encode_row(row, tokenizer.get_vocab()).weights == (4.0, 4.0, 4.0)


@pytest.mark.parametrize("hops", [1, 2, 3])
def test_clean_demonstrations_arrive_at_the_answer(hops):
    for route, rows in _episodes(CLEAN, hops):
        action = parse_action(rows[-1].response)
        assert (action.kind, action.text) == (ActionKind.ANSWER, str(route.answer))
        assert len(rows) == hops + 1


def test_noisy_demonstrations_keep_the_protocol_and_fail_often():
    solved = []
    for route, rows in _episodes(Noise(guess_only=0), hops=2, count=300):
        actions = [parse_action(row.response) for row in rows]
        assert all(action.valid for action in actions)
        assert len(actions) <= TURN_LIMIT
        assert all(action.kind is ActionKind.SEARCH for action in actions[:-1])
        solved.append(actions[-1].kind is ActionKind.ANSWER and actions[-1].text == str(route.answer))
    assert 0.1 < np.mean(solved) < 0.5


def test_guesses_point_to_the_clan_of_the_bridge():
    hits = []
    for route, rows in _episodes(CLEAN_WITH_GUESSES, hops=2, count=300):
        if rows[-1].weight != 1 and len(rows) == 2:
            hits.append(rows[-1].response == f"{route.answer} </answer>")
    assert len(hits) > 30
    assert np.mean(hits) > 0.6


def test_demonstrations_repeat_with_their_seed():
    assert list(_episodes(Noise(), count=20)) == list(_episodes(Noise(), count=20))
