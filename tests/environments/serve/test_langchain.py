"""LangChain's client against the server, unchanged. `make test-langchain` installs it; elsewhere this is skipped."""

import openai
import pytest

from conftest import KEY, MODEL, PATIENCE, asked
from test_api import QUESTION, ask, text

langchain = pytest.importorskip("langchain_openai", reason="make test-langchain installs LangChain")


def chat(server, **options):
    """LangChain's model, as its users make it."""
    return langchain.ChatOpenAI(
        model=MODEL, base_url=f"{server.url}/v1", api_key=KEY, max_retries=0, timeout=PATIENCE, **options
    )


def test_langchain_gets_the_answers_and_strengths_of_openai_client(server, client, world):
    """One by one, in a batch, and as a stream."""
    messages = [asked(QUESTION, world.png(number)) for number in range(4)]
    for strengths in ({"race": 0.75, "gender": 0.0}, {"race": 0.0, "gender": 0.0}):
        own = chat(server, extra_body={"ggss": strengths}, temperature=0, include_response_headers=True)
        expected = [text(ask(client, message, strengths)[0]) for message in messages]
        first = own.invoke(messages[0])
        assert first.content == expected[0]
        applied = ", ".join(f"{name}={alpha:g}" for name, alpha in strengths.items())
        assert first.response_metadata["headers"]["x-ggss-applied"] == applied
        assert first.usage_metadata["output_tokens"] > 0
        assert [one.content for one in own.batch(messages)] == expected
        assert "".join(str(piece.content) for piece in own.stream(messages[1])) == expected[1]


def test_langchain_has_log_probabilities_and_conversations(server, client, world):
    whole, _ = ask(client, asked(QUESTION, world.png(1)), logprobs=True, max_tokens=4)
    found = chat(server, max_tokens=4, logprobs=True).invoke(asked(QUESTION, world.png(1)))
    tokens = found.response_metadata["logprobs"]["content"]
    assert [one["token"] for one in tokens] == [one.token for one in whole.choices[0].logprobs.content]
    turns = [*asked(QUESTION, world.png(1)), found, ("user", QUESTION)]  # its own answer as a turn
    assert chat(server, max_tokens=4).invoke(turns).content


def test_langchain_shows_what_is_refused(server, world):
    with pytest.raises(openai.BadRequestError, match="hair"):
        chat(server, extra_body={"ggss": {"hair": 1.0}}).invoke(asked(QUESTION, world.png(0)))
