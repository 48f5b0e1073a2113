"""The numbers of `make stats` count what they say."""

from benchmarks import stats

MODULE = '''"""What the module is for."""

LIMIT = 3  # of heads


class Head:
    """One head."""

    # a comment
    name: str = """
    text
    """
'''


def test_blank_lines_comments_and_docstrings_are_no_code():
    assert stats.code_lines(MODULE) == 5
    assert stats.code_lines("") == 0


def test_settings_are_frozen_dataclasses(tmp_path, monkeypatch):
    (tmp_path / "a.py").write_text(
        "@dataclass(frozen=True)\nclass FitConfig:\n    steps: int = 1\n    rate: float = 0.1\n"
        "@dataclass\nclass OtherConfig:\n    steps: int = 1\n"
        "@dataclass(frozen=True)\nclass Sizes:\n    width: int = 1\n"
        "experiment = Experiment(config=Sizes())\n"
    )
    monkeypatch.setattr(stats, "SOURCE", tmp_path)
    assert stats.settings() == (2, 3)


def test_files_behind_an_experiment_are_those_of_its_own_folder():
    found = stats.experiments()
    assert len(found) > 20
    for name, files in found.items():
        assert stats.PAPERS / f"{name}.py" in files
        assert {path.parent.name for path in files} == {name.split("/")[0]}
