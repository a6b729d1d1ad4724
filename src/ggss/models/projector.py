"""The modules at the sites."""

from torch import nn

from ggss.errors import InputError


def resolve(model: nn.Module, path: str) -> nn.Module:
    """The module at a site's path."""
    try:
        return model.get_submodule(path)
    except AttributeError as error:
        raise InputError(
            f"a {type(model).__name__} has no module {path!r} ({error}): pass the model as transformers loads it"
        ) from error
