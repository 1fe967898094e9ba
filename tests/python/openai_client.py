"""Asks a server through the openai package, as a user would, and prints the answers as one JSON object.

Arguments: the base URL, the model, the model of a pinned path.
"""

import json
import sys

import openai

base, model, pinned = sys.argv[1:]
client = openai.OpenAI(base_url=base, api_key="unused", max_retries=0, timeout=60)
found = {}


def ask(**fields):
    return client.completions.create(**{"model": model, "prompt": "fn main() {", "temperature": 0, **fields})


def refused(**fields):
    try:
        ask(**fields)
    except openai.APIStatusError as error:
        return {"class": type(error).__name__, "status": error.status_code, "code": error.code, "param": error.param,
                "message": error.message}
    return None


found["models"] = [entry.id for entry in client.models.list()]
found["model"] = client.models.retrieve(model).id

whole = ask(max_tokens=12, seed=1)
found["text"] = whole.choices[0].text
found["finish"] = whole.choices[0].finish_reason
found["usage"] = whole.usage.model_dump()

pieces = list(ask(max_tokens=12, seed=1, stream=True, stream_options={"include_usage": True}))
found["streamed"] = "".join(piece.choices[0].text for piece in pieces if piece.choices)
found["stream_finish"] = [piece.choices[0].finish_reason for piece in pieces if piece.choices][-1]
found["stream_usage"] = pieces[-1].usage.model_dump()

scored = ask(max_tokens=3, logprobs=2, echo=True)
found["echoed"] = scored.choices[0].text
found["logprobs"] = scored.choices[0].logprobs.model_dump()
found["scored_usage"] = scored.usage.model_dump()

several = ask(prompt=["fn main() {", "Copyright"], n=2, max_tokens=4, temperature=1, seed=7)
found["several"] = [choice.index for choice in several.choices]
repeated = ask(prompt=["fn main() {", "Copyright"], n=2, max_tokens=4, temperature=1, seed=7)
found["repeats"] = [choice.text for choice in several.choices] == [choice.text for choice in repeated.choices]

raw = client.completions.with_raw_response.create(model=pinned, prompt="fn main() {", max_tokens=4, temperature=0)
found["pinned"] = {"model": raw.parse().model, "path": raw.headers["x-dipaco-path"]}

messages = [{"role": "system", "content": "fn "}, {"role": "user", "content": "main() {"}]
chat = {"model": model, "messages": messages, "temperature": 0, "max_tokens": 12, "seed": 1}
said = client.chat.completions.create(**chat, logprobs=True, top_logprobs=2)
found["chat"] = {"text": said.choices[0].message.content, "role": said.choices[0].message.role,
                 "finish": said.choices[0].finish_reason, "tokens": said.usage.completion_tokens,
                 "alternatives": [len(token.top_logprobs) for token in said.choices[0].logprobs.content]}
pieces = list(client.chat.completions.create(**chat, stream=True, stream_options={"include_usage": True}))
found["chat_stream"] = {"text": "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices),
                        "pieces": len(pieces), "tokens": pieces[-1].usage.completion_tokens}

stop = found["text"][3:5]
found["stop"] = {"stop": stop, "text": ask(max_tokens=12, seed=1, stop=[stop]).choices[0].text}

found["unknown_model"] = refused(model="nobody")
found["unknown_path"] = refused(model=model + "/path-99")
found["too_long"] = refused(prompt="word " * 1000)
found["bad_temperature"] = refused(temperature=-1)
found["empty_prompt"] = refused(prompt="")

print(json.dumps(found))
