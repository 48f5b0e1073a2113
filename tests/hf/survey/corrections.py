"""What the generic shrinking gets wrong, per family of transformers (or per class), as data."""

from typing import Any

CLASSES: dict[str, list[str]] = {}
CONFIGS: dict[str, dict[str, Any]] = {}
INPUTS: dict[str, dict[str, Any]] = {}
LACKING: dict[str, str] = {}
