"""Word vectors of labels: what word queries and word classifiers are made of."""

from labelwise.words.encoders import WordSource, open_words
from labelwise.words.tables import WordsConfig

__all__ = ["WordSource", "WordsConfig", "open_words"]
