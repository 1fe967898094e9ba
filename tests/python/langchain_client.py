"""Asks a server with a chat template through LangChain, and prints the answers as one JSON object.

Arguments: the base URL, the model.
"""

import json
import os
import sys

# LangChain counts tokens with OpenAI's tokenizer if it may download it.
os.environ["LANGSMITH_TRACING"] = "false"

from langchain_openai import ChatOpenAI, OpenAI

base, model = sys.argv[1:]
server = {"base_url": base, "api_key": "unused", "model": model, "temperature": 0, "max_retries": 0, "timeout": 60}
text = OpenAI(max_tokens=12, seed=1, **server)
chat = ChatOpenAI(max_tokens=12, seed=1, **server)
messages = [("system", "fn "), ("user", "main() {")]

both = text.generate(["fn main() {", "Copyright"])
said = chat.invoke(messages)
pieces = list(chat.stream(messages))
print(json.dumps({
    "text": text.invoke("fn main() {"),
    "text_pieces": list(text.stream("fn main() {")),
    "both": [generations[0].text for generations in both.generations],
    "usage": both.llm_output["token_usage"],
    "chat": said.content,
    "chat_usage": said.usage_metadata,
    "chat_finish": said.response_metadata["finish_reason"],
    "chat_pieces": [piece.content for piece in pieces],
}))
