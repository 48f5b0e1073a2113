"""Trainings of the papers: translation, pre-training, language, captions, classifiers, the demo."""
