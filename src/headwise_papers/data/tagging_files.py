"""The files of named-entity sets, with the checksums of what they must hold."""

from headwise.config import suggestion
from headwise.text.source import DataFile

__all__ = ["TAGGING_SETS", "tagging_files"]

PARTS = ("train", "dev", "test")
MASAKHANER = "github.com/masakhane-io/masakhane-ner at ba5843cd"
CONLL = (  # the text is Reuters', for research only
    "corpus/CoNLL-2003/eng.{train,testa,testb} of github.com/synalp/NER at c0ea07c8"
)
CHECKSUMS = {  # of the unpacked files: train, dev and test
    "conll2003": (
        "eac0822f501353f265383ddf1edb0dcd42a1b6eefd3e383d7074db98c38eb41c",
        "aedc4ccbd1ae9795feaa0e86fe72d195b0258abed9d705b630d1c889276fac1e",
        "0632f32c090ef31c223135b7fee3187a7cf8e65c4015c7866bb7783428cdd9a6",
    ),
    "masakhaner-amh": (
        "44d6e06d6bedd2b902578ae658fc3ad6548b8876166a821893d081393a92afe4",
        "f7561345b55d41ccf472c1306e0a0a8f8bc3d46ac535f5dee3d1da3f1a0bb816",
        "3968ef19c31c480859364f927ac6370ae5c33c9557437e87c0b6f7801df461b6",
    ),
    "masakhaner-bam": (
        "71e3e71d34911dd80dc52a8debf8c70bbabe1df861f8bcac506f56ad132a88cb",
        "12c64358f3a4654871d3c25d9ad522c177e0b15826cc6f623a53aed33c5e8843",
        "94f5d3afdd7e28b307272e46a886a777ce967d7c27ee7b9f01e0b157d2e70c9b",
    ),
    "masakhaner-bbj": (
        "e1e798f55c557b286ed9fa69813c4cc712423bf55de9e14c59952692af3a688f",
        "88e12405257a736fe9693543e6456bd2c30fd2dedbfb3ffc8f7c74008fde7dc7",
        "ffed4acae5d6a7302e00551c6f9164674d57bd1890e9a7d652d9e6fc293a014d",
    ),
    "masakhaner-ewe": (
        "2cc9702099a13a64324a19810197dbb6da7902a2f6efd27c863b2019d32b6c35",
        "c75840e2d1e17d53d3782f4be549beb649c8c7916ebee34c13e0744eab690122",
        "021383248587453231b223c9b087a804afe23230c6206e50ecdc28eed2ce3eaf",
    ),
    "masakhaner-fon": (
        "f262e479e622ee35add91e4e32d0d2df100c4eaa9761f4ef639104d4dbbcc6a1",
        "debccd7b7a7f71201c9099370e4ed9b00899ff24d4b16919c89e0a61fa13f9b5",
        "72a8bb0ce72160b3d2c5d674303fe5337ed1d304e6ecc488393e22592a8d44aa",
    ),
    "masakhaner-hau": (
        "271bc078ad43a3243791e31434f8b9cc1beb3f429d25cd21161b46d85bd4d725",
        "f4a8f12ee385026f293e3b5dda3751ab6501914aac4bb9f513970f026822432e",
        "ba380dad8405b0d3f3cec866e4c7b40df9151bf4d2a13f158c5a1cc8a550d42e",
    ),
    "masakhaner-ibo": (
        "b9cc67f8c8629f470c1a88506e34dc338a493337e5ff9e87b5acc84c09c6c458",
        "94a1fb7640d8a89e0051ce69dd6bed23e1689f72903782eb1eb0a9096fbc31fa",
        "944ede1e47eccb288b68b99857a45104af0641618946195b2dc7954a686591ee",
    ),
    "masakhaner-kin": (
        "4e4603d24440e99c3a08b6994ff730018a4fa2f280f0beda21ce1a2bb1e3b98f",
        "c155c664dd96b6b478b4433a3b5839d95a39accfd6a1dc6d5a4d0d954031035b",
        "d905e1d2c9f239f908c6b4a7ab2111715152b97a91e066306c9a38043e00d995",
    ),
    "masakhaner-lug": (
        "bf08979c2482d25d46cbe88e6451e6f824c09c4ffd8c1ca3a10d04889f0b81b5",
        "9d6e0e1f4f121c379db029fdca39c07e11d7cab2d81f63237b4bc6480327962f",
        "e62661e2b391cc68d7efd48bf273d63e7b7f1265ce20fb3f3daa05c23816ec18",
    ),
    "masakhaner-luo": (
        "a52d38f760a05f528c830fb26f75253fe4cff6ae4849c864d6f9e6dcdb1363c2",
        "94a763e651cef901be72775024b867fa1f05d44307c667aa52579df6664fdc41",
        "3bf3672ee6b2d93a3ac2f3f6f750629ff22324efeb504c253c8daede957ee987",
    ),
    "masakhaner-mos": (
        "18183edbba55c875925f64dec8fd87a45cc540b019fa372cbf9701f1a019315e",
        "0f67b1bae973af84d8b26c95c58448345df9d59db368ad871307ecaf7f721bd2",
        "15cfefeafa2476671c686414e23d34a78a5cf465d2b857b486ba640e1f3a5a56",
    ),
    "masakhaner-nya": (
        "2ebd50fd0c9e0fed24fcd0cdf8ea6997747e32cb210f426e429be79145ca5bf2",
        "33f07f740efabc72edf514ff7f4c5202deee9d79b1863754b633bb68784ad575",
        "ab727f73a17df07e6d48e7551636083b9380054add610cbc915c13b4f0c8ac70",
    ),
    "masakhaner-pcm": (
        "5d48109ab18b675f783ab8aecf69c163aec13a5fc9f4cb470dd51d3f973fc059",
        "1de6842395ee54c4cc5b8b950c2bbf3fbbd2187a9ce38006441e681b33613737",
        "5c48d478f7c87a8f6c21d8abcb79f02fad84032d42810cc1df3e30bd5980f161",
    ),
    "masakhaner-sna": (
        "b1c382adce8bcc06a4cf684decc8648a0a1af77a55147d12271b73af33a8b303",
        "8a37099efbb6022e68740809788d4f6a48331f8d7aba78dff20cf072ef07bad8",
        "97e839cc893b193983242aef105a5a901c67b6e2112e7877e6cb656e2db5b916",
    ),
    "masakhaner-swa": (
        "2452dffb8e46ff35919e5871a789c9b8016b5180c5cbc3f9344d6425f1453247",
        "939b28b2f4cf19dfbcb9bb9776d35fd4e135976f671f07b6722b8d5a9c6cf873",
        "b515667ace8fa90fb5712fbf051fe3a87d137cd26b20f6ffde9b44fce6caa1f8",
    ),
    "masakhaner-tsn": (
        "df8984c5e6a9ee5064d624d044c42671e66dba75e3ee25b31948a5c41e8aeeb0",
        "20fbfc941f560f155642f458067e10a4685f355068323b1714d22c77499cbc62",
        "1454a5d579d53e05ae39e1082a232fe79708179651f57dd235c829ccd431dd79",
    ),
    "masakhaner-twi": (
        "9ff1cf63c94eb29891386cff4273d295ac495a1b5df529961b9bcec035a86818",
        "ddc7a18576a43d31fb3c34fb33146e400a688b8ef07eb66f8861e891c08a7d83",
        "d5e654b3e6e5861131db770ca59750482257da92f1a6c6faf8947a6297b6a34d",
    ),
    "masakhaner-wol": (
        "14985d4e071c683c15c3a2190788eaf18264cbdeaf5e9087b4d16bfa858b5dbb",
        "628ec289192b8e3fcee7c98ac1907f077f087e305ec9758526908c7632e79f0b",
        "e00b8f8fea6d19b1f0c920ed5ad09b6b42a68c7022b4a471e5eb49a05614ff4f",
    ),
    "masakhaner-xho": (
        "f89be1da2af30e5d1382b10478c9c41f7e307488757d9378dbafbd3c07a50584",
        "e82edeb336197dd11a944f5f5f48ac94bf8964085e462c41f6f1b1925cfb8a8e",
        "8276f2c70370ce51819c53c6ef6d083d4fac47f00b26a819c6bda454447f30eb",
    ),
    "masakhaner-yor": (
        "ca0e96b2131fd6db2cfaa458233fe67250e1ee0ad3fbd016258c9842925eb6b1",
        "92b8d9fd1f5e3c8b542d7e214325f3614dc7289d7d0c4566d9952f64aa0c75fb",
        "0a3c9bfacb8acd9d07622ae1f63627517e3655695012c2a6dae585506be2b370",
    ),
    "masakhaner-zul": (
        "3afda4f176e1a8e0aa5d8078a43523f31483915584343a0e277e79e8ccc638af",
        "8ae068b8eae7f71007fe532d5740c0898cf4e83ce4f60fd260594dd6bd8d670a",
        "76e73e7b4b594a18f30d8e7b6662f6b2fd2a6c0e4f2d5d6b2e0e0c6440178987",
    ),
}
TAGGING_SETS = tuple(CHECKSUMS)


def tagging_files(name: str) -> tuple[DataFile, ...]:
    """The train, dev and test file of a set.

    Args:
        name: "conll2003", or "masakhaner-" and a language: of the 20 of MasakhaNER 2.0, or "amh",
            which MasakhaNER 1.0 has.
    """
    if name not in CHECKSUMS:
        raise ValueError(f"There is no tagged set {name!r}. {suggestion(name, CHECKSUMS)}")
    language = name.removeprefix("masakhaner-")
    if name == "conll2003":
        place, origin = "conll2003/eng", CONLL
    elif language == "amh":
        place, origin = "masakhaner1/amh", f"data/amh of {MASAKHANER}"
    else:
        place, origin = f"masakhaner2/{language}", f"MasakhaNER2.0/data/{language} of {MASAKHANER}"
    return tuple(
        DataFile(f"{place}.{part}.conll", checksum, origin)
        for part, checksum in zip(PARTS, CHECKSUMS[name], strict=True)
    )
