"""What experiments share: results, claims and their verdicts, the runner and the pages."""
