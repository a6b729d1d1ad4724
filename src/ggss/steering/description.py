"""What `config.json` of an artefact may hold: names, types and ranges, checked when it is written and read.

Its `checksum` is over all of its other content, which has the sha256 of the files with tensors. So an artefact that
was changed after it was written is refused, whatever the change. What the scalars of an operator may be is not said
here: the operator checks that itself (`ggss.methods.declared`).
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, ValidationError

from ggss.errors import InputError
from ggss.steering.strengths import checked_recommendation

FORMAT = 2

Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Plain = str | bool | int | float | None
Text = str | None


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class SiteEntry(_Strict, extra="allow"):
    """The operator at a site, and its scalars."""

    operator: str
    width: int

    @property
    def scalars(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class SourceEntry(_Strict, extra="allow"):
    """The model and the pictures that a steerer was fitted on."""

    model: Text = None
    revision: Text = None
    family: Text = None
    fingerprint: Text = None
    data_hash: Text = None
    backend: Text = None
    images: int | None = None


class TokensEntry(_Strict):
    """What a probe of all tokens reads of the attribute before and after steering, and how far tokens move."""

    before: float
    after: float
    chance: float
    displacement: float


class DiagnosticsEntry(_Strict, extra="allow"):
    """What discovery measured at a site."""

    effective_rank: float | None = None
    variance_share: float | None = None
    chance_share: float | None = None
    split_half_cosines: list[float] = []
    notes: list[str] = []
    transfer: float | None = None
    all_tokens: TokensEntry | None = None
    warnings: list[str] = []


class Description(_Strict):
    format: int
    method: str
    options: dict[str, JsonValue]
    attribute: str | Annotated[list[str], Field(min_length=1)]
    values: list[Plain | list[Plain]]
    sites: Annotated[dict[str, SiteEntry], Field(min_length=1)]
    source: SourceEntry
    diagnostics: dict[str, DiagnosticsEntry]
    recommended_alpha: Annotated[float, AfterValidator(checked_recommendation)] | None
    prompt_suffix: str
    versions: dict[str, str]
    sha256: Sha256
    streams_sha256: Sha256 | None
    checksum: Sha256


def signed(config: Mapping[str, Any]) -> dict[str, Any]:
    """The same content, with its checksum."""
    return {**config, "checksum": checksum(config)}


def checksum(config: Mapping[str, Any]) -> str:
    """sha256 of all content but the checksum itself, whatever its order and layout."""
    content = {name: value for name, value in config.items() if name != "checksum"}
    text = json.dumps(content, sort_keys=True, allow_nan=False, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def described(config: Any) -> Description:
    """The checked content of a `config.json`; InputError says what is wrong with it."""
    if not isinstance(config, dict) or not {"format", "sites"} <= config.keys():
        raise InputError("does not describe a ggss steerer (is this a model's folder?)")
    if config["format"] != FORMAT:
        versions = config.get("versions")
        wrote = versions.get("ggss", "unknown") if isinstance(versions, dict) else "unknown"
        raise InputError(
            f"has artefact format {str(config['format'])[:20]}, this version of ggss reads {FORMAT}: "
            f"make the steerer again, or use the version of ggss that wrote it ({str(wrote)[:20]})"
        )
    try:
        if config.get("checksum") != checksum(config):
            raise InputError("was changed after it was written, its checksum is another: make the steerer again")
        return Description.model_validate(config)
    except ValidationError as error:
        wrong = [f"{'.'.join(map(str, e['loc']))[:80]}: {e['msg']}" for e in error.errors()]
        more = f"; and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise InputError(f"does not describe a steerer: {'; '.join(wrong[:3])}{more}") from None
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"does not describe a steerer: {error}") from error


def tuples(value: Any) -> Any:
    """Lists, as JSON has them, to the tuples of a steerer: several attributes, or values of intersections."""
    return tuple(tuples(item) for item in value) if isinstance(value, list | tuple) else value
