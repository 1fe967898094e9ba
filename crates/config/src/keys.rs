//! What every key means: the one place that the configuration reference, `dipaco config keys` and the comments of a
//! saved configuration come from.

/// What a key means. Its default comes from the code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyDoc {
    /// The whole name, with `[]` for the elements of a list.
    pub key: &'static str,
    /// The unit or the kind of value.
    pub unit: &'static str,
    /// The meaning and the consequence of a bad value, in whole sentences.
    pub text: &'static str,
    /// Whether another value gives another result. Others only change where and how fast the run goes, and may differ
    /// when a run is resumed.
    pub affects_result: bool,
}

const fn key(key: &'static str, unit: &'static str, text: &'static str) -> KeyDoc {
    KeyDoc { key, unit, text, affects_result: true }
}

const fn free(key: &'static str, unit: &'static str, text: &'static str) -> KeyDoc {
    KeyDoc { key, unit, text, affects_result: false }
}

/// Every section with what it is for, in the order in which they are written.
pub const SECTIONS: &[(&str, &str)] = &[
    ("run", "The run itself."),
    ("model", "The transformer of one path. Llama-shaped: RMSNorm, rotary positions, SwiGLU, no biases."),
    ("topology", "How the transformer is cut into modules and how paths share them."),
    (
        "topology.levels[]",
        "The levels, first to last. Every block, the embedding and the head belong to exactly one level.",
    ),
    ("prepare", "How text becomes a tokenizer and token files."),
    ("seed_model", "Pretraining of the dense path that every path starts from."),
    ("seed_model.adamw", "The optimizer of the seed."),
    ("seed_model.schedule", "The learning rate of the seed: a linear warm-up, then a cosine."),
    ("routing", "Which document goes to which path."),
    (
        "routing.classifier",
        "How a discriminative router is fitted: a linear classifier of the seed's features that predicts which path scores \
         a document best.",
    ),
    (
        "routing.phases[]",
        "Phases: after some rounds the paths as they are then decide anew which document goes to which path, and training \
         goes on with other shards. Without any, documents stay where the first router puts them.",
    ),
    (
        "transformer_router",
        "The router that decides during a text: the seed, fine-tuned to predict which path goes on best.",
    ),
    ("transformer_router.adamw", "The optimizer of that router."),
    ("transformer_router.schedule", "The learning rate of that router."),
    ("train", "Training of the paths: rounds of inner steps."),
    ("train.adamw", "The inner optimizer of every path."),
    ("train.schedule", "The learning rate over all inner steps of the run: a linear warm-up, then a cosine."),
    (
        "sync",
        "When paths synchronise their modules, and who waits for whom. The defaults are those of DiLoCo and DiPaCo: whole \
         modules, all paths through a module wait for each other.",
    ),
    ("outer", "How the outer gradients of the paths through a module become the module's step."),
    ("outer.nesterov", "The outer optimizer: SGD with Nesterov momentum."),
    ("evaluation", "Perplexity on validation text."),
    ("serve", "The HTTP server."),
];

const LEARNING_RATE: &str =
    "Peak learning rate. Too high makes the loss jump or become NaN, too low learns slowly.";
const BETA1: &str = "Decay of the mean of gradients, at least 0 and below 1.";
const BETA2: &str = "Decay of the mean of squared gradients, at least 0 and below 1.";
const EPSILON: &str = "Added to the root of the squared gradients, so that nothing is divided by 0.";
const WEIGHT_DECAY: &str = "Decoupled weight decay, per unit of learning rate; norms are exempt.";
const CLIP_NORM: &str = "Gradients of a larger norm are scaled down to it; 0 turns clipping off.";
const WARMUP: &str = "Steps over which the learning rate rises from 0 to its peak.";
const MICRO_BATCH: &str = "Sequences per forward and backward pass; must divide the batch, and 0 takes the whole batch at once. Gradients are \
     added up until the batch is done, so memory falls with it and the step stays the same up to the order in which \
     numbers are added. Small ones are slower.";
const ACTIVATION_CHECKPOINTING: &str = "Whether a block keeps only its input for the backward pass and computes the rest again. Costs about a third more \
     time and saves most of the memory that grows with batch and sequence length; the weights are the same bits.";
const FINAL_FRACTION: &str = "The learning rate at the last step as a share of its peak, from 0 to 1.";

/// Every key of the configuration.
pub const KEYS: &[KeyDoc] = &[
    free(
        "run.name",
        "text",
        "Name of the run and of the model that it serves: letters, digits, `-`, `_` and `.`.",
    ),
    key(
        "run.seed",
        "number",
        "Seed of every random choice. The same seed and configuration give the same bits.",
    ),
    free("run.directory", "path", "The run's directory. When it is not given: `runs/` and the run's name."),
    free(
        "run.data",
        "path",
        "The folder of the prepared text. When it is not given: `data` in the run's directory. Runs that are compared \
         share one.",
    ),
    key("model.hidden_size", "values", "D, the width of the residual stream."),
    key("model.blocks", "blocks", "Number of transformer blocks of a path."),
    key("model.heads", "heads", "Number of attention heads."),
    key(
        "model.head_dim",
        "values",
        "Dh, the width of one head; even, because positions rotate pairs of values.",
    ),
    key("model.ffn_size", "values", "F, the inner width of the feed-forward part."),
    key("model.vocab_size", "tokens", "V, the number of different tokens; 0 takes it from the tokenizer."),
    key(
        "model.context",
        "tokens",
        "The longest sequence that the model reads, in training and when it is served.",
    ),
    key("model.rope_theta", "number", "Base of the rotary positions' wavelengths."),
    key(
        "model.rms_norm_eps",
        "number",
        "Added to the mean square in RMSNorm, so that nothing is divided by 0.",
    ),
    key(
        "model.tie_embeddings",
        "true or false",
        "Whether the output projection is the token embedding. Then both must be in one level.",
    ),
    key("model.init_std", "number", "Standard deviation of the initial weights."),
    key(
        "model.dtype",
        "name",
        "The numbers that matrix products multiply in training: \"f32\", or \"bf16\", which is faster on processors that \
         have such products and saves half of the memory for activations. Sums, weights, gradients and moments are f32 \
         in both.",
    ),
    key(
        "topology.replicas",
        "paths",
        "Paths through each combination of modules. More than 1 makes each combination a DiLoCo group.",
    ),
    key(
        "topology.levels[].modules",
        "modules, or \"paths\"",
        "K, the number of alternative copies of the level; \"paths\" gives every path its own copy. The number of \
         paths is the product of all K and of the replicas.",
    ),
    key(
        "topology.levels[].blocks",
        "list of blocks",
        "The transformer blocks of the level: half-open ranges and numbers from 0, as in \"0..6, 8\".",
    ),
    key("topology.levels[].embedding", "true or false", "Whether the level holds the token embedding."),
    key(
        "topology.levels[].head",
        "true or false",
        "Whether the level holds the final norm and output projection.",
    ),
    key(
        "prepare.vocab_size",
        "tokens",
        "Vocabulary of the tokenizer to train, the 256 bytes and the end-of-text token among them. A larger one gives \
         fewer tokens per byte and a larger embedding. Without effect when `prepare.tokenizer` is given.",
    ),
    key("prepare.tokenizer", "path", "A `tokenizer.json` to use instead of training one."),
    key(
        "prepare.end_of_text",
        "token",
        "Name of the given tokenizer's end-of-text token. When it is not given: the first of `<|endoftext|>`, `</s>`, \
         `<|end_of_text|>` and `<eos>` that the tokenizer has.",
    ),
    key(
        "prepare.tokenizer_sample_bytes",
        "bytes",
        "Text on which the tokenizer is trained, taken from all over the input. More takes longer and hardly changes \
         the vocabulary.",
    ),
    key(
        "prepare.validation_fraction",
        "share",
        "Share of the documents that becomes the validation set when none is given, by a hash of their text; 0 writes \
         none.",
    ),
    key(
        "prepare.text_document_bytes",
        "bytes",
        "Plain text files are cut at line ends into documents of at most this. Small values cut context, large ones \
         leave few documents to route.",
    ),
    key(
        "prepare.max_line_bytes",
        "bytes",
        "The longest line, and with it the longest JSON document. Longer ones are refused and counted; memory grows \
         with it.",
    ),
    key(
        "prepare.min_document_tokens",
        "tokens",
        "Documents with fewer tokens, end-of-text not counted, are refused and counted.",
    ),
    free("prepare.threads", "threads", "Threads that tokenise; 0 takes one for each core."),
    key(
        "seed_model.steps",
        "steps",
        "Optimizer steps of the seed. Too few give features that do not separate texts.",
    ),
    key("seed_model.batch", "sequences", "B, sequences per step."),
    key("seed_model.sequence_tokens", "tokens", "T, tokens per sequence; at most `model.context`."),
    key("seed_model.micro_batch", "sequences", MICRO_BATCH),
    free("seed_model.activation_checkpointing", "true or false", ACTIVATION_CHECKPOINTING),
    free(
        "seed_model.validate_every",
        "steps",
        "Steps between two validation losses; 0 measures at the end only.",
    ),
    free("seed_model.validation_sequences", "sequences", "Validation sequences that are measured each time."),
    free(
        "seed_model.checkpoint_every",
        "steps",
        "Steps between two checkpoints, at most what a crash costs.",
    ),
    key("seed_model.adamw.learning_rate", "number", LEARNING_RATE),
    key("seed_model.adamw.beta1", "number", BETA1),
    key("seed_model.adamw.beta2", "number", BETA2),
    key("seed_model.adamw.epsilon", "number", EPSILON),
    key("seed_model.adamw.weight_decay", "number", WEIGHT_DECAY),
    key("seed_model.adamw.clip_norm", "norm", CLIP_NORM),
    key("seed_model.schedule.warmup_steps", "steps", WARMUP),
    key("seed_model.schedule.final_fraction", "share", FINAL_FRACTION),
    key(
        "routing.kind",
        "name",
        "The rule that the run starts with. \"kmeans\" takes the nearest of as many centroids as there are paths; \
         \"product-kmeans\" cuts the feature into a part for each level, whose nearest centroids together name the path.",
    ),
    key(
        "routing.prefix_tokens",
        "tokens",
        "Tokens at the start of a document that the router reads; at most `model.context`. Few say little about the \
         document, many must be there before the first token can be generated.",
    ),
    key(
        "routing.sample_documents",
        "documents",
        "Documents that the router is fitted on. Memory while fitting is this times `model.hidden_size` times 4 bytes.",
    ),
    key("routing.restarts", "starts", "Independent starts of k-means, of which the best wins."),
    key(
        "routing.iterations",
        "iterations",
        "The most iterations of one start. Too few leave clusters unsettled.",
    ),
    key(
        "routing.tolerance",
        "share",
        "A start ends when an iteration lowers its inertia by less than this share; 0 runs until nothing changes.",
    ),
    key(
        "routing.seed",
        "number",
        "Seed of the sample and of k-means. Another gives other, equally valid shards.",
    ),
    key(
        "routing.batch_documents",
        "documents",
        "Documents whose features are computed at once; costs memory.",
    ),
    key(
        "routing.overlap",
        "shards",
        "Shards that a training document goes to, those of its best paths; at most as many as there are paths. More makes \
         shards larger, which keeps many small paths from overfitting, and paths less special.",
    ),
    key(
        "routing.router_share",
        "share",
        "Share of the training documents that no path is trained on, kept for fitting a discriminative router; 0 to 0.5. \
         The paper takes 0.005 of 365 million; a small corpus needs more.",
    ),
    key(
        "routing.least_share",
        "share",
        "What a path is calibrated to get of the documents at least, as a part of an equal share; 0 to 1. At 0 a path whose parts \
         of product k-means never come together, or that is hardly ever the best one, gets no text to train on.",
    ),
    key(
        "routing.classifier.penalties",
        "numbers",
        "Strengths of the penalty on squared weights that are tried; the one that predicts a fifth of the documents best \
         wins. Weak ones learn few documents by heart, strong ones learn only which paths are frequent.",
    ),
    key(
        "routing.classifier.iterations",
        "iterations",
        "The most iterations of a fit. Too few leave the classifier unsettled.",
    ),
    key(
        "routing.classifier.tolerance",
        "share",
        "A fit ends when two iterations in a row lower the loss by less than this share.",
    ),
    key(
        "routing.phases[].round",
        "rounds",
        "Rounds before the phase begins, counted from the start of the training: at least 1, below `train.rounds`, and \
         above that of the phase before. Too early and the paths are too alike to say much about a document.",
    ),
    key(
        "routing.phases[].kind",
        "name",
        "The router of the phase: \"discriminative\", a linear classifier of the seed's features, fitted on which path \
         gives each reserved document (`routing.router_share`) the highest likelihood.",
    ),
    key("transformer_router.steps", "steps", "Optimizer steps; the paper takes about 2,000."),
    key("transformer_router.batch", "sequences", "B, sequences per step, as long as `model.context`."),
    key(
        "transformer_router.score_tokens",
        "tokens",
        "Tokens over which the paths' scores are summed up to tell which one goes on best; 0 sums to the end of the \
         sequence, so that one router serves every distance between choices.",
    ),
    key(
        "transformer_router.holdout_fraction",
        "share",
        "Share of the reserved documents on which the router's loss is measured; the best weights are kept. With 0 the \
         last ones are, and nothing tells when it overfits.",
    ),
    key("transformer_router.validate_every", "steps", "Steps between two measurements of the held-out loss."),
    key("transformer_router.adamw.learning_rate", "number", LEARNING_RATE),
    key("transformer_router.adamw.beta1", "number", BETA1),
    key("transformer_router.adamw.beta2", "number", BETA2),
    key("transformer_router.adamw.epsilon", "number", EPSILON),
    key("transformer_router.adamw.weight_decay", "number", WEIGHT_DECAY),
    key("transformer_router.adamw.clip_norm", "norm", CLIP_NORM),
    key("transformer_router.schedule.warmup_steps", "steps", WARMUP),
    key("transformer_router.schedule.final_fraction", "share", FINAL_FRACTION),
    key(
        "train.rounds",
        "rounds",
        "Rounds: in each, every path takes its inner steps and every module one outer step.",
    ),
    key(
        "train.inner_steps",
        "steps",
        "H, inner steps of a path per round. More means less communication, and paths that drift further apart.",
    ),
    key("train.batch", "sequences", "B, sequences per inner step."),
    key("train.sequence_tokens", "tokens", "T, tokens per sequence; at most `model.context`."),
    key("train.micro_batch", "sequences", MICRO_BATCH),
    free("train.activation_checkpointing", "true or false", ACTIVATION_CHECKPOINTING),
    key(
        "train.holdout_fraction",
        "share",
        "Share of each shard's documents that is held out for early stopping, at least 0 and below 1.",
    ),
    key(
        "train.holdout_sequences",
        "sequences",
        "Held-out sequences that are measured after each round; 0 turns early stopping off.",
    ),
    key(
        "train.packing",
        "true or false",
        "Whether sequences run across document borders, without padding; the seed is trained the same way. Otherwise \
         a sequence holds tokens of one document.",
    ),
    free(
        "train.lease_seconds",
        "seconds",
        "After so long without a word from its worker, a path is given to another worker. Too short repeats work over \
         a slow network, too long waits for workers that are gone.",
    ),
    free(
        "train.state_every",
        "leases",
        "Leases of a path between two states (moments, data position) that its worker brings to the coordinator; the state is \
         twice the size of the weights. Whoever takes a path over begins at the last state and trains again from there, with \
         the same result. 1 brings every one; raise it, with `train.held_paths`, on a slow network. With more than 1 the \
         states with which the run ends stay with the workers.",
    ),
    free(
        "train.held_paths",
        "paths",
        "Paths whose states a worker keeps in memory, 8 bytes a parameter each; a worker is given the paths that it holds \
         before others that are as far. At least the number of paths divided by the number of workers, when \
         `train.state_every` is more than 1.",
    ),
    free(
        "train.checkpoints",
        "checkpoints",
        "Rounds before the current one whose weights and states are kept until the run is complete, so that it can go back to \
         them when an object of the store is damaged (`--resume` does); each takes as much disk as the current ones. Two are \
         needed to have one that shares nothing with the current round. 0 keeps none.",
    ),
    free(
        "train.threads_per_worker",
        "threads",
        "Threads of one worker process; 0 shares the cores evenly among the workers of the machine.",
    ),
    key(
        "train.schedule_at_phase",
        "name",
        "What the learning rate does where a phase of `routing.phases` begins: \"continue\" goes on as if nothing had \
         happened; \"restart\" warms up again and lets the cosine span the rest of the run, as in the paper's alternating \
         phases. Moments and weights are carried over in both.",
    ),
    key("train.adamw.learning_rate", "number", LEARNING_RATE),
    key("train.adamw.beta1", "number", BETA1),
    key("train.adamw.beta2", "number", BETA2),
    key("train.adamw.epsilon", "number", EPSILON),
    key("train.adamw.weight_decay", "number", WEIGHT_DECAY),
    key("train.adamw.clip_norm", "norm", CLIP_NORM),
    key("train.schedule.warmup_steps", "steps", WARMUP),
    key("train.schedule.final_fraction", "share", FINAL_FRACTION),
    key(
        "sync.fragments",
        "count",
        "F, parts that each module is cut into. Each is sent every `train.inner_steps` steps, at steps of its own: the \
         same bytes in all, spread over time (Streaming DiLoCo).",
    ),
    key(
        "sync.pattern",
        "name",
        "Which tensors make a fragment: \"strided\" takes every F-th block, \"sequential\" blocks that follow each other; \
         the embedding counts as a block, and so do final norm and head. \"balanced\" makes fragments of equal size of \
         single tensors.",
    ),
    key(
        "sync.overlap_steps",
        "steps",
        "Inner steps that a path trains on after sending a fragment, before it takes over what became of it; at most \
         `train.inner_steps`. Transfers and outer steps have this long before a path waits for them.",
    ),
    key(
        "sync.blend",
        "share",
        "Share of its own weights that a path keeps when it takes over the global ones: 0 takes the global weights, 0.5 \
         the mean of both.",
    ),
    key(
        "sync.quorum",
        "paths",
        "Paths that an outer step waits for; 0 for all through the module, and then paths wait for outer steps too and the \
         result does not depend on time. From 1 on no path waits for another.",
    ),
    key(
        "sync.grace_seconds",
        "seconds",
        "The longest time that an outer step with its quorum waits for further paths.",
    ),
    key(
        "sync.grace_share",
        "share",
        "With an overlap the wait adapts: this share of the time that is left of the overlap's inner steps after quorum \
         and outer step.",
    ),
    key(
        "sync.throttle",
        "share",
        "With a quorum: the time between two outer steps of a fragment, at least, as a share of what the fastest path takes \
         for `train.inner_steps`. Near 1 an outer step has about one contribution of each path, whatever the quorum.",
    ),
    key(
        "sync.dynamic_steps",
        "flag",
        "Whether slower workers take fewer inner steps between two contributions, so that all contribute as often. Needs \
         a quorum, one fragment and no overlap.",
    ),
    key(
        "sync.shard_sampling",
        "flag",
        "Whether the path that is trained next is drawn by how much less of its shard has been trained on than of all \
         shards, instead of taking the one that is furthest behind. Needs a quorum.",
    ),
    key(
        "sync.eager",
        "flag",
        "Eager updates, with an overlap of a whole round: a path that takes over weights that are a round late adds what the \
         outer optimizer makes of its own newer part.",
    ),
    key(
        "sync.drop_rate",
        "share",
        "Share of the outer gradients that are never sent, to try out what a run makes of it; whoever drops one goes on from \
         its own weights. At least 0 and below 1.",
    ),
    key(
        "outer.weighting",
        "name",
        "\"shard-size\" weights a path by the tokens of its shard, \"uniform\" weights all alike, \"tokens\" by the \
         tokens of the contribution times its tokens per inner step, for paths that contribute unlike amounts.",
    ),
    key(
        "outer.rescale",
        "name",
        "\"sqrt-paths\" multiplies the mean by the root of the number of paths through the module, because the mean \
         of unlike gradients is that much shorter; \"rda\" averages directions and lengths apart, so that the length does \
         not depend on the number of paths; \"none\" takes the mean as it is.",
    ),
    key(
        "outer.compression",
        "name",
        "How outer gradients are written on their way: \"f32\" without loss; \"bf16\" at half the bytes; \"int8\" at a quarter; \
         \"e3m0\" at an eighth, a sign and three bits of exponent; \"top-k\" at a 63rd, only the 128 largest of 4,096 values, to \
         be used with `outer.error_feedback`. They are added up in f32 in any case.",
    ),
    key(
        "outer.error_feedback",
        "share",
        "What writing an outer gradient loses is kept by the path, multiplied by this and added to its next one; 0 adds \
         nothing, \"top-k\" wants about 0.95.",
    ),
    key(
        "outer.guard",
        "times",
        "An outer gradient that is so many times as long as the median of the last 16 of its module is refused, with its \
         worker: a machine that computes garbage can't spoil a module. 0 refuses none. NaN and infinity are always refused.",
    ),
    key(
        "outer.broadcast",
        "name",
        "How workers get the change of the global weights that they hold already: \"f32\" sends the weights themselves. \
         Otherwise the change is rounded as `outer.compression` describes, the global weights are the sum of what was sent, \
         and what rounding leaves is added to the next change.",
    ),
    key(
        "outer.delay",
        "contributions",
        "Delayed Nesterov momentum for `sync.quorum`: contributions are applied one by one, each divided by this number, and \
         the momentum changes after so many; the number of paths through a module is a good value. 0 merges the \
         contributions of an outer step and changes the momentum with each.",
    ),
    key(
        "outer.delay_share",
        "share",
        "Share of the momentum that the contributions in between apply, 0 to 1 / `outer.delay`.",
    ),
    key(
        "outer.nesterov.learning_rate",
        "number",
        "Outer learning rate; 1 with momentum 0 takes the mean itself.",
    ),
    key("outer.nesterov.momentum", "number", "Outer momentum, at least 0 and below 1."),
    key(
        "evaluation.prefix_tokens",
        "tokens",
        "Tokens at the start of a document that are read and not counted, for every model, so that all are compared \
         on the same tokens. At least `routing.prefix_tokens`, which the router has seen.",
    ),
    key(
        "evaluation.sequence_tokens",
        "tokens",
        "Tokens of a sequence; longer documents are cut into several. 0 takes the model's context.",
    ),
    free("evaluation.batch_sequences", "sequences", "Sequences that are scored at once; costs memory."),
    key(
        "evaluation.reroute_tokens",
        "tokens",
        "Tokens between two choices of a path during a sequence, by the transformer router; 0 keeps the path that the \
         document was routed to. The first path scores the first so many tokens.",
    ),
    free(
        "evaluation.parallel_paths",
        "paths",
        "Paths that are evaluated at the same time, which bounds the memory for weights; 0 takes as many as there are \
         threads.",
    ),
    key(
        "evaluation.max_documents",
        "documents",
        "Documents of each file that are scored, its first ones; 0 scores all. For quick looks, not for tables.",
    ),
    free(
        "serve.address",
        "address:port",
        "Where to listen. 127.0.0.1 can't be reached from other machines; 0.0.0.0 opens it to all: give \
         `serve.api_keys` then.",
    ),
    free("serve.slots", "sequences", "Sequences that are computed at a time; 0 takes the number of cores."),
    free(
        "serve.queued_requests",
        "sequences",
        "Sequences that may wait; above it requests are answered with 429. A request with k prompts and n choices \
         counts k·n.",
    ),
    free(
        "serve.queued_tokens",
        "tokens",
        "Prompt tokens that may wait, which bounds how long a request can wait.",
    ),
    free("serve.max_choices", "choices", "The most choices of one request: prompts times n."),
    free(
        "serve.body_limit",
        "bytes",
        "The largest body of a request; above it requests are answered with 413.",
    ),
    free("serve.max_connections", "connections", "Connections at a time; more wait in the system's backlog."),
    free(
        "serve.read_timeout",
        "seconds",
        "Time that a client has to send a request's head, and again for its body.",
    ),
    free(
        "serve.request_timeout",
        "seconds",
        "The longest time from a request's admission to its last token.",
    ),
    free(
        "serve.drain_timeout",
        "seconds",
        "Time that running requests get to finish when the server is stopped.",
    ),
    free("serve.keep_alive", "seconds", "Time between comments that keep a silent stream open."),
    free(
        "serve.api_keys",
        "path",
        "A file with API keys, one a line. When it is not given, everyone who reaches the address may ask.",
    ),
];

/// The documentation of a key; indices such as `[0]` may stand for `[]`.
#[must_use]
pub fn key_doc(key: &str) -> Option<&'static KeyDoc> {
    let pattern = crate::layer::KeyPath::parse(&key.replace("[]", "[0]"))?.pattern();
    KEYS.iter().find(|doc| doc.key == pattern)
}
