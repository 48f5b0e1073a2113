"""Parallel corpora: where their files lie, what they must hold, and where they come from.

| name | languages | files below the data folder | text |
| --- | --- | --- | --- |
| multi30k | any two of en, de, fr, cs | `multi30k/{train,val,test_2016_flickr}.{language}` | raw |
| iwslt14 | de, en | `iwslt14-de-en/{train,valid,test}.{language}` | lower-cased, Moses |
| iwslt15 | en, vi | `iwslt15-en-vi/train.{language}`, `iwslt15-en-vi-devtest/tst201*` | tokenised |
| wmt14 | en, de | `wmt14-en-de/{train,newstest2013,newstest2014}.{language}` | tokenised |
| tatoeba | en with de, fr or ru | `tatoeba-en-de/{train,valid,test}.{language}` | raw |
| opensubtitles | en, ru | `opensubtitles-en-ru-voita/{train,valid,test}.{language}` | tokenised |
| libreoffice-help | en with de, fr, om, ru or vi | `libreoffice-help/en-vi/train.en.txt` … | raw |

Files are plain or `.xz`, a sentence a line. IWSLT'14 is the folder tmp of fairseq's
prepare-iwslt14.sh, IWSLT'15 and WMT'14 are the files of nlp.stanford.edu/projects/nmt: all three
have Moses' escapes (`&apos;`).

Tatoeba en-ru has 46,085 pairs to train on. Its training files of en-de and en-fr are shuffled, so
that their first 46,085 pairs (`train_pairs` of `headwise_papers.data.translation`) make an equal sample.
OpenSubtitles are 10,678 sentences of the consistency tests of Voita et al. (2019, "When a Good
Translation is Wrong in Context"), taken out of their context: chosen for deixis, ellipsis and
names, so no random sample of subtitles, and some Russian sides are rewritten by the authors.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from headwise.config import suggestion
from headwise.text.source import DataFile, github
from headwise_papers.data.provenance import unzipped

__all__ = ["CORPORA", "Corpus", "corpus_file", "corpus_named"]

STANFORD = "https://nlp.stanford.edu/projects/nmt/data"


@dataclass(frozen=True)
class Corpus:
    """A parallel corpus: its languages, its parts, and the names of its files."""

    name: str
    languages: tuple[str, ...]
    parts: tuple[str, str, str]  # to train on, to choose by, to test on
    path: str  # with {pair}, {part} and {language}
    origin: str
    further: tuple[str, ...] = ()  # parts that are read on request only
    centre: str = ""  # where there are only pairs with this language
    train_path: str = ""  # where training files lie elsewhere

    def pair(self, source: str, target: str) -> tuple[str, str]:
        """Two languages in the order of file names; a pair that is not there is refused."""
        known = source != target and {source, target} <= set(self.languages)
        if not known or self.centre not in ("", source, target):
            only = f", one of them {self.centre}" if self.centre else ""
            raise ValueError(
                f"{self.name} has the languages {', '.join(self.languages)}, and source and target "
                f"are two of them{only}; got {source!r} and {target!r}."
            )
        first, second = sorted((source, target), key=self.languages.index)
        return first, second


CORPORA = {
    corpus.name: corpus
    for corpus in (
        Corpus(
            "multi30k",
            ("en", "de", "fr", "cs"),
            ("train", "val", "test_2016_flickr"),
            "multi30k/{part}.{language}",
            "data/task1/raw of github.com/multi30k/dataset",
            further=("test_2017_flickr", "test_2017_mscoco", "test_2018_flickr"),
        ),
        Corpus(
            "iwslt14",
            ("de", "en"),
            ("train", "valid", "test"),
            "iwslt14-de-en/{part}.{language}",
            "the folder tmp that fairseq's prepare-iwslt14.sh makes",
            further=("train-subset",),
        ),
        Corpus(
            "iwslt15",
            ("en", "vi"),
            ("train", "tst2012", "tst2013"),
            "iwslt15-en-vi-devtest/{part}.{language}",
            "nlp.stanford.edu/projects/nmt/data/iwslt15.en-vi",
            train_path="iwslt15-en-vi/{part}.{language}",
        ),
        Corpus(
            "wmt14",
            ("en", "de"),
            ("train", "newstest2013", "newstest2014"),
            "wmt14-en-de/{part}.{language}",
            "nlp.stanford.edu/projects/nmt/data/wmt14.en-de",
            further=("newstest2012", "newstest2015"),
        ),
        Corpus(
            "tatoeba",
            ("en", "de", "fr", "ru"),
            ("train", "valid", "test"),
            "tatoeba-{pair}/{part}.{language}",
            "an export of www.manythings.org/anki: its deu.txt, fra.txt or rus.txt in the same "
            "folder will do, and is split by the hash of its sentences; the known en-ru is of "
            "eng-rus in data/test, data/devtest and data/release/test of "
            "github.com/Helsinki-NLP/Tatoeba-Challenge at d34a89ac102f",
            centre="en",
        ),
        Corpus(
            "opensubtitles",
            ("en", "ru"),
            ("train", "valid", "test"),
            "opensubtitles-en-ru-voita/{part}.{language}",
            "the right variants in consistency_testsets/*.json of "
            "github.com/lena-voita/good-translation-wrong-in-context at bb59382f6bc6, cut at _eos, "
            "each English sentence once",
        ),
        Corpus(
            "libreoffice-help",
            ("en", "de", "fr", "om", "ru", "vi"),
            ("train", "valid", "test"),
            "libreoffice-help/{pair}/{part}.{language}.txt",
            "the help pages of LibreOffice 7.4 (Debian's libreoffice-help-en-us and its "
            "translations, 4:7.4.7-1+deb12u14), paragraphs aligned by page and id",
            centre="en",
        ),
    )
}
LENGTHS = {  # lines of published files whose checksum is not known
    "iwslt14-de-en/train": 160_239,
    "wmt14-en-de/train": 4_468_840,
    "wmt14-en-de/newstest2013": 3_000,
}


def corpus_named(name: str) -> Corpus:
    """A corpus of `CORPORA`; other names are refused with a suggestion."""
    if name not in CORPORA:
        raise ValueError(f"There is no parallel corpus {name!r}. {suggestion(name, CORPORA)}")
    return CORPORA[name]


def corpus_file(name: str, part: str, language: str, *, pair: Sequence[str]) -> DataFile:
    """One language of one part.

    >>> corpus_file("tatoeba", "test", "de", pair=("en", "de")).name
    'tatoeba-en-de/test.de'

    Args:
        name: of the corpus.
        part: for example "train".
        language: of the file.
        pair: both languages, in any order.
    """
    corpus = corpus_named(name)
    parts = (*corpus.parts, *corpus.further)
    if part not in parts:
        raise ValueError(f"{name} has no part {part!r}. {suggestion(part, parts)}")
    template = corpus.train_path if part == "train" and corpus.train_path else corpus.path
    both = "-".join(corpus.pair(pair[0], pair[1]))
    path = template.format(pair=both, part=part, language=language)
    urls = _urls(name, f"{part}.{language}")
    make = unzipped if name == "multi30k" else None
    folder, _, file_name = path.rpartition("/")
    checksum = CHECKSUMS.get(folder, {}).get(file_name, "")
    return DataFile(path, checksum, corpus.origin, urls, make)


def _urls(name: str, file_name: str) -> tuple[str, ...]:
    """Where a file is public and as it should be."""
    match name:
        case "multi30k":
            return (github("multi30k/dataset", "a3d2e0d26b56", f"data/task1/raw/{file_name}.gz"),)
        case "iwslt14" if not file_name.startswith("train"):
            path = f"iwslt14.tokenized.de-en/tmp/{file_name}"
            return (github("johntzwei/nmt_iwslt", "7750e75a0379", path),)
        case "iwslt15":
            return (f"{STANFORD}/iwslt15.en-vi/{file_name}",)
        case _:
            return ()


CHECKSUMS = {  # of the unpacked files, by folder
    "iwslt14-de-en": {
        "test.de": "e718c783e33160b7d72af8f733756a466e0d0c016eff8ab624c1b0d1d01cbbdf",
        "test.en": "4b127beb9050511a3e6209cd837ff36f623a3a423666b32aba6e208b7330cf4c",
        "train-subset.de": "4c61b160a6719aec346774c193287c17706a8cb632720958c8633115057de1ec",
        "train-subset.en": "75acc4789ac3e34c0bd27e7d02a1b1814f143eb4d9b97e0a61d3d4d652a748f8",
        "valid.de": "3f051579c9d8c7281a6ea8c72ad4ae09dbaa9bb24dfd41166f2c3a3df7cd940a",
        "valid.en": "e6d7317a9772cd1ed970910c611e9e7dada1f34439269b44a9d801334bff948d",
    },
    "iwslt15-en-vi-devtest": {
        "tst2012.en": "b8fbcd0d4199d41276421d1f7228298df67dd9e2c5c134c2ee8cdf3ec27801e2",
        "tst2012.vi": "01004078b3f36b0c46e81b65fc6851230b3c823405c76d1d82ef3b786b512ff0",
        "tst2013.en": "3860ce60bc5b85d96cc2d3d580cf1bc9d62440e939c1b964676d3607c4e8f1df",
        "tst2013.vi": "29af16842808da2812b8fd4d47fc05d082ba870e60ab7755090ad04b380994cd",
    },
    "iwslt15-en-vi": {
        "train.en": "c26dfeed74b6bf3752f5ca552f2412456f0de153f7c804df8717931fb3a5c78a",
        "train.vi": "707206edf2dc0280273952c7b70544ea8a1363aa69aaeb9d70514b888dc3067d",
    },
    "libreoffice-help/en-de": {
        "test.de.txt": "1bcce7d4a588aaaf8177fab2046825945f92d35aad60fd27268b50e15ebcc82d",
        "test.en.txt": "41ed087bbae1b2501f480ab1519bf98e2418c55d6215d9464afb7b7152e16a55",
        "train.de.txt": "c3bfd87ed9ae80778f4d704770921820d6d08184311e4f3a54cd2359d4c5769d",
        "train.en.txt": "87fac96769ed3b1d36b8bb5cb49447a8b47a0f21d97f3ea525991ad2e1fd7a41",
        "valid.de.txt": "9f0de521f3c646efcbd883dde22f972ccbec272fc0b834ce394c0e0f97b320b3",
        "valid.en.txt": "66d9cef67a96008f2f8d96ee7fa282afb86073bddee7000ff9765426b2fd1ed6",
    },
    "libreoffice-help/en-fr": {
        "test.en.txt": "e7b753fae441256899c69131850f8a066c9d48795601a758395f3f2833fe30e3",
        "test.fr.txt": "5baca5b4c3769e6f456fd75f058f9e1551be025a2f8a4c6a7077c204e57e4585",
        "train.en.txt": "33c904091b1bfa494e038d17d31d04cafc193df960614b1adf8d6eee58c1386e",
        "train.fr.txt": "bffcda4252d6b53cfddc2ae6ef8a1e742eb716b43fe178d7dc2b4008f4a72542",
        "valid.en.txt": "b3b2bf2f146880c5c80ef0ee2723f951ce6eac02d062129cbf2f1013561f0194",
        "valid.fr.txt": "2f92488a1f2816a4d30de692ce534e56c7b065bdf567eb45f22b531b737b5646",
    },
    "libreoffice-help/en-om": {
        "test.en.txt": "2e8bd68759966e07a0fd774acae554909b491d4eb0bbfa4e29072203b9cc9194",
        "test.om.txt": "cf5415d30be8b164af1c4fe1c3c991dcf86c029cb9f310dcc9c83b2edaf4fe6c",
        "train.en.txt": "75d21c1e299bb5e1251859686ceb25bed66e28f75afbbab264fcf2c65f76751f",
        "train.om.txt": "39eb1588e3e6a2632387d558baa6b8ae26af91faec64b51ce3ee912947db7a6f",
        "valid.en.txt": "ccf567ce2487e51ff8e8f021708872a25029a179ee908bf33e33c7dedb0982f5",
        "valid.om.txt": "36099c618c6a88600baf5d33bb70246588b24b0fe7dd7a59d051f98b86758ae8",
    },
    "libreoffice-help/en-ru": {
        "test.en.txt": "87b2463783367e63fc480da964acb98dacd0151c111e571a9f39de63776c4179",
        "test.ru.txt": "5da609fa2cab9958d5057b6d6c33e448b8435a55123773eab5a533c74058eb5c",
        "train.en.txt": "f10d6fdd95c1080246ea34aabc62643b235d4d6127ecf64e32028aae2b3f84b6",
        "train.ru.txt": "f46dcba78ae8df630ce4dd1ddd7bec01a6fe3e0aa3df5c9cfe7acd41d361a60b",
        "valid.en.txt": "dda08a0ef34495f47a13193ac98f8bf15cd7116c5e09bdf6b25265ddb89e7345",
        "valid.ru.txt": "25e6ede6710016fa449c74fc5f7b55761de02fbc69003ee596ab84f950208149",
    },
    "libreoffice-help/en-vi": {
        "test.en.txt": "781e8a4fc48bffb5a54d955750e5aa12c87ab74d81cdf2186140ddb26b36cfba",
        "test.vi.txt": "e4719695c5ef401038748e250ff8727bd1df96f1d793c4d5b749ef14ffd72b7c",
        "train.en.txt": "82f2981b08b19f36578d3b241b95150c3ff395b26e7098ab257c0b92c9b932c1",
        "train.vi.txt": "6bf399faea3aa6a81af74a9db1b3978d466e9728aae7ff51d24eaa9ce03b7916",
        "valid.en.txt": "26f7b87afa179d45785ee246d3bcb6b1abd0e683d5c67c4bcd87e5b8e929e87d",
        "valid.vi.txt": "0fa5d3d63bd25a1704bcea13b2b4fe71ea64e91d14aadd80c572749e4313a8a1",
    },
    "multi30k": {
        "test_2016_flickr.cs": "45adb85f688de8407fddcbe1b36dca15d12aab868149b337e2576f2d6d2ff8d8",
        "test_2016_flickr.de": "4be6b5b3236b79c25475c6bb829800a7ce559e9ba7a1f6c2394fe4d40be46d16",
        "test_2016_flickr.en": "399a4382932c1aadd3ceb9bef1008d388a64c76d4ae4e9d4728c6f4301cac182",
        "test_2016_flickr.fr": "cb3160d69b002bb638e66cc7612fcd56cb0af82eadc9c142dedc438afb885ef6",
        "test_2017_flickr.de": "c3078bc3b36808bf9d20eb2347ed6137016179ef59ec0d2b9b8ecc3fb2880081",
        "test_2017_flickr.en": "ce1450ddc5ab0834502579d77a170849952e15a2938b34cc503bdc25ebb4fb98",
        "test_2017_flickr.fr": "6f3764e31dac41e9455e612958bcfd4e877c5e15cd66df2c2b2be6d9bd83e5b6",
        "test_2017_mscoco.de": "58277df3c75f92f7145a11b910b553d1cf82c439249d4dc237c899609eafac22",
        "test_2017_mscoco.en": "43051fdfa86fd5395182e718a94ca67b1b227b9f7c79596ff0f6b813216981d2",
        "test_2017_mscoco.fr": "39cde3f43f32b0a6bf29ce4917a46329ff32e53070c2fac87506695a740ae0a0",
        "test_2018_flickr.cs": "1db59fe6980c9b3f9bade65122a985e71150214837d76f4768a5a8384c0b2dc7",
        "test_2018_flickr.de": "39fcc8b3331d76fb42d648d019c6898b0d5e58baac87bc2a0bb93f44ec8db207",
        "test_2018_flickr.en": "4e585c2dd525911a6ea7730e9d0b516239af3f1b1ffae6a2130223cfb639f25e",
        "test_2018_flickr.fr": "234b4a887da0da4801a3e2c6f21336231ff7dd46daeb80cfa1b551c8bbb78239",
        "train.cs": "2be68b38c8d586ff4f54eb13cc6e1baaaa053695b3f070d3038303a47f2268da",
        "train.de": "2c2b73fd2b548fbcde3a875e0a78d6ee94d498bfdee6bd3eae3945779e9ddf72",
        "train.en": "460a15fbd157e34a7a9957ee388c1ca247fe47af3ef25fb50442af6c274e0fc6",
        "train.fr": "5925a3c18f1587b6b54b87743106e6e8ab93618edb6f65d19eac0621f853a10d",
        "val.cs": "d53827e469b0a1ca8d57e9e26b2b64c4bc4b33f5479c7b03ae87ae5c882c3e33",
        "val.de": "660e09eb7e1da2f856ea13ee5ad3cf6d36b3d5b0b733c857e94c5747a3dfc660",
        "val.en": "1f2a23d992769b5b3d209b0a10dd0b77c08cceb1f20dfb97ed0aafa49d107227",
        "val.fr": "5304e444d842e962b2dda4d816b70b22a1765b15401642b7ca37a67477e708dc",
    },
    "opensubtitles-en-ru-voita": {
        "test.en": "594c85c0b34c85df66576c3f8e9f0a7ad49c48a64b1b9c528dbbddb738bce607",
        "test.ru": "a7f2361d066e811b261c4d71ba75b2fca996ed7713e9fdfa498110b4aca1368d",
        "train.en": "d2476cd32d14ded06b45886cf3eea0215ad0b0792c4b82f26192217cc42b5075",
        "train.ru": "21c812760276b51ded7ac3699c46de9835b14ebc9b4f0c16418193a1035f62ff",
        "valid.en": "07f07000af996152801b50cc2ec396c714b2f5ab3cb84432fa159c3509562643",
        "valid.ru": "48242fbcf406d15e1ffe3d0cf66bef3689e115ce697c1c658f4cb06c498c1aab",
    },
    "tatoeba-en-de": {
        "test.de": "278d2c26b6274d31026e6581923ff643e6382032f95e805a011f746bb4f760ab",
        "test.en": "23822853b159d2fecca5b918cbc9b184c35aed73d3c18f6f23b1d2e334a4ef47",
        "train.de": "02ccb39d3ea65579cf72e729306cfad3a549a2aab4e87a4ae0975883bad99f52",
        "train.en": "e3e65a68e79ee0f5162745efa2811c475d87966f9684fe977de2a34c1e123831",
        "valid.de": "d6c67cb9c5c2f164964fd64b3ac70446bf597459b1bb70da08e6e4b0290c4160",
        "valid.en": "c794e013a058a4123e8d75d8cc1128c4fe1fda4bd178e30abd62e73201b8e100",
    },
    "tatoeba-en-fr": {
        "test.en": "ed2c2494f77ea9155d0c5e104669d0f4e69808c31d185193f7d0caae36b564d7",
        "test.fr": "13a241faed2ec4ea2efed10dd3095e97084456c47796a5517be115be19b8928f",
        "train.en": "68368d69ebd1158c87e8e9b09a8ac1d8680fe69b60f0abc6c8fbdd22096b36ee",
        "train.fr": "9704d179812500052188b7f8e2d51df92b0cb400614dd5726d3db3192bf84155",
        "valid.en": "0d379e0759328b600e61e9d5f3c4981b7d7e9b07738e53fc713dd161cc7bdd11",
        "valid.fr": "89533af5f68a7f80602fe090a94abd2e255c0afcef4a86074854a7d851bd98c5",
    },
    "tatoeba-en-ru": {
        "test.en": "afa5d81e6dd7c5cca20f1c936ccf530b42f66f34fb171c5ec7710b1a6a264ed7",
        "test.ru": "4208f512aaf8d895fc404a6a7d1b28b32510adc23f575aabbca5766812e1b1a6",
        "train.en": "6c755c311b40eea938e689547d63883e657237feb9a5cc59c8bc77264ea5d59a",
        "train.ru": "dc89a14dba574600a12811fc029d2f7f41eae4c8671d3068ceec0bfe9e472c43",
        "valid.en": "47d6cde799cf0659d32438a73f7f692bfe846e2147370f8db9b16908751c9bbf",
        "valid.ru": "249f95f12f48a05d6586be3e098e8a2adbd866c8cc2c18a1daa66d2fe1b47105",
    },
}
