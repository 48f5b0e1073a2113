from dataclasses import dataclass


@dataclass(frozen=True)
class InspectConfig:
    x: int = 0


def inspect(): ...
