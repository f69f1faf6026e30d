"""Word vectors of labels: what word queries and word classifiers are made of."""

from labelwise.words.config import WordsConfig
from labelwise.words.source import WordSource, open_words

__all__ = ["WordSource", "WordsConfig", "open_words"]
