"""What people do with Headwise from end to end; the command line calls these functions."""

from headwise.journeys.demo import DemoConfig, demo
from headwise.journeys.inspect import InspectConfig, inspect, inspect_folder

__all__ = ["DemoConfig", "InspectConfig", "demo", "inspect", "inspect_folder"]
