import io
import re

from rich.console import Console

from headwise.training import progress_bar
from headwise_papers.recipes.training_run import clock


def test_a_clock_says_what_is_done_and_may_run_within_a_bar(monkeypatch):
    console = Console(file=io.StringIO(), width=100, force_terminal=True)
    monkeypatch.setattr("rich.progress.get_console", lambda: console)
    with progress_bar(2, label="pre-trainings"), clock("learning 8,000 pieces"):
        pass
    assert re.search(r"learning 8,000 pieces .*0:00:00", console.file.getvalue())
