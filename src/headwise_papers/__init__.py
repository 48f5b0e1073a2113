"""The five papers behind Headwise: their models, recipes and experiments."""
