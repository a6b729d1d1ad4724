"""The entry point of group `vllm.general_plugins`: vLLM calls `register` in each of its processes.

It does something only where the variable GGSS_STEERERS is set, be it empty: then steerers can be loaded later.

vLLM only logs what goes wrong while a plug-in is imported, and goes on without it; what `register` raises ends it. So
everything that can fail is inside.
"""

# pyright: reportMissingImports=false
# vLLM has an environment of its own, and is not there where types are checked.

import functools
import os
from typing import Any

_registered = False


def register() -> None:
    """Put steered classes in the place of vLLM's, and check what requests ask for. InputError for a bad steerer."""
    global _registered
    from ggss.vllm_plugin import asked_strengths

    if _registered or asked_strengths.ENVIRONMENT not in os.environ:
        return
    from vllm import ModelRegistry
    from vllm.renderers.base import BaseRenderer

    from ggss.vllm_plugin.absent_torchvision import named_torchvision
    from ggss.vllm_plugin.parent_watch import end_with_parent

    end_with_parent()
    named = asked_strengths.AskedStrengths.from_environment()
    asked_strengths.ASKED.contents |= named.contents
    asked_strengths.ASKED.allow_negative |= named.allow_negative
    with named_torchvision():
        from ggss.vllm_plugin.steered_models import CLASSES
    for architecture, steered in CLASSES.items():
        ModelRegistry.register_model(architecture, steered)
    renderer: Any = BaseRenderer
    renderer._process_tokens = _checked(renderer._process_tokens)
    renderer._process_tokens_async = _checked(renderer._process_tokens_async)
    _registered = True


def _checked(process: Any) -> Any:
    """A step of vLLM's renderer through which every request goes, with and without images."""

    @functools.wraps(process)
    def checked(renderer: Any, prompt: Any, **options: Any) -> Any:
        from vllm.exceptions import VLLMValidationError

        from ggss.errors import InputError
        from ggss.vllm_plugin.asked_strengths import ASKED

        try:
            prompt = ASKED.prompt(prompt)
        except InputError as error:
            raise VLLMValidationError(str(error)) from error
        return process(renderer, prompt, **options)

    return checked
