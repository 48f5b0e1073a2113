"""A second process that is writing to a folder."""

import subprocess
import sys
from contextlib import contextmanager

from headwise.recording import files

HOLD = """
import runpy, sys
from pathlib import Path
module, folder = sys.argv[1:]  # by its file: the package around it takes seconds to import
with runpy.run_path(module)["writing_alone"](Path(folder)):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def another_process_in(folder):
    """Another process that holds a folder until it is ended."""
    command = [sys.executable, "-c", HOLD, files.__file__, str(folder)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as other:
        try:
            assert other.stdout.readline() == "held\n"
            yield other
        finally:
            other.kill()
