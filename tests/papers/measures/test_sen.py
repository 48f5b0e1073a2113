from headwise_papers.measures import sen
from headwise_papers.ops import sen as formulas


def test_the_formulas_are_found_where_readers_look_for_them():
    assert sen.__all__ == formulas.__all__
    assert all(getattr(sen, name) is getattr(formulas, name) for name in sen.__all__)
