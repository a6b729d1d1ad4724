"""A playground: pictures, a question, and the answers of a model unsteered and steered, side by side."""

from ggss.play.playground import Playground, SideBySide

__all__ = ["Playground", "SideBySide"]
