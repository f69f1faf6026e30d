"""Word vectors of labels: what word queries and word classifiers are made of."""

from typing import TYPE_CHECKING

from labelwise.core.lazy import lazy_imports

if TYPE_CHECKING:
    from labelwise.words.config import WordsConfig
    from labelwise.words.encoders import WordSource, open_words

__all__ = ["WordSource", "WordsConfig", "open_words"]

__getattr__ = lazy_imports(__name__, __file__)
