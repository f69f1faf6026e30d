"""Load any model, convert it, choose the fastest engine, export it, quantise it."""

from labelwise.runtime.sessions import FAMILIES, Engine, EngineName, Family

__all__ = ["FAMILIES", "Engine", "EngineName", "Family"]
