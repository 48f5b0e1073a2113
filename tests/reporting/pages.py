"""Reading a report as a parser and as a browser do."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

from headwise.recording import Run
from headwise.reporting import write_report

VOID = {"meta", "link", "wbr", "br", "input"}
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


class Page(HTMLParser):
    """Walks a page: which elements are there, their text, and whether every tag is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.text: dict[str, list[str]] = {}
        self.handlers: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.ids += [value for name, value in attrs if name == "id" and value]
        self.handlers += [name for name, _ in attrs if name.startswith("on")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data):
        if self.open:
            self.text.setdefault(self.open[-1], []).append(data)


def written(run: Run) -> str:
    return write_report(run).read_text(encoding="utf-8")


def data_of(page: str) -> dict[str, object]:
    match = re.search(r'<script type="application/json" id="report-data">(.*?)</script>', page)
    assert match
    return json.loads(match[1])


def dump_dom(page: Path, profile: Path, address: str = "") -> subprocess.CompletedProcess[str]:
    options = "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking"
    command = [str(CHROMIUM), *options.split(), "--disable-component-update", "--disable-sync"]
    command += [
        "--enable-logging=stderr",
        f"--user-data-dir={profile}",
        "--dump-dom",
        page.as_uri() + address,
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)
