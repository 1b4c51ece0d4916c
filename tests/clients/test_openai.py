"""openai's own client."""

import asyncio

import httpx
import numpy as np
import openai
import pytest

from .conftest import TEXTS


@pytest.fixture(scope="module")
def client(url: str, key: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)


def test_vectors_asked_for_as_the_client_does_by_default_are_those_of_embed(
    client: openai.OpenAI, vectors: list[list[float]]
) -> None:
    answer = client.embeddings.create(model="isosim", input=TEXTS)  # asks for base64
    np.testing.assert_array_equal([entry.embedding for entry in answer.data], np.array(vectors, np.float32))
    assert [entry.index for entry in answer.data] == [0, 1, 2, 3]
    assert answer.usage.prompt_tokens == answer.usage.total_tokens > 20


def test_floats_and_base64_are_the_same_numbers(client: openai.OpenAI) -> None:
    written = [
        client.embeddings.create(model="isosim/default", input=TEXTS[0], encoding_format=form).data[0].embedding
        for form in ("float", "base64")
    ]
    decoded = [np.frombuffer(__import__("base64").b64decode(v), "<f4") if isinstance(v, str) else v for v in written]
    np.testing.assert_array_equal(np.float32(decoded[0]), decoded[1])


def test_raw_vectors_can_be_cut_and_have_unit_length(client: openai.OpenAI) -> None:
    answer = client.embeddings.create(model="isosim/default:raw", input=TEXTS[0], dimensions=64)
    assert len(answer.data[0].embedding) == 64
    assert np.linalg.norm(answer.data[0].embedding) == pytest.approx(1, abs=1e-5)


def test_calibrated_vectors_cannot_be_cut(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        client.embeddings.create(model="isosim", input=TEXTS[0], dimensions=64)
    assert error.value.param == "dimensions"


def test_token_ids_are_refused_and_told_why(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="token ids") as error:
        client.embeddings.create(model="isosim", input=[101, 2023, 102])
    assert error.value.param == "input"
    assert error.value.type == "invalid_request_error"


def test_an_unknown_model_is_told_what_there_is(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="GET /v1/models lists") as error:
        client.embeddings.create(model="text-embedding-3-small", input="text")
    assert (error.value.code, error.value.param) == ("model_not_found", "model")


def test_a_wrong_key_is_an_authentication_error(url: str) -> None:
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=f"{url}/v1", api_key="wrong", max_retries=0).embeddings.create(model="isosim", input="a")


def test_an_empty_text_is_a_bad_request(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        client.embeddings.create(model="isosim", input=["a", ""])
    assert error.value.param == "input.1"


def test_models_are_listed_and_found_by_name(client: openai.OpenAI) -> None:
    names = [model.id for model in client.models.list()]
    assert names[:3] == ["isosim", "isosim/default", "isosim/default:raw"]
    assert client.models.retrieve("isosim/default").owned_by == "isosim"


def test_as_many_texts_as_openai_takes(client: openai.OpenAI) -> None:
    answer = client.embeddings.create(model="isosim", input=[f"text {n}" for n in range(2048)])
    assert len(answer.data) == 2048


def test_the_answer_says_where_it_comes_from_and_what_was_ignored(client: openai.OpenAI) -> None:
    raw = client.embeddings.with_raw_response.create(
        model="isosim", input="a", extra_body={"truncate_prompt_tokens": 9}
    )
    assert raw.headers["x-isosim-domain"] == "default"
    assert raw.headers["x-isosim-ignored"] == "truncate_prompt_tokens"
    assert float(raw.headers["x-total-time"]) > 0


def test_the_async_client_works_too(url: str, key: str, vectors: list[list[float]]) -> None:
    async def ask() -> list[float]:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key) as client:
            answer = await client.embeddings.create(model="isosim", input=TEXTS[0])
            return answer.data[0].embedding

    np.testing.assert_array_equal(asyncio.run(ask()), np.array(vectors[0], np.float32))


def test_errors_have_all_four_keys(http: httpx.Client) -> None:
    for body in ({"input": "a", "model": "no"}, {"model": "isosim"}, {"input": [], "model": "isosim"}):
        error = http.post("/v1/embeddings", json=body).json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
