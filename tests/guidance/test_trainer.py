"""Guidance in the Trainer of transformers."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from transformers import (
    BertConfig,
    BertForMaskedLM,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

import headwise as hw
from headwise.guidance import GuidanceCallback, Plan

SIZES = {
    "vocab_size": 20,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 16,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
PLAN, BACK = Plan(next=1, first=2), Plan(prev=1, first=2)  # the second for causal models


class Rows(torch.utils.data.Dataset):
    """Texts of which some words are to be guessed: more of them in later texts."""

    def __len__(self):
        return 12

    def __getitem__(self, index):
        ids = torch.randint(20, (6,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "labels": ids.masked_fill(torch.arange(6) > index % 4 + 1, -100)}


def arguments(folder, **changes):
    settings = {
        "max_steps": 4,
        "per_device_train_batch_size": 2,
        "per_device_eval_batch_size": 12,
        "logging_steps": 2,
        "save_strategy": "no",
        "use_cpu": True,
        "disable_tqdm": True,
        "report_to": [],
    }
    return TrainingArguments(str(folder), **{**settings, **changes})


def masked_model():
    torch.manual_seed(0)
    return hw.adopt(BertForMaskedLM(BertConfig(**SIZES)))


def causal_model():
    torch.manual_seed(0)
    sizes = {name: size for name, size in SIZES.items() if not name.endswith("prob")}
    return hw.adopt(LlamaForCausalLM(LlamaConfig(**sizes)))


def test_both_losses_are_logged_and_evaluation_is_left_alone(tmp_path):
    model = masked_model()
    guidance = hw.guide(model, PLAN, alpha=8.0)
    trainer = Trainer(
        model,
        arguments(tmp_path, gradient_checkpointing=True),
        train_dataset=Rows(),
        eval_dataset=Rows(),
        callbacks=[GuidanceCallback(guidance)],
    )
    trainer.train()
    first, last = trainer.state.log_history[:2]
    assert (first["guidance_alpha"], last["guidance_alpha"]) == (6.0, 2.0)  # of updates 1 and 3
    assert last["guidance_loss"] < first["guidance_loss"]
    alphas = (8 + 6) / 2  # near enough over two updates
    assert first["loss"] == pytest.approx(
        first["own_loss"] + alphas * first["guidance_loss"], rel=0.02
    )
    with torch.no_grad():
        rows = [Rows()[index] for index in range(12)]
        both = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
        own = model.eval()(**both).loss.item()
    assert trainer.evaluate()["eval_loss"] == pytest.approx(own, rel=1e-4)
    assert "guidance_loss" not in trainer.state.log_history[-1]
    assert not model._forward_hooks.keys() - {hook.id for hook in guidance._hooks}


def moved(model, folder, rows, *, batch, callback, **options):
    """What one update by plain gradient descent changes."""
    before = [parameter.detach().clone() for parameter in model.parameters()]
    descent = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = Trainer(
        model,
        arguments(
            folder,
            max_steps=1,
            per_device_train_batch_size=batch,
            gradient_accumulation_steps=len(rows) // batch,
            max_grad_norm=0.0,
        ),
        train_dataset=rows,
        optimizers=(descent, torch.optim.lr_scheduler.ConstantLR(descent, 1.0)),
        callbacks=[callback],
        **options,
    )
    trainer.train()
    return [a.detach() - b for a, b in zip(model.parameters(), before, strict=True)]


@pytest.mark.parametrize("make", [masked_model, causal_model])
def test_guidance_counts_once_an_update_however_it_is_accumulated(make, tmp_path):
    rows = [Rows()[3]] * 8
    changes = []
    for batch in (8, 2):
        model = make()
        guidance = hw.guide(model, BACK, alpha=5.0, schedule="constant", where="*")
        callback = GuidanceCallback(guidance)
        own = callback.adding_to(lambda outputs, labels, **_: outputs.logits.sum() * 0)
        options = {"batch": batch, "callback": callback, "compute_loss_func": own}
        changes.append(moved(model, tmp_path, rows, **options))
    torch.testing.assert_close(*changes, atol=1e-6, rtol=1e-3)
    model = make()
    guidance = hw.guide(model, BACK, alpha=5.0, schedule="constant", where="*")
    model(input_ids=torch.stack([row["input_ids"] for row in rows]))
    guidance.loss().backward()
    wanted = [0 * p if p.grad is None else -0.1 * p.grad for p in model.parameters()]
    torch.testing.assert_close(changes[0], wanted, atol=1e-6, rtol=1e-3)


def test_a_batch_counts_by_what_is_guessed_in_it(tmp_path):
    """As the model's own loss does, which transformers divides by all labels of an update."""
    rows = [Rows()[index] for index in (0, 1, 2, 3)]  # two to five words to guess
    batches = []

    def collate(given):
        batches.append({name: torch.stack([row[name] for row in given]) for name in given[0]})
        return dict(batches[-1])

    model = causal_model()
    guidance = hw.guide(model, BACK, alpha=5.0, schedule="constant", where="*")
    callback = GuidanceCallback(guidance)
    got = moved(model, tmp_path, rows, batch=2, callback=callback, data_collator=collate)
    model = causal_model()
    guidance = hw.guide(model, BACK, alpha=5.0, schedule="constant", where="*")
    total, items = 0, sum((batch["labels"][:, 1:] != -100).sum() for batch in batches)
    for batch in batches:
        scores = model(input_ids=batch["input_ids"]).logits[:, :-1].flatten(0, 1)
        labels = batch["labels"][:, 1:].flatten()
        total = total + cross_entropy(scores, labels, reduction="sum") / items
        total = total + guidance.loss() * (labels != -100).sum() / items
    total.backward()
    wanted = [0 * p if p.grad is None else -0.1 * p.grad for p in model.parameters()]
    torch.testing.assert_close(got, wanted, atol=1e-6, rtol=1e-3)


def test_guidance_grows_with_a_loss_that_is_summed_over_batches(tmp_path):
    """As BERT's own is, which is not divided by the labels of an update."""
    rows, changes = [Rows()[3]] * 8, []
    for batch in (8, 2):
        model = masked_model()
        guidance = hw.guide(model, PLAN, alpha=50.0, schedule="constant")
        callback = GuidanceCallback(guidance)
        changes.append(moved(model, tmp_path, rows, batch=batch, callback=callback))
    four = [4 * change for change in changes[0]]
    torch.testing.assert_close(changes[1], four, atol=1e-6, rtol=1e-3)


@pytest.mark.parametrize("make", [masked_model, causal_model])
def test_both_losses_are_logged_as_means_over_the_batches_of_an_update(make, tmp_path):
    model = make()
    guidance = hw.guide(model, BACK, alpha=1.0, schedule="constant", where="*")
    args = arguments(tmp_path, max_steps=1, logging_steps=1, gradient_accumulation_steps=3)
    rows = [Rows()[3]] * 6
    callback = GuidanceCallback(guidance)
    trainer = Trainer(model, args, train_dataset=rows, callbacks=[callback])
    own = model(**{name: row[None] for name, row in rows[0].items()}).loss.item()
    wanted = guidance.unscaled.item()
    trainer.train()
    logged = trainer.state.log_history[0]
    assert logged["own_loss"] == pytest.approx(own, rel=1e-3)
    assert logged["guidance_loss"] == pytest.approx(wanted, rel=1e-3)


def test_a_loss_that_nothing_was_added_to_is_noticed(tmp_path):
    class Inner(nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model = model

        def forward(self, input_ids, labels):
            return self.model.forward(input_ids=input_ids, labels=labels)

    model = masked_model()
    callback = GuidanceCallback(hw.guide(model, PLAN))
    trainer = Trainer(Inner(model), arguments(tmp_path), train_dataset=Rows(), callbacks=[callback])
    with pytest.raises(ValueError, match=r"added to no loss: .*compute_loss_func=callback\.addi"):
        trainer.train()


def test_a_loss_that_the_trainer_smooths_is_noticed(tmp_path):
    model = masked_model()
    callback = GuidanceCallback(hw.guide(model, PLAN))
    args = arguments(tmp_path, label_smoothing_factor=0.1)
    trainer = Trainer(model, args, train_dataset=Rows(), callbacks=[callback])
    with pytest.raises(ValueError, match="With label_smoothing_factor the Trainer computes"):
        trainer.train()


class Interrupted(TrainerCallback):
    """Ctrl-C after the first update."""

    def on_step_end(self, args, state, control, **parts):
        raise KeyboardInterrupt


def interrupted(model, folder, *, alpha=10.0):
    """The guidance of a training that was interrupted."""
    guidance = hw.guide(model, PLAN, alpha=alpha)
    both = [GuidanceCallback(guidance), Interrupted()]
    trainer = Trainer(model, arguments(folder), train_dataset=Rows(), callbacks=both)
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    return guidance


def own_loss(model):
    return model(**{name: row[None] for name, row in Rows()[3].items()}).loss.item()


def test_an_interrupted_training_leaves_the_loss_alone(tmp_path):
    model = masked_model()
    guidance = interrupted(model, tmp_path)
    assert own_loss(model.train()) == own_loss(model.eval())
    guidance.undo()
    assert own_loss(model.train()) == own_loss(model.eval())


def test_a_training_after_an_interrupted_one_has_its_own_guidance_alone(tmp_path):
    model = masked_model()
    interrupted(model, tmp_path, alpha=1000.0)
    callback = GuidanceCallback(hw.guide(model, PLAN, alpha=1.0))
    args = arguments(tmp_path, max_steps=1, logging_steps=1)
    trainer = Trainer(model, args, train_dataset=Rows(), callbacks=[callback])
    trainer.train()
    logged = trainer.state.log_history[0]
    both = logged["own_loss"] + logged["guidance_loss"]
    assert logged["loss"] == pytest.approx(both, rel=1e-3)
    assert logged["own_loss"] < 5


def test_a_copy_made_in_training_has_its_own_loss(tmp_path):
    class Copying(TrainerCallback):
        losses: tuple[float, ...] = ()

        def on_substep_end(self, args, state, control, model=None, **parts):
            copied = copy.deepcopy(model)
            self.losses = own_loss(copied.train()), own_loss(copied.eval())

    model, copying = masked_model(), Copying()
    callback = GuidanceCallback(hw.guide(model, PLAN, alpha=10.0))
    args = arguments(tmp_path, max_steps=1, gradient_accumulation_steps=2)
    Trainer(model, args, train_dataset=Rows(), callbacks=[callback, copying]).train()
    assert copying.losses and copying.losses[0] == copying.losses[1]


def test_guidance_that_is_undone_in_training_is_added_no_more(tmp_path):
    class Undoing(TrainerCallback):
        def on_step_end(self, args, state, control, **parts):
            guidance.undo()

    model = masked_model()
    guidance = hw.guide(model, PLAN)
    both = [GuidanceCallback(guidance), Undoing()]
    trainer = Trainer(model, arguments(tmp_path), train_dataset=Rows(), callbacks=both)
    assert trainer.train().global_step == 4


@pytest.mark.parametrize("kind", [dict, tuple])
def test_other_kinds_of_output_get_the_loss_too(kind, tmp_path):
    class Plain(nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model = model

        def forward(self, input_ids, labels):
            output = self.model(input_ids=input_ids, labels=labels)
            return dict(output) if kind is dict else output.to_tuple()

    changes = []
    for wrap in (lambda model: model, Plain):
        model = wrap(masked_model())
        callback = GuidanceCallback(hw.guide(model, PLAN, alpha=50.0, schedule="constant"))
        changes.append(moved(model, tmp_path, [Rows()[3]] * 8, batch=8, callback=callback))
    torch.testing.assert_close(changes[1], changes[0], atol=1e-6, rtol=1e-3)


def test_reporters_see_the_figures_of_a_callback_that_is_told_first(tmp_path):
    class Reporter(TrainerCallback):
        seen: tuple[dict[str, float], ...] = ()

        def on_log(self, args, state, control, logs=None, **parts):
            self.seen += (dict(logs),)

    model, reporter = masked_model(), Reporter()
    callback = GuidanceCallback(hw.guide(model, PLAN))
    both = [reporter, callback]  # as the Trainer has them
    trainer = Trainer(model, arguments(tmp_path), train_dataset=Rows(), callbacks=both)
    callback.first_in(trainer).train()
    assert {"loss", "own_loss", "guidance_loss", "guidance_alpha"} <= reporter.seen[0].keys()
    assert trainer.callback_handler.callbacks.count(callback) == 1


def test_each_training_has_a_length_of_its_own(tmp_path):
    model = masked_model()
    callback = GuidanceCallback(hw.guide(model, PLAN, alpha=8.0))
    alphas = []
    for steps in (2, 4):
        args = arguments(tmp_path, max_steps=steps, logging_steps=1)
        trainer = Trainer(model, args, train_dataset=Rows(), callbacks=[callback])
        trainer.train()
        rows = trainer.state.log_history
        alphas.append([row["guidance_alpha"] for row in rows if "guidance_alpha" in row])
    assert alphas == [[8.0, 4.0], [8.0, 6.0, 4.0, 2.0]]


def test_one_model_on_several_gpus_is_refused(tmp_path):
    settings = arguments(tmp_path)
    settings._n_gpu = 2
    callback = GuidanceCallback(hw.guide(masked_model(), PLAN))
    with pytest.raises(ValueError, match="start a process for each with torchrun"):
        callback.on_train_begin(settings, TrainerState(), TrainerControl())
