"""What people do with Headwise from end to end; the command line calls these functions."""

from headwise.journeys.demo import DemoConfig, demo
from headwise.journeys.inspect import InspectConfig, inspect

__all__ = ["DemoConfig", "InspectConfig", "demo", "inspect"]
