import pytest

from headwise_papers.data.annotations import TREEBANKS
from headwise_papers.data.characters import CHARACTER_FILES
from headwise_papers.data.classification import READERS
from headwise_papers.data.coreference import COREFERENCE
from headwise_papers.data.pretraining import PRETRAINING_FILES
from headwise_papers.data.tasks import TAGGING_SETS, TEXT_TASKS
from headwise_papers.data.translation import CORPORA
from headwise_papers.recipes.data import data_sets, fetch_set


def test_every_labelled_set_is_listed():
    listed = {state.name for state in data_sets(None)}
    assert listed >= {*READERS, *CORPORA, *CHARACTER_FILES, "flickr8k"}
    assert listed >= {*TREEBANKS, *COREFERENCE, "tatoeba-en-ru", "opensesame"}
    assert listed >= {*TEXT_TASKS, *TAGGING_SETS, *PRETRAINING_FILES} - {"sst2"}  # it is in sst


def test_a_set_is_there_when_all_files_of_a_version_are(tmp_path):
    def states():
        return {state.name: state for state in data_sets(tmp_path)}

    (tmp_path / "ag_news").mkdir()
    (tmp_path / "ag_news/ag_news.test.tsv.xz").write_bytes(b"123")
    assert states()["ag_news"].where is None and states()["ag_news"].size == 0
    (tmp_path / "ag_news/ag_news.train_subset.tsv").write_bytes(b"12345")
    assert states()["ag_news"][1:3] == (tmp_path / "ag_news", 8)
    (tmp_path / "ag_news/train.csv").write_bytes(b"1")
    assert states()["ag_news"].size == 4  # the published version comes first
    assert states()["imdb"].where is None


def test_what_no_address_gives_is_refused_with_its_origin(tmp_path):
    with pytest.raises(ValueError, match=r"asked for at https://www.yelp.com/dataset"):
        fetch_set("yelp_reviews", tmp_path)
    with pytest.raises(ValueError, match=r"train.de cannot be downloaded.*prepare-iwslt14.sh"):
        fetch_set("iwslt14", tmp_path)
    with pytest.raises(ValueError, match=r"train.en cannot be downloaded.*manythings.org/anki"):
        fetch_set("tatoeba", tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("europarl", "Multilingual-Parallel-Direct-Europarl at 4e284f102c5d: paragraphs paired"),
        ("msdocs", r"nav-content.ru-ru at 034a25c59697 on GitHub: pages marked"),
        ("freesoft", r"wesnoth-1.16 packages .*split by page"),
        ("classic-books-en", "classic-books-markdown at 944882722e9a: 261 of its 756 files"),
        ("word-align-en-fr", "awesome-align at 5f150d45bbe5: English, French and links"),
    ],
)
def test_sets_without_an_address_say_how_they_were_made(tmp_path, name, said):
    with pytest.raises(ValueError, match=f"cannot be downloaded as it is; take .*{said}"):
        fetch_set(name, tmp_path)
    note = next(state.note for state in data_sets(None) if state.name == name)
    assert "made from" in note


def test_a_misspelt_set_gets_a_suggestion(tmp_path):
    with pytest.raises(ValueError, match="Did you mean 'multi30k'"):
        fetch_set("multi30", tmp_path)


def test_files_that_are_there_are_not_fetched_again(data_folder):
    paths = fetch_set("amazon", data_folder)
    assert [path.name for path in paths] == ["amazon_mds.tsv.xz"]


def test_the_sets_at_hand_are_found(data_folder):
    found = {state.name for state in data_sets(data_folder) if state.where}
    assert found >= {
        "imdb",
        "ag_news",
        "newsgroups",
        "sst",
        "amazon",
        "yelp",
        "multi30k",
        "iwslt14",
        "iwslt15-tests",
        "tatoeba",
        "libreoffice-help",
        "enwiki-xml-6mb",
        "ptb",
        "wikitext-2",
        "flickr8k",
        "tatoeba-en-ru",
        "opensubtitles",
        "debian-docs-en",
        "filipino",
        "oromo",
        "opensesame",
        "cola",
        "qnli",
        "masakhanews-orm",
        *TAGGING_SETS,
        *TREEBANKS,
        *COREFERENCE,
    }
