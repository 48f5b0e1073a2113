from headwise.analysis.scores import bleu


def test_bleu_minds_case_and_says_so():
    said, wanted = ["a Dog runs over the hill."], ["A dog runs over the hill."]
    cased, folded = bleu(said, wanted), bleu(said, wanted, lowercase=True)
    assert cased.value < 99 < folded.value
    assert "case:mixed" in cased.signature and "case:lc" in folded.signature
    assert "tok:13a" in cased.signature


def test_bleu_cuts_marks_from_raw_words():
    assert bleu(["It runs over the hill ."], ["It runs over the hill."]).value > 99
