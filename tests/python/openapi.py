"""Checks a server's description of itself, and an answer against it, and prints what was found as one JSON object.

openapi-spec-validator is one of the requirements of moto. Arguments: the server's address, a request body.
"""

import json
import sys
import urllib.request

from openapi_schema_validator import OAS31Validator
from openapi_spec_validator import validate

address, body = sys.argv[1:]


def ask(path, data=None):
    request = urllib.request.Request(address + path, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


document = ask("/openapi.json")
validate(document)


def problems(schema, value):
    schema = {"$ref": f"#/components/schemas/{schema}", "components": document["components"]}
    return [error.message for error in OAS31Validator(schema).iter_errors(value)]


request = json.loads(body)
print(json.dumps({
    "paths": sorted(document["paths"]),
    "request": problems("CompletionRequest", request),
    "wrong": len(problems("CompletionRequest", {"max_tokens": "many", "temperature": 3, "stop": 7})),
    "answer": problems("Completion", ask("/v1/completions", body.encode())),
    "models": problems("ModelList", ask("/v1/models")),
}))
