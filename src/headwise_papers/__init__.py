"""The five papers: their models, data, trainings and experiments, built on `headwise`."""
