import pytest

from headwise.text.mentions import head_word, mention_kind
from headwise_papers.data.coreference import (
    COREFERENCE,
    coreference_file,
    coreference_parts,
    read_coreference,
)

GAP_HEAD = "ID\tText\tPronoun\tPronoun-offset\tA\tA-offset\tA-coref\tB\tB-offset\tB-coref\tURL"
GAP_TEXT = "Ann Lee's aunt met Mary. She paid."
HE, LIT = "winogender", "litbank"


def put(folder, name, part, lines):
    path = folder / coreference_file(name, part).name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))


def read(folder, name, part="", **options):
    return list(read_coreference(name, part, folder=folder, verify=False, **options))


def said(passage, places):
    return [passage.words[place] for place in places]


def gap_row(a="FALSE", b="TRUE", *, at="25"):
    return "\t".join(["1", GAP_TEXT, "She", at, "Ann Lee", "0", a, "Mary", "19", b, "url"])


def litbank_rows(*sentences):
    rows = ["#begin document (x); part 0"]
    for sentence in sentences:
        rows += ["\t".join(["x", "0", "0", word, *"________", corner]) for word, corner in sentence]
        rows.append("")
    return [*rows, "#end document"]


def test_gap_finds_pronoun_and_names_by_their_characters(tmp_path):
    put(tmp_path, "gap", "test", [GAP_HEAD, gap_row(), gap_row("FALSE", "FALSE"), gap_row("TRUE")])
    one, both = read(tmp_path, "gap", "test")
    assert one.words == ("Ann", "Lee", "'s", "aunt", "met", "Mary", ".", "She", "paid", ".")
    (mention,) = one.mentions
    assert said(one, [mention.head]) == ["She"] and mention.kind == "pronoun"
    assert said(one, mention.antecedents) == ["Mary"]
    assert said(one, mention.distractors) == ["Ann", "Lee"]
    assert said(both, both.mentions[0].antecedents) == ["Ann", "Lee", "Mary"]
    assert [one.text[start:end] for start, end in one.spans] == list(one.words)


def test_winobias_takes_brackets_off_and_finds_the_other_person(tmp_path):
    lines = [
        "1 [The construction worker] called the nurse because [she] broke [her] leg.",
        "2 The construction worker called [the nurse] because [she] was [ kind].",
        "3 A nurse met [the clerk] and [he] sat.",
    ]
    put(tmp_path, "winobias", "pro_stereotyped_type1.dev", [lines[0], lines[2]])
    first, second = read(tmp_path, "winobias", "pro_stereotyped_type1.dev")
    assert first.text == "The construction worker called the nurse because she broke her leg."
    she, her = first.mentions
    assert said(first, she.antecedents) == ["The", "construction", "worker"]
    assert said(first, her.antecedents) == ["The", "construction", "worker", "she"]
    assert not second.mentions[0].distractors  # "nurse" is marked nowhere in these lines
    put(tmp_path, "winobias", "pro_stereotyped_type1.dev", lines)
    with pytest.raises(ValueError, match="line 2: a person and a pronoun in square brackets"):
        read(tmp_path, "winobias", "pro_stereotyped_type1.dev")


def test_winogender_says_by_its_name_who_is_meant(tmp_path):
    text = "The engineer told the client that she would pay."
    rows = [f"engineer.client.{answer}.female.txt\t{text}" for answer in (0, 1)]
    put(tmp_path, HE, "", ["sentid\tsentence", *rows])
    passages = read(tmp_path, HE)
    assert [said(p, p.mentions[0].antecedents)[1] for p in passages] == ["engineer", "client"]
    assert [said(p, p.mentions[0].distractors)[1] for p in passages] == ["client", "engineer"]
    put(tmp_path, HE, "", ["sentid\tsentence", f"engineer.cook.0.male.txt\t{text}"])
    with pytest.raises(ValueError, match=r"line 2: OCCUPATION\.PARTICIPANT"):
        read(tmp_path, HE)


NOVEL = (
    [("Old", "(1"), ("Tom", "1)"), ("met", ""), ("a", "(2"), ("dog", "2)"), (".", "")],
    [("He", "(1)"), ("fed", ""), ("the", "(2"), ("dog", "2)"), ("of", ""), ("Ann", "(3)")],
    [("his", "(4|(1)"), ("aunt", "4)"), ("Tom", "(1)")],
)


def test_litbank_mentions_refer_to_all_earlier_ones(tmp_path):
    put(tmp_path, LIT, "", litbank_rows(*NOVEL))
    (passage,) = read(tmp_path, LIT)
    assert [said(passage, range(*mention.span)) for mention in passage.mentions] == [
        ["He"], ["the", "dog"], ["his"], ["Tom"],
    ]  # fmt: skip
    he, dog, his, tom = passage.mentions
    assert [m.kind for m in passage.mentions] == ["pronoun", "nominal", "pronoun", "proper"]
    assert said(passage, he.antecedents) == ["Old", "Tom"]
    assert said(passage, dog.antecedents) == ["a", "dog"]
    assert said(passage, dog.distractors) == ["Old", "Tom", "He"]
    assert said(passage, his.antecedents) == ["Old", "Tom", "He"]
    assert said(passage, tom.antecedents) == ["Old", "Tom", "He", "his"]


def test_litbank_passages_are_whole_sentences_of_one_document(tmp_path):
    put(tmp_path, LIT, "", [*litbank_rows(*NOVEL[:2]), *litbank_rows(*NOVEL[1:])])
    assert [len(passage.words) for passage in read(tmp_path, LIT)] == [12, 9]
    assert [len(passage.words) for passage in read(tmp_path, LIT, most_words=9)] == [9]
    put(tmp_path, LIT, "", litbank_rows([("a", "2)")]))
    with pytest.raises(ValueError, match="line 2: a mention of entity 2 ends"):
        read(tmp_path, LIT)


@pytest.mark.parametrize(
    ("words", "head", "kind"),
    [
        ("She", "She", "pronoun"),
        ("the captain of the Pequod", "captain", "nominal"),
        ("Captain Ahab , of Nantucket", "Ahab", "proper"),
        ("my aunt 's", "aunt", "nominal"),
        ("that man who laughed", "man", "nominal"),
    ],
)
def test_the_head_of_a_mention_decides_its_kind(words, head, kind):
    split = words.split()
    assert split[head_word(split, (0, len(split)))] == head
    assert mention_kind(split, (0, len(split))) == kind


def test_malformed_files_and_unknown_names_are_refused(tmp_path):
    put(tmp_path, "gap", "test", [GAP_HEAD, gap_row(at="3")])
    with pytest.raises(ValueError, match=r"gap-test.tsv, line 2: 'She' was wanted at character"):
        read(tmp_path, "gap", "test")
    put(tmp_path, "gap", "test", [GAP_HEAD, "no tabs"])
    with pytest.raises(ValueError, match=r"gap-test.tsv, line 2: 11 columns"):
        read(tmp_path, "gap", "test")
    with pytest.raises(ValueError, match="Did you mean 'gap'"):
        read(tmp_path, "gab")
    with pytest.raises(ValueError, match="Did you mean 'test'"):
        read(tmp_path, "gap", "tests")


@pytest.mark.parametrize(
    ("name", "part", "passages", "mentions"),
    [
        ("gap", "development", 1799, 1799),
        ("winobias", "anti_stereotyped_type2.test", 396, 402),
        ("winogender", "", 720, 720),
        pytest.param("litbank", "", 1889, 15_816, marks=pytest.mark.slow),
    ],
)
def test_real_sets_are_read_whole(data_folder, name, part, passages, mentions):
    found = list(read_coreference(name, part, folder=data_folder))
    asked = [mention for passage in found for mention in passage.mentions]
    assert (len(found), len(asked)) == (passages, mentions)
    for mention in asked:
        right, wrong = set(mention.antecedents), set(mention.distractors)
        assert right and not right & wrong and not (right | wrong) & set(range(*mention.span))


def test_every_part_has_its_file(data_folder):
    for name in COREFERENCE:
        for part in coreference_parts(name):
            assert coreference_file(name, part).is_right(data_folder)
