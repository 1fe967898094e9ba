//! Keys of `serve`.

use super::{KeyDoc, free};

pub(super) const KEYS: &[KeyDoc] = &[
    free(
        "serve.address",
        "address:port",
        "Address that the server listens on: an IP address and a port, not the name of a host. Other machines can't reach \
         127.0.0.1. All machines can reach 0.0.0.0: set `serve.api_keys` with it.",
    ),
    free(
        "serve.metrics_address",
        "address:port",
        "Address of a listener of its own for `/metrics`, which then is not at `serve.address`. When it is not set, `/metrics` \
         is at `serve.address`. API keys count at both.",
    ),
    free(
        "serve.format",
        "name",
        "Number type of the weights, which are rounded when they are loaded: \"f32\", \"bf16\", \"q8_0\" (8.5 bits) or \
         \"q4_0\" (4.5 bits, 8.5 in embedding and head). Fewer bits need less memory and are read faster. The blocks of the \
         last two are llama.cpp's. They also round activations to 8 bits, and need sizes that are multiples of 32.",
    ),
    free(
        "serve.memory",
        "bytes",
        "Largest memory of modules; 0 sets no limit. Modules are then read from the store when a sequence needs them, and those \
         that were used longest ago leave the memory. A limit below the modules of one path is refused at the start. Keys and \
         values (`serve.kv_bytes`) and the seed of the router are not counted. While a module is read, its largest \
         tensor in f32 and some parts of its file take memory besides.",
    ),
    free(
        "serve.check_memory",
        "true or false",
        "Refuses to start a server that would need more memory than there is: that of the machine, or less in a container with \
         a limit. The message names each part. `false` starts it all the same.",
    ),
    free(
        "serve.preload",
        "name",
        "Modules that are loaded before the server answers: \"all\", as many as `serve.memory` has room for, or \"none\" but \
         those of the first path. Damaged modules that are not preloaded fail the requests that need them.",
    ),
    free(
        "serve.route_every",
        "tokens",
        "Tokens after which the router of `serve.reroute_by` chooses the path of a sequence anew, again and again; 0 keeps the \
         first path. A request can choose its own number with `route_every`. Fewer tokens follow the \
         text more closely and cost more, because the levels of a new path read the text from its \
         beginning, from the first other module on.",
    ),
    free(
        "serve.reroute_by",
        "name",
        "Router that chooses paths within a sequence. \"transformer\" reads all tokens before a chunk, and needs \
         `dipaco route fit-transformer`: without it requests with `route_every` are refused. \"features\" is the router of \
         prompts: it reads the features of the last `routing.prefix_tokens` tokens before a chunk, and needs no further \
         fit.",
    ),
    free(
        "serve.reload_seconds",
        "seconds",
        "Time between two looks for new weights of a training that goes on beside the server; 0 never looks. New weights are \
         loaded beside the old ones, which stay in memory until the last sequence that uses them has ended.",
    ),
    free(
        "serve.kv_type",
        "name",
        "Number type of keys and values: \"bf16\", or \"f32\" with twice the memory and no rounding. With \"f32\", \
         `serve.format = \"f32\"` and `model.dtype = \"f32\"` log-probabilities are those of `evaluate` to 1e-5.",
    ),
    free(
        "serve.kv_bytes",
        "bytes",
        "Memory of keys and values of all sequences, and of the beginnings of texts that are kept for the next request. 0 takes \
         what all slots need for whole contexts, at most 2 GiB. At least one whole context is taken. The system gives the \
         memory when it is used for the first time.",
    ),
    free(
        "serve.step_tokens",
        "tokens",
        "Most tokens of a step of the engine, at least `serve.slots`. A prompt is read in pieces that fit. More tokens read \
         prompts with less work in all.",
    ),
    free(
        "serve.prompt_slowdown",
        "times",
        "Longest step that reads prompts while sequences generate, in times of a step that reads none. The server measures \
         both, and reads so many prompt tokens a step, at least 4. It does so while no more sequences wait for \
         their prompts than generate. Near 1 running answers go on steadily and new ones begin late. A large number reads \
         `serve.step_tokens` at a time: running answers pause, and a server with long prompts does more in all.",
    ),
    free(
        "serve.slots",
        "sequences",
        "Sequences that are computed at a time; 0 takes 32. Sequences that share modules share the work of reading \
         weights, so more slots generate more tokens a second in all, and each sequence is slower.",
    ),
    free(
        "serve.queued_requests",
        "sequences",
        "Sequences that may wait. Further requests are answered with status 429. A request with k prompts and n choices \
         counts k·n. Evaluation harnesses give up when this is too low.",
    ),
    free(
        "serve.queued_tokens",
        "tokens",
        "Prompt tokens that may wait. Limits the time that a request waits behind long prompts.",
    ),
    free("serve.max_choices", "choices", "Most choices of a request: prompts times n."),
    free(
        "serve.max_answer_tokens",
        "tokens",
        "Most tokens that an answer may hold, over all its choices: `max_tokens`, and the prompt with `echo` or \
         `prompt_logprobs`. A token counts once more for each of its log-probabilities. Limits the memory of one request.",
    ),
    free(
        "serve.body_limit",
        "bytes",
        "Largest body of a request. Larger bodies are answered with status 413.",
    ),
    free(
        "serve.max_connections",
        "connections",
        "Connections at a time. Further connections wait in the backlog of the operating system.",
    ),
    free(
        "serve.read_timeout",
        "seconds",
        "Time that a client has to send the head of a request, again to send its body, and again to take the next part of \
         an answer.",
    ),
    free(
        "serve.request_timeout",
        "seconds",
        "Longest time from a request's admission to its last token. A client can ask for less with the header \
         `x-dipaco-timeout`, in seconds.",
    ),
    free(
        "serve.drain_timeout",
        "seconds",
        "Time that running requests have to finish when the server is stopped.",
    ),
    free(
        "serve.keep_alive",
        "seconds",
        "Time between two comments that keep a stream without new text open.",
    ),
    free(
        "serve.api_keys",
        "path",
        "File with API keys, one a line; lines that begin with `#` are comments. With it, every request except those for the state of the server (`/health`, `/v1/health`, `/ready`, `/ping`) \
         needs the header `Authorization: Bearer KEY`. The server reads a changed file again. Keys of \
         the environment variable `DIPACO_API_KEYS` count besides. Without both, everyone who can reach the address is served.",
    ),
    free(
        "serve.chat_template",
        "path",
        "File with a chat template in Jinja, as in Hugging Face's `chat_template.jinja`. With it the server answers chats. A \
         run with an imported model has the model's template without this key.",
    ),
    free(
        "serve.model_sampling",
        "true or false",
        "Gives requests the sampling parameters of an imported model's `generation_config.json` (`temperature`, `top_p`, \
         `top_k`, `min_p`, `repetition_penalty`) where they set none, as vLLM does. Otherwise OpenAI's hold: temperature 1, \
         and nothing cut off.",
    ),
    free(
        "serve.allowed_origins",
        "origins",
        "Web pages whose scripts may use the server (CORS), as in `https://chat.example.org`; `*` allows every page. \
         Browsers enforce it. Empty: no page but the server's own.",
    ),
];
