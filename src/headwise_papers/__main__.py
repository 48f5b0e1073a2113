"""python -m headwise_papers: the whole command line, also where the checkout is not installed."""

from headwise.cli import add_installed_commands, app, run_app
from headwise_papers.cli import add_commands
from headwise_papers.kinds import register_all

if __name__ == "__main__":
    if not add_installed_commands():
        add_commands(app)
        register_all()
    run_app()
