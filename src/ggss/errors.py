"""The one exception for input that the user can correct."""


class InputError(ValueError):
    """What was wrong, what was seen, what to do: one sentence. The command line prints it and exits with 2."""


def problems(what: str, found: list[str], shown: int = 20) -> InputError:
    """One error for many problems: the first `shown`, then a count of the rest."""
    lines = [f"{what}: {len(found)} problem{'s' if len(found) != 1 else ''}"]
    lines += [f"  - {line}" for line in found[:shown]]
    if len(found) > shown:
        lines.append(f"  ... and {len(found) - shown} more")
    return InputError("\n".join(lines))
