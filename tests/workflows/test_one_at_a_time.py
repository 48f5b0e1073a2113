"""Journeys and experiments refuse a folder that another process is writing to."""

import pytest

from headwise.training import FitConfig
from headwise.workflows.inspect import InspectConfig, inspect_folder
from headwise_papers.core.runner import load_experiment, reproduce
from headwise_papers.recipes.demo import DemoConfig, demo
from headwise_papers.recipes.finetuning import finetune
from headwise_papers.recipes.training_run import shared_run
from tests.papers.recipes.small_finetuning import small_config, write_classes
from tests.recording.second_process import another_process_in
from tests.workflows.small_hosts import LINES, classifier, save, tokenizer_for


def inspecting(folder, beside):
    model = save(classifier(), tokenizer_for("BERT"), beside / "model")
    (beside / "text").write_text("\n".join(LINES))
    inspect_folder(InspectConfig(str(model), str(beside / "text")), folder)


JOURNEYS = {
    "demo": lambda folder, beside: demo(DemoConfig(), folder),
    "train": lambda folder, beside: shared_run(folder, FitConfig()).__enter__(),
    "finetune": lambda folder, beside: finetune(small_config(write_classes(beside)), folder),
    "inspect": inspecting,
    "reproduce": lambda folder, beside: reproduce(
        "training_dynamics/synthetic", load_experiment("training_dynamics/synthetic").smoke, folder
    ),
}


@pytest.mark.parametrize("name", JOURNEYS)
def test_a_folder_that_is_written_to_is_refused_and_left_alone(name, tmp_path):
    with another_process_in(tmp_path / "run"):
        with pytest.raises(ValueError, match="Another process is writing to"):
            JOURNEYS[name](tmp_path / "run", tmp_path)
        assert [path.name for path in (tmp_path / "run").iterdir()] == [".lock"]
