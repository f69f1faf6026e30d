"""Word vectors of labels: what word queries and word classifiers are made of."""

from labelwise.words.encoders import WordsConfig, WordSource, open_words

__all__ = ["WordSource", "WordsConfig", "open_words"]
