"""`python -m headwise` is the `headwise` command."""

from headwise.cli import main

if __name__ == "__main__":  # a process started by one of its commands reads this file too
    main()
