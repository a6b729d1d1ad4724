"""The body of a chat request, as OpenAI's clients write it, and its schema."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Share = Annotated[float, Field(gt=0, le=1)]
Count = Annotated[int, Field(ge=1, le=2**31)]


class RequestPart(BaseModel):
    """Numbers are numbers, never text that looks like one; neither infinite nor NaN."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)


class TextPart(RequestPart):
    type: Literal["text"]
    text: str


class ImageUrl(RequestPart):
    url: str = Field(description="data:image/...;base64,...; other addresses are refused")
    detail: str | None = None


class ImagePart(RequestPart):
    type: Literal["image_url"]
    image_url: ImageUrl


class ChatMessage(RequestPart):
    """What a client's own answer object has besides, such as `refusal`, is left alone."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[Annotated[TextPart | ImagePart, Field(discriminator="type")]]


class StreamOptions(RequestPart):
    include_usage: bool | None = None


class ChatBody(RequestPart):
    """Fields that are not here are refused if they would change the answer (`chat_reading`)."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False, extra="allow")

    model: str
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=1024)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Count | None = None
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = Field(None, description="0, the default, is greedy")
    top_p: Share | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: str | Annotated[list[str], Field(max_length=4)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    ggss: dict[str, float] | None = Field(None, description="strengths by steerer, instead of the server's own")

    @property
    def others(self) -> dict[str, Any]:
        """Fields that are not declared above."""
        return self.model_extra or {}


class ReloadBody(RequestPart):
    """Replace a steerer by the one in a folder of the server."""

    model_config = ConfigDict(strict=True, extra="forbid")

    name: str
    folder: str


class ErrorFacts(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """What every refused request gets."""

    error: ErrorFacts
