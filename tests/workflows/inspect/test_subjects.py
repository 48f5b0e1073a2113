"""Subjects: every piece finds its word, in every kind of model."""

import pytest
import torch
import transformers as hf
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

import headwise
from headwise.text.treebank import read_treebank
from headwise.workflows.inspect.hugging_face import HuggingFaceSubject, padding_right
from headwise.workflows.inspect.opening import open_subject
from headwise.workflows.inspect.sentence import Sentence
from headwise_papers.data.vocabulary import EOS, Vocabulary
from headwise_papers.models import Hypothesis, Transformer, TransformerConfig
from headwise_papers.recipes.own_subjects import TranslatorSubject, cut_up, joined_up
from headwise_papers.recipes.translator import SubwordCodec, WordCodec
from tests.hf.families import SIZES, Watch, build
from tests.workflows.small_hosts import LINES, host, tokenizer_for
from tests.workflows.small_trees import write_treebank

SENTENCES = [Sentence.of_text(line) for line in LINES]


def wordpieces() -> hf.PreTrainedTokenizerFast:
    """BERT's kind: `dogs` is `dog ##s`, marks are cut off."""
    words = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]", "the", "dog", "##s", "ran", ".", "do"]
    words += ["##n", "'", "t", "ca", "##t"]
    fast = Tokenizer(models.WordPiece({w: n for n, w in enumerate(words)}, unk_token="[UNK]"))
    fast.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    marks = [("[CLS]", 1), ("[SEP]", 2)]
    fast.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=marks
    )
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=fast,
        pad_token="[PAD]",
        unk_token="[UNK]",
        mask_token="[MASK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_max_length=40,
    )


def test_pieces_of_a_word_have_its_number_and_special_tokens_none():
    subject = HuggingFaceSubject(host("BERT"), wordpieces())
    prepared = subject.prepare([Sentence.of_text("the dogs ran."), Sentence.of_text("the cat")])
    assert prepared.tokens[0]["encoder"] == ["[CLS]", "the", "dog", "##s", "ran", ".", "[SEP]"]
    assert prepared.words["encoder"].of.tolist() == [
        [-1, 0, 1, 1, 2, 3, -1],
        [-1, 0, 1, 1, -1, -1, -1],
    ]
    assert [list(words) for words in prepared.texts["encoder"]] == [
        ["the", "dogs", "ran", "."],
        ["the", "cat"],
    ]


def test_words_of_a_treebank_are_kept_where_pieces_reach_over_them():
    subject = HuggingFaceSubject(host("BERT"), wordpieces())
    sentence = Sentence.of_words(["do", "n't", "ran"], "don't ran")
    prepared = subject.prepare([sentence])
    assert prepared.tokens[0]["encoder"] == ["[CLS]", "do", "##n", "'", "t", "ran", "[SEP]"]
    assert prepared.words["encoder"].of.tolist() == [[-1, 0, 1, 1, 1, 2, -1]]


def test_more_tokens_can_be_special():
    subject = HuggingFaceSubject(host("BERT"), wordpieces(), frozenset({".", "##s"}))
    prepared = subject.prepare([Sentence.of_text("the dogs ran.")])
    assert prepared.words["encoder"].of.tolist() == [[-1, 0, 1, -1, 2, -1, -1]]


class SlowTokenizer:
    """A tokenizer that does not say where its tokens stand."""

    is_fast = False

    def __init__(self, fast):
        self.fast = fast

    def __call__(self, *args, return_offsets_mapping=False, **options):
        assert not return_offsets_mapping
        return self.fast(*args, **options)

    def __getattr__(self, name):
        return getattr(self.fast, name)


def test_without_places_every_piece_is_a_word():
    subject = HuggingFaceSubject(host("BERT"), SlowTokenizer(wordpieces()))
    assert not subject.knows_words
    prepared = subject.prepare([Sentence.of_text("the dogs ran.")])
    assert prepared.words["encoder"].of.tolist() == [[-1, 0, 1, 2, 3, 4, -1]]
    assert prepared.texts["encoder"] == [["the", "dog", "##s", "ran", "."]]


def byte_level() -> hf.PreTrainedTokenizerFast:
    """GPT-2's kind: spaces belong to the piece after them."""
    pieces = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "do", "gs", "dogs", "Ġdo", "Ġdogs"]
    merges = [("d", "o"), ("g", "s"), ("Ġ", "do")]
    fast = Tokenizer(models.BPE({piece: n for n, piece in enumerate(pieces)}, merges))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return hf.PreTrainedTokenizerFast(tokenizer_object=fast, pad_token="!", model_max_length=40)


def test_spaces_in_front_of_a_piece_and_broken_characters_find_their_words():
    model = build("GPT-2", vocab_size=300)
    prepared = HuggingFaceSubject(model, byte_level()).prepare([Sentence.of_text("a dogs é.")])
    tokens = prepared.tokens[0]["decoder"]
    assert tokens == ["a", "Ġdo", "gs", "Ġ", "Ã", "©", "."]
    assert prepared.words["decoder"].of.tolist() == [[0, 1, 1, 2, 2, 2, 3]]


def test_the_translations_looked_at_end_at_different_lengths():
    # what tests with batches of different sizes need in order to show that end marks do not count
    prepared = HuggingFaceSubject(host("BART"), tokenizer_for("BART")).prepare(SENTENCES)
    words_BT = prepared.words["decoder"].of >= 0
    assert len(set(words_BT.sum(dim=1).tolist())) > 1
    assert words_BT[:, 0].all()  # the mark that begins


def test_translations_that_have_not_ended_are_counted(monkeypatch):
    model = host("BART")
    for most, unfinished in ((1, 3), (2, 3), (4, 2)):
        subject = HuggingFaceSubject(model, tokenizer_for("BART"), max_translation=most)
        assert subject.prepare(SENTENCES).unfinished == unfinished
    words = WordCodec(Vocabulary.from_sentences([["a"]]))
    own = Transformer(TransformerConfig(len(words), len(words), width=8, heads=2)).eval()
    made = [Hypothesis([4], 0.0, ended=True), Hypothesis([4] * 14, 0.0, ended=False)]
    monkeypatch.setattr(
        "headwise_papers.recipes.own_subjects.greedy", lambda *inputs, **options: made
    )
    prepared = TranslatorSubject(own, words, words).prepare([Sentence.of_text("a a")] * 2)
    assert prepared.unfinished == 1


def test_the_first_word_is_asked_for_at_the_last_of_the_marks_before_it():
    tokenizer = wordpieces()
    ids = tokenizer.convert_tokens_to_ids(["[SEP]", "[CLS]", "the", "dog", "[SEP]", "ran"])
    tokenizer.backend_tokenizer.decoder = decoders.WordPiece()
    row = HuggingFaceSubject(host("BERT"), tokenizer)._written(ids)
    assert row.numbers == [-1, 0, 1, 2, -1, 3] and row.texts == ["[CLS]", "the", "dog", "ran"]
    slow = HuggingFaceSubject(host("BERT"), SlowTokenizer(tokenizer))._written(ids)
    assert slow.numbers == [-1, 0, 1, 2, 3, 4] and slow.texts == slow.names[1:]


def test_an_unknown_first_word_is_no_mark_and_nothing_but_marks_is_no_word():
    tokenizer = wordpieces()
    tokenizer.backend_tokenizer.decoder = decoders.WordPiece()
    subject = HuggingFaceSubject(host("BERT"), tokenizer)
    known = tokenizer.convert_tokens_to_ids
    assert subject._written(known(["[SEP]", "[UNK]", "ran"])).numbers == [0, -1, 1]
    assert subject._written(known(["[SEP]", "[CLS]", "[CLS]"])).numbers == [-1, -1, 0]


def test_translations_that_bart_begins_with_two_marks_ask_for_their_first_word():
    model = host("BART")
    model.generation_config.forced_bos_token_id = 0
    subject = HuggingFaceSubject(model, tokenizer_for("BART"), max_translation=6)
    prepared = subject.prepare(SENTENCES[:2])
    assert prepared.words["decoder"].of[:, :2].tolist() == [[-1, 0]] * 2
    assert prepared.inputs["decoder_input_ids"].shape[1] <= 6


@pytest.mark.parametrize("says_what_is_cut", [True, False])
def test_a_sentence_is_tokenized_once(says_what_is_cut):
    calls = []

    class Counting(SlowTokenizer):
        def __call__(self, texts, **options):
            calls.append(list(texts))
            encoded = super().__call__(texts, **options)
            if not says_what_is_cut:  # as a tokenizer in Python
                encoded._encodings = None
            return encoded

    subject = HuggingFaceSubject(host("BERT"), Counting(wordpieces()))
    sentences = [*SENTENCES[:2], Sentence.of_text("the " * 60)]
    before = subject.prepare(sentences)
    assert before.truncated == 1
    again = subject.prepare(sentences[1:])
    assert again.truncated == 1 and torch.equal(
        again.words["encoder"].of, before.words["encoder"].of[1:]
    )
    assert [len(texts) for texts in calls] == ([3] if says_what_is_cut else [3, 1])


@pytest.mark.parametrize("name", ["BART", "T5"])
def test_written_words_are_numbered_after_the_mark_that_begins(name):
    prepared = HuggingFaceSubject(host(name), tokenizer_for(name)).prepare(SENTENCES[:3])
    rows = prepared.words["decoder"].of.tolist()
    for row, texts in zip(rows, prepared.texts["decoder"], strict=True):
        known = [number for number in row if number >= 0]
        assert known[0] == 0 and known == sorted(known) and max(known) < len(texts)


def test_words_of_pieces_that_a_model_wrote_are_joined_again():
    tokenizer = wordpieces()
    ids = tokenizer.convert_tokens_to_ids(["[PAD]", "the", "dog", "##s", "[MASK]", "ran", "."])
    tokenizer.backend_tokenizer.decoder = decoders.WordPiece()
    row = HuggingFaceSubject(host("BERT"), tokenizer)._written(ids)
    assert row.numbers == [0, 1, 2, 2, -1, 3, 4]
    assert list(row.texts) == ["[PAD]", "the", "dogs", "ran", "."]


def unlimited_tokenizer(name):
    tokenizer = tokenizer_for(name)
    tokenizer.model_max_length = int(1e30)  # as transformers writes it where none was saved
    return tokenizer


@pytest.mark.parametrize(
    ("name", "own", "room"), [("BERT", 700, 700), ("Llama", 900, 900), ("T5", None, 512)]
)
def test_lines_are_cut_to_the_limit_of_the_model_and_to_512_tokens_where_it_has_none(
    name, own, room, monkeypatch
):
    model = build(name) if own is None else build(name, max_position_embeddings=own)
    monkeypatch.setattr(type(model), "can_generate", lambda self: False)
    subject = HuggingFaceSubject(model, unlimited_tokenizer(name))
    assert subject.max_tokens == room
    prepared = subject.prepare([Sentence.of_text("dog " * 1000)])
    assert prepared.truncated == 1 and prepared.inputs["input_ids"].shape[1] == room


@pytest.mark.parametrize("padding", [0, 1])
def test_positions_that_begin_after_the_padding_index_are_counted(padding):
    shape = {**SIZES, "max_position_embeddings": 20, "pad_token_id": padding}
    torch.manual_seed(0)
    model = hf.RobertaForMaskedLM(hf.RobertaConfig(**shape))
    tokenizer = unlimited_tokenizer("RoBERTa")
    assert HuggingFaceSubject(model, tokenizer).max_tokens == 19 - padding
    table = headwise.inspect(model, tokenizer, ["the dog " * 100], sample=0)
    assert len(table) == 8


def test_what_the_largest_score_means_follows_from_the_model():
    def predicts(model, tokenizer):
        subject = HuggingFaceSubject(model, tokenizer)
        with torch.no_grad():
            return subject.forward(subject.prepare([Sentence.of_text("the dog")]).inputs).predicts

    assert predicts(host("BERT"), wordpieces()) == "masked"
    assert predicts(host("BERT"), tokenizer_for("BERT")) == "label"  # it has no mask
    tokenizer = tokenizer_for("GPT-2")
    tokenizer.pad_token = "</s>"
    assert predicts(host("GPT-2"), tokenizer) == "next"
    assert predicts(host("BART"), tokenizer_for("BART")) == "next"
    classes = hf.BertForSequenceClassification(hf.BertConfig(**SIZES)).eval()
    assert predicts(classes, wordpieces()) == "class"
    assert predicts(hf.BertModel(hf.BertConfig(**SIZES)).eval(), wordpieces()) == "nothing"


def test_our_pieces_are_those_of_the_whole_text(small_translation):
    subject = open_subject(small_translation)
    assert isinstance(subject, TranslatorSubject)
    codec = subject.source
    assert isinstance(codec, SubwordCodec)
    for line in [*LINES, "the dogs saw a catdog.", "zebra's ½ (so)"]:
        cut = cut_up(codec, Sentence.of_text(line))
        assert cut.ids == codec.encode(line) and cut.names == codec.tokens(line)
        assert len(cut.words) == len(cut.ids) and cut.words == sorted(cut.words)


def test_marks_that_touch_a_word_are_told_from_it_in_our_pieces(small_translation):
    codec = open_subject(small_translation).source
    cut = cut_up(codec, Sentence.of_text("the dogs."))
    assert cut.words[0] == 0 and set(cut.words) == {0, 1, 2}


def test_what_our_model_wrote_is_cut_into_words(small_translation):
    codec = open_subject(small_translation).target
    ids = codec.encode("the dogs saw .")
    made = joined_up(codec, ids)
    assert list(made.texts) == ["the", "dogs", "saw", "."] and set(made.words) == {0, 1, 2, 3}


def test_a_codec_in_words_takes_the_words_of_a_treebank(tmp_path):
    words = WordCodec(Vocabulary.from_sentences([line.split() for line in LINES]))
    (tree, *_) = read_treebank(write_treebank(tmp_path / "trees.conllu"))
    cut = cut_up(words, Sentence.of_tree(tree))
    assert cut.names == list(tree.words) and cut.words == list(range(len(tree.words)))


def test_a_translator_is_read_with_its_own_translation(small_run):
    subject = open_subject(small_run, special=["<bos>"])
    prepared = subject.prepare(SENTENCES[:2])
    encoder, decoder = prepared.words["encoder"].of, prepared.words["decoder"].of
    lengths = prepared.inputs["source_lengths"]
    source = prepared.inputs["source"]
    assert (source[torch.arange(2), lengths - 1] == EOS).all()
    assert (encoder[torch.arange(2), lengths - 1] == -1).all()
    assert (decoder[:, 0] == -1).all() and prepared.texts["decoder"][0][0] == "<bos>"
    assert prepared.tokens[0]["decoder"][0] == "<bos>"


def test_marks_that_a_model_writes_have_names():
    words = WordCodec(Vocabulary.from_sentences([["a"]]))
    model = Transformer(TransformerConfig(len(words), len(words), width=8, heads=2)).eval()
    prepared = TranslatorSubject(model, words, words).prepare([Sentence.of_text("a a")])
    assert len(prepared.tokens[0]["decoder"]) == prepared.inputs["target"].shape[1]
    assert joined_up(words, [0, 4, 1]).names == ["<pad>", "a", "<bos>"]


@pytest.mark.parametrize("name", ["BERT", "GPT-2", "BART", "T5", "Llama"])
def test_attending_shows_what_a_whole_pass_shows(name):
    subject = HuggingFaceSubject(headwise.adopt(host(name)), padding_right(tokenizer_for(name)))
    inputs = subject.prepare(SENTENCES[:2]).inputs
    seen = {"forward": Watch(), "attend": Watch()}
    for way, watch in seen.items():
        with torch.no_grad(), headwise.observe(subject.model, watch):
            getattr(subject, way)(inputs)
    assert seen["attend"].names == seen["forward"].names
    pairs = zip(seen["attend"].seen, seen["forward"].seen, strict=True)
    assert all(torch.equal(one.out, other.out) for (_, one), (_, other) in pairs)
    if name in ("BERT", "GPT-2"):
        assert subject._body is not subject.model
