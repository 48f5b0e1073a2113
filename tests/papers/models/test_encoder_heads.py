import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from headwise.sites import find_sites
from headwise_papers.models import (
    Encoder,
    EncoderConfig,
    MaskedLM,
    MaskedLMWithNextSentence,
    NextSentence,
    ReplacedToken,
    SequenceClassifier,
    TokenClassifier,
)

TINY = EncoderConfig.tiny(30, token_types=2, dropout=0.0, attention_dropout=0.0)
LENGTHS = torch.tensor([8, 6, 3])
PLACES = torch.tensor([2, 9, 17])


def encoder(**changes) -> Encoder:
    torch.manual_seed(0)
    return Encoder(EncoderConfig.tiny(30, **({"token_types": 2, "dropout": 0.0} | changes)))


def texts() -> torch.Tensor:
    return torch.randint(4, 30, (3, 8), generator=torch.Generator().manual_seed(1))


def test_scores_at_some_places_are_those_of_all_places():
    model, ids = MaskedLM(encoder()).double().eval(), texts()
    everywhere = model(ids, torch.arange(24), lengths=LENGTHS)
    chosen = model(ids, PLACES, lengths=LENGTHS)
    assert chosen.shape == (3, 30)
    torch.testing.assert_close(chosen, everywhere[PLACES])


def test_scores_are_products_with_the_embeddings_of_words():
    model, ids = MaskedLM(encoder()).eval(), texts()
    before = model(ids, PLACES)
    with torch.no_grad():
        model.words.bias[7] += 2
    added = torch.zeros(30)
    added[7] = 2
    torch.testing.assert_close(model(ids, PLACES) - before, added.expand(3, 30))
    before[:, 3].sum().backward()
    assert model.encoder.embed.words.weight.grad[3].any()
    assert len(model.encoder.embed.words.weight) == 64  # and rows that are no words get none
    assert not model.encoder.embed.words.weight.grad[30:].any()


def test_both_tasks_of_bert_in_one_pass_are_those_of_two():
    both, ids = MaskedLMWithNextSentence(encoder()).eval(), texts()
    words, following = MaskedLM(both.encoder).eval(), NextSentence(both.encoder).eval()
    words.words.load_state_dict(both.words.state_dict())
    following.pool.load_state_dict(both.pool.state_dict())
    following.follows.load_state_dict(both.follows.state_dict())
    types = (torch.arange(8) > 3).long().expand(3, 8)
    found = both(ids, PLACES, lengths=LENGTHS, token_types=types)
    torch.testing.assert_close(found.words, words(ids, PLACES, lengths=LENGTHS, token_types=types))
    torch.testing.assert_close(found.follows, following(ids, lengths=LENGTHS, token_types=types))


@pytest.mark.parametrize("kind", ["masked", "replaced", "next", "sequence", "token"])
def test_every_head_learns_a_batch_by_heart(kind):
    part, ids = encoder(attention_dropout=0.0), texts()
    generator = torch.Generator().manual_seed(2)
    labels_BT = torch.randint(2, (3, 8), generator=generator)
    model = {
        "masked": lambda: MaskedLM(part),
        "replaced": lambda: ReplacedToken(part),
        "next": lambda: NextSentence(part),
        "sequence": lambda: SequenceClassifier(part, 2),
        "token": lambda: TokenClassifier(part, 2),
    }[kind]()

    def loss() -> torch.Tensor:
        if kind == "masked":
            return cross_entropy(model(ids, PLACES), ids.flatten()[PLACES])
        if kind == "replaced":
            return binary_cross_entropy_with_logits(model(ids), labels_BT.float())
        if kind == "token":
            return cross_entropy(model(ids).flatten(0, 1), labels_BT.flatten())
        return cross_entropy(model(ids), labels_BT[:, 0])

    descent = torch.optim.Adam(model.parameters(), lr=0.01)
    first = loss().item()
    for _ in range(12):
        descent.zero_grad()
        loss().backward()
        descent.step()
    assert loss().item() < 0.5 * first


def test_heads_keep_the_sites_of_their_encoder():
    for model in (MaskedLM(encoder()), ReplacedToken(encoder()), TokenClassifier(encoder(), 3)):
        assert [site.name for site in find_sites(model)] == ["encoder.0.self", "encoder.1.self"]


def test_classifiers_have_a_dropout_of_their_own():
    assert SequenceClassifier(encoder(dropout=0.3), 4).dropout.p == 0.3
    model = TokenClassifier(encoder(), 4, dropout=0.5)
    assert model.dropout.p == 0.5
    assert model(texts()).shape == (3, 8, 4)
    assert SequenceClassifier(encoder(), 1)(texts()).shape == (3, 1)


def test_electra_scores_words_in_the_width_of_its_embeddings():
    model = MaskedLM(encoder(family="electra", embedding_width=8))
    assert model.words.dense.weight.shape == (8, 32)
    assert model(texts(), PLACES).shape == (3, 30)
