"""Gates in the Trainer of transformers, on models of Hugging Face."""

import pytest
import torch
from safetensors.torch import load_file
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertForSequenceClassification,
    T5Config,
    T5ForConditionalGeneration,
    Trainer,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

import headwise as hw
from headwise.pruning import Gates, GatesCallback, Target
from tests.alone import run_alone

SIZES = {"vocab_size": 20, "num_hidden_layers": 2, "hidden_size": 16, "intermediate_size": 16}


def classifier():
    torch.manual_seed(0)
    return hw.adopt(BertForSequenceClassification(BertConfig(num_attention_heads=4, **SIZES)))


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return {"input_ids": torch.randint(20, (6,), generator=generator), "labels": index % 2}


def arguments(folder, **changes):
    settings = {
        "max_steps": 12,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "gradient_checkpointing": True,
        "save_steps": 6,
        "logging_steps": 3,
        "use_cpu": True,
        "disable_tqdm": True,
        "report_to": [],
    }
    return TrainingArguments(str(folder), **{**settings, **changes})


def prepared(folder, penalty, **changes):
    model = classifier()
    gates = Gates(model)
    penalty = Target(gates, 3, steps=12) if penalty is None else penalty
    groups = gates.parameter_groups(model, learning_rate=0.2)
    trainer = Trainer(
        model,
        arguments(folder, **changes),
        train_dataset=Rows(),
        optimizers=(torch.optim.AdamW(groups, lr=1e-3), None),
        callbacks=[GatesCallback(gates, penalty, every_head=True)],
    )
    return trainer, gates


def test_training_is_logged_saved_and_goes_on_the_same(tmp_path):
    trainer, gates = prepared(tmp_path / "whole", None)
    trainer.train()
    assert int(gates.draws) == 24 and gates.open_heads == 3
    last = trainer.state.log_history[-2]
    assert last["open_heads"] == 3 and last["goal_heads"] == 3
    assert "prob_open.encoder.1.self.3" in last and "penalty_coefficient" in last
    again, resumed = prepared(tmp_path / "again", None)
    again.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-6"))
    assert int(resumed.draws) == 24 and int(resumed.target.updates) == 12
    torch.testing.assert_close(resumed.log_alpha(), gates.log_alpha())


def test_the_penalty_is_added_once_an_update_however_it_is_accumulated(tmp_path):
    """With SGD and no other loss, log_alpha moves by learning rate times the penalty's slope."""
    for accumulate in (1, 2):
        model = classifier()
        gates = Gates(model, initial=1.0)
        groups = gates.parameter_groups(model, learning_rate=0.5)
        trainer = Trainer(
            model,
            arguments(tmp_path, max_steps=1, gradient_accumulation_steps=accumulate),
            train_dataset=Rows(),
            optimizers=(torch.optim.SGD(groups, lr=0.0), None),
            callbacks=[GatesCallback(gates, 2.0)],
            compute_loss_func=lambda outputs, labels, **_: outputs.logits.sum() * 0,
        )
        trainer.lr_scheduler = torch.optim.lr_scheduler.ConstantLR(trainer.optimizer, 1.0)
        trainer.train()
        prob = gates.distribution.prob_open(torch.tensor(1.0))
        wanted = 1.0 - 0.5 * 2.0 * prob * (1 - prob)
        torch.testing.assert_close(gates.log_alpha().detach(), wanted.expand(8))


def test_the_coefficient_is_printed_and_logged_in_both_countings(tmp_path, capsys):
    trainer, gates = prepared(tmp_path, 0.3, max_steps=3, save_strategy="no")
    trainer.train()
    assert f"Gates, {gates.lambda_in_both(0.3)}.\n" in capsys.readouterr().out
    row = trainer.state.log_history[0]
    assert row["penalty_coefficient"] == 0.3
    assert row["penalty_coefficient_reference_code"] == pytest.approx(0.6)  # 2 layers
    trainer, gates = prepared(tmp_path, None, max_steps=3, save_strategy="no")
    trainer.train()
    assert "3 of 8 heads to keep; the log has lambda" in capsys.readouterr().out
    row = trainer.state.log_history[0]
    assert row["penalty_coefficient"] > 0
    assert row["penalty_coefficient_reference_code"] == 2 * row["penalty_coefficient"]


def test_the_coefficient_of_the_reference_code_is_logged_in_both_countings():
    gates = Gates(classifier())
    rows = gates.coefficients(0.6, "reference_code")
    assert rows == {"penalty_coefficient": 0.3, "penalty_coefficient_reference_code": 0.6}


def test_scaled_gradients_that_are_not_clipped_are_refused(tmp_path):
    """The Trainer undoes fp16's scale only where it clips."""
    gates = Gates(model := classifier())
    optimizer = torch.optim.AdamW(gates.parameter_groups(model, learning_rate=0.2))
    callback, state, control = GatesCallback(gates, 0.1), TrainerState(), TrainerControl()
    told = arguments(tmp_path, fp16=True, max_grad_norm=0.0)
    with pytest.raises(ValueError, match="use bf16, or max_grad_norm above 0"):
        callback.on_train_begin(told, state, control, optimizer=optimizer)
    told = arguments(tmp_path, fp16=True, max_grad_norm=1.0)
    callback.on_train_begin(told, state, control, optimizer=optimizer)


@pytest.mark.slow
def test_two_processes_penalise_as_one_does(tmp_path):
    out = run_alone("-m", "tests.pruning.trainer_processes", str(tmp_path))
    assert out.count("heads to keep; the log has lambda") == 2  # one process alone, then rank 0
    one, first, second = (load_file(tmp_path / f"{name}.safetensors") for name in ("one", 0, 1))
    assert torch.equal(first["log_alpha"], second["log_alpha"])
    assert torch.equal(first["noise"], second["noise"])
    torch.testing.assert_close(first["log_alpha"], one["log_alpha"], atol=1e-5, rtol=1e-4)
    assert one["log_alpha"].max() < one["start"].min() and one["log_alpha"].std() > 1e-3


def test_an_optimiser_without_the_gates_is_refused(tmp_path):
    model = classifier()
    optimizer = torch.optim.AdamW(model.parameters())
    gates = Gates(model)
    trainer = Trainer(
        model,
        arguments(tmp_path),
        train_dataset=Rows(),
        optimizers=(optimizer, None),
        callbacks=[GatesCallback(gates, 0.1)],
    )
    with pytest.raises(ValueError, match="optimiser does not know these gates"):
        trainer.train()


def test_an_optimiser_that_moves_gates_as_it_moves_weights_is_refused(tmp_path):
    """The Trainer's own does."""
    model = classifier()
    callback = GatesCallback(Gates(model), 0.1)
    trainer = Trainer(model, arguments(tmp_path), train_dataset=Rows(), callbacks=[callback])
    with pytest.raises(ValueError, match=r"share a parameter group .* gates\.parameter_groups"):
        trainer.train()


def bart():
    sizes = {"d_model": 16, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "vocab_size": 20}
    layers = {"encoder_layers": 1, "decoder_layers": 1}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    return BartForConditionalGeneration(BartConfig(**sizes, **layers, **heads))


def t5():
    return T5ForConditionalGeneration(
        T5Config(vocab_size=20, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
    )


@pytest.mark.parametrize("make", [bart, t5])
def test_decoders_of_hugging_face_can_be_frozen(make):
    model = hw.adopt(make())
    gates = Gates(model, where="encoder.*")
    gates.parameter_groups(model, learning_rate=0.1, freeze="decoder")
    learning = {name for name, p in model.named_parameters() if p.requires_grad}
    frozen = {name for name, p in model.named_parameters() if not p.requires_grad}
    assert all(name.startswith(("encoder.", "model.encoder.", "head_gates.")) for name in learning)
    assert any("attn" in name.lower() or "attention" in name.lower() for name in learning)
    # one matrix is source embedding, target embedding and output
    assert any(name.endswith("shared.weight") for name in frozen)
    assert any("decoder" in name for name in frozen)
    assert not any(name.startswith("head_gates") for name in frozen)
